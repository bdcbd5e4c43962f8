"""GGUF models for any engine that reads them: which can be fetched, from where, and what their files tell."""
