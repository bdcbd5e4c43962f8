"""Run a Hugging Face model in this process, with torch."""
