"""Documents: opening files as one text, cutting it into chunks, counting tokens."""
