"""`python -m memagent.training.verl`: start a training run on the Ray cluster at hand."""

from memagent.training.verl.launch import main

main()
