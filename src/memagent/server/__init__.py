"""Serving: OpenAI's chat API without a context limit, files, and reads that survive a restart."""
