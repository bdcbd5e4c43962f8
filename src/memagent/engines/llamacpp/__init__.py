"""A GGUF model in this process, by llama.cpp."""
