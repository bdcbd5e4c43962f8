"""Small training runs of presets/tiny.toml: their settings, and what can be compared of their metrics."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memagent.cli.train import overrides
from memagent.training.settings import TrainingSettings, load_training

PRESET = Path(__file__).parents[2] / "presets" / "tiny.toml"
CLOCK = ("_seconds", "_per_second", "memory_mib")  # what two runs need not agree in

REWARDS = '''
def letter(example, trajectory):
    """How far in the alphabet the answer stands: attempts of a random policy differ in it."""
    return max(0, ord(trajectory.answer[-1]) - ord("a")) / 26


def early(example, trajectory):
    """Whether the answer is in the first half of the alphabet: at times no attempt of a group is."""
    return float("a" <= trajectory.answer <= "m")


def equal(example, trajectory):
    """Nothing for any attempt, so that none of a group is better than another."""
    return 0.0
'''
SMALL = (
    "steps=3", "checkpoint_every=1", "policy.dtype=float32",
    "warm_start.count=64", "warm_start.steps=4", "warm_start.sequences=16",
    "rollout.groups=4", "rollout.attempts=4", "evaluation.count=8", "evaluation.every=2",
    "optimizer.learning_rate=5e-4", "optimizer.decay_steps=0",
)  # fmt: skip


class Told:
    """A watch that keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []
        self.rows: list[tuple[str, int, dict[str, float]]] = []

    def begin(self, first_step: int, steps: int, stage: str = "training") -> None:
        self.stages.append((stage, first_step, steps))

    def row(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((stage, step, dict(values)))


def small(folder: Path, *changes: str, reward: str = "letter") -> list[str]:
    """The flags of a small run with one of `REWARDS`, which are written to the folder."""
    rewards = folder / "rewards.py"
    rewards.write_text(REWARDS)
    pairs = [*SMALL, f"data.reward={rewards}:{reward}", *changes]
    return [word for pair in pairs for word in ("--set", pair)]


def settings(folder: Path, *changes: str, reward: str = "letter") -> TrainingSettings:
    """The settings that those flags make."""
    return load_training(PRESET, overrides(small(folder, *changes, reward=reward)[1::2]))


def train(wanted: TrainingSettings, run: Path, resume: bool = False, sft: bool = False) -> Told:
    """Train in this process."""
    from memagent.training import loop

    watch = Told()
    asyncio.run(loop.train(wanted, run, watch, resume, sft))
    return watch


def start(folder: Path, run: Path, *more: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Train in a process of its own."""
    module = (*launcher, "-m", "memagent") if launcher else ("-m", "memagent")
    command = [sys.executable, *module, "train", str(PRESET), "--out", str(run), *small(folder), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(run: Path, stage: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics without what the clock decides; those of a stage, or all."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [
        {name: value for name, value in row.items() if not name.endswith((*CLOCK, "crc32"))}
        for row in rows
        if stage in (None, row["stage"])
    ]


def weights(run: Path) -> dict[str, Any]:
    """The trained weights of a run's newest checkpoint."""
    from memagent.training.run import load_checkpoint, newest_checkpoint

    path = newest_checkpoint(run)
    assert path is not None
    trained: dict[str, Any] = load_checkpoint(path)["weights"]
    return trained
