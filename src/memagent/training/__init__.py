"""Train a policy to write memory: Multi-Conv DAPO (arXiv 2507.02259) on one machine or with verl.

`import memagent` does not import this package; torch is loaded only by the modules that need it.
"""
