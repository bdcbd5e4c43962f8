"""One question to each of many files; answers are kept, so that only new or changed files are read."""
