"""Measure readers: run them over examples, keep every row, and summarise the rows."""
