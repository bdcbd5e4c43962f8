"""`python -m memagent.training.verl`: start a training run on the current Ray cluster."""

from memagent.training.verl.trainer import main

main()
