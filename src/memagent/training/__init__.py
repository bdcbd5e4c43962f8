"""Train a policy to write memory: Multi-Conv DAPO (arXiv 2507.02259) on one machine, and on verl.

Nothing here is imported with the package: torch comes in with `policy`, `loss` and what uses them.
"""
