"""One question to each of many files: an answer a file, kept, so that only what is new or changed is read."""
