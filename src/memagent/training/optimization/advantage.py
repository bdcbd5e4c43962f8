"""Group-relative advantages, one per trajectory (GRPO, arXiv 2402.03300; MemAgent, arXiv 2507.02259).

Every token of every conversation of a trajectory gets the trajectory's advantage. They are
normalised per trajectory, before anything is broadcast to rows: a trajectory that read a long document has
more conversations than another, and still counts once in its group.
"""

from __future__ import annotations

import torch

_EPSILON = 1e-6


def group_advantages(rewards: torch.Tensor, divide_by_std: bool = False) -> torch.Tensor:
    """Each reward less the mean of its group: `(groups, attempts)` to `(groups, attempts)`.

    With `divide_by_std` also divided by the group's standard deviation (with Bessel's correction, as
    GRPO has it), which weighs groups of nearly equal rewards up; a group of one keeps its advantage of 0.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    if not divide_by_std or rewards.shape[1] < 2:
        return centred
    return centred / (rewards.std(dim=1, keepdim=True) + _EPSILON)
