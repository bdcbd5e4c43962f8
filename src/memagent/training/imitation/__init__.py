"""The warm start: trajectories to imitate, and the oracle that writes them."""
