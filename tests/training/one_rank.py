"""One process of several: writes the gradients that it has after each split of the sequences.

Started by test_ranks.py, with the folder to write to.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from memagent.training.optimization.learner import Learner
from memagent.training.optimization.objective import token_losses
from memagent.training.ranks import Ranks
from memagent.training.settings import LossSettings, OptimizerSettings
from memagent.types import TrainingSequence
from training.tiny import gradients, group, policy

SEQUENCES = [sequence for seed in range(3) for sequence in group(seed)]


def gradient(ranks: Ranks, sequences: list[TrainingSequence]) -> torch.Tensor:
    """What this process would follow, of these sequences and those of the others."""
    learner = Learner(policy(), OptimizerSettings(batch_tokens=60), ranks)
    learner.gradient(
        sequences,
        lambda batch, values, _: token_losses(
            values.logprobs, batch.old_logprobs, batch.advantages, LossSettings()
        ),
    )
    return gradients(learner.policy)


if __name__ == "__main__":
    ranks = Ranks()
    halves = gradient(ranks, list(ranks.share(SEQUENCES)))
    lopsided = gradient(ranks, SEQUENCES if ranks.main else [])
    record = {
        "halves": halves,
        "lopsided": lopsided,
        "count": ranks.count,
        "gathered": ranks.gather([f"rank {ranks.number}"]),
        "total": sum(ranks.gather([ranks.number + 1])),
    }
    torch.save(record, Path(sys.argv[1]) / f"rank-{ranks.number}.pt")
    ranks.close()
    assert not torch.distributed.is_initialized()
