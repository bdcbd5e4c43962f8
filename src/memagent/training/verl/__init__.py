"""Multi-Conv DAPO on many machines: a plug-in for verl 0.9.1 and its V1 trainer.

`python -m memagent.training.verl` is verl's own entry point with this plug-in in it; docs/verl.md says what
to set, and what is done where verl counts rows and attempts are meant. Nothing here imports verl.
"""
