"""A Hugging Face model in this process, by torch."""
