"""What a tally is made of: its plan, the rows of a text, what their values mean, and counting."""
