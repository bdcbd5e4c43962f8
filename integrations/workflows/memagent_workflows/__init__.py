"""Ways to read that memagent does not bring along, one module each; see README.md."""
