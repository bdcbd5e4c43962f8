"""Tables and pictures of evaluations and training runs."""
