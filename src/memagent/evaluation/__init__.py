"""Measure readers: run them over examples, keep every row, and draw what came out."""
