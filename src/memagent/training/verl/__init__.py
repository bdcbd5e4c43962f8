"""Multi-Conv DAPO on many machines: a plug-in for verl 0.9.1 and its V1 trainer.

`python -m memagent.training.verl` is verl's own entry point with this plug-in; docs/verl.md says what to
set, and what the plug-in does where verl counts rows instead of attempts. This module does not import verl.
"""
