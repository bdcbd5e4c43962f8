"""A policy is trained on a workflow that comes through an entry point, as on ours; it needs torch."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from training.runs import lines, settings, train


def test_a_run_learns_from_its_conversations(tmp_path: Path) -> None:
    changes = ('read.workflow="heads"', "read.heads=2", "rollout.refills=0", "steps=2")
    train(settings(tmp_path, *changes), tmp_path / "run")
    steps = lines(tmp_path / "run", "training")
    assert len(steps) == 2 and all(math.isfinite(step["loss"]) for step in steps)
    whole = 4 * 4 * 4  # groups, attempts, and conversations: three chunks and an answer
    assert {step["conversations"] for step in steps} == {whole}
