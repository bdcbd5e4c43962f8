"""Run a GGUF model in this process, with llama.cpp."""
