"""From rewards to gradients: sequences, attention, policy, objective."""
