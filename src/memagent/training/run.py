"""A training run: what its stages share, where it stands, and its checkpoints, which are written whole."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from memagent.errors import SettingsError, reason
from memagent.storage import write_in_place
from memagent.training.data import Data
from memagent.training.metrics import MetricsLog, compute_update_means
from memagent.training.optimization.learner import Learner, Sums
from memagent.training.optimization.policy import Policy
from memagent.training.ranks import Ranks
from memagent.training.settings import TrainingSettings
from memagent.types import Engine

CHECKPOINTS = "checkpoints"


class TrainingObserver(Protocol):
    """Follows the progress of a run."""

    def begin(self, first_step: int, steps: int, stage: str = "training") -> None:
        """A stage of `steps` steps begins, or continues, at `first_step`."""

    def row(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """A line of metrics was written."""


@dataclass(slots=True)
class TrainingPosition:
    """How far a run has come: the steps of its stages, and the next example in the data."""

    warm_steps: int = 0
    step: int = 0
    example: int = 0


@dataclass(kw_only=True)
class RunState:
    """What a run's stages share. `optimizer` is a checkpoint's state, until a learner takes it over.

    `push` gives the policy after a number of steps to the process that generates, if that is another one; of
    several training processes, only the one that is told so sends it.
    """

    settings: TrainingSettings
    folder: Path
    observer: TrainingObserver
    policy: Policy
    engine: Engine
    ranks: Ranks
    metrics: MetricsLog | None
    data: Data
    position: TrainingPosition = field(default_factory=TrainingPosition)
    optimizer: dict[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    push: Callable[[Policy, int, bool], Awaitable[None]] | None = None

    def learner(self, steps_taken: int, betas: tuple[float, float] | None = None) -> Learner:
        """The learner of a stage after `steps_taken`: with the checkpoint's optimizer, or else a new one.

        `betas` are those of another stage than reinforcement.
        """
        learner = Learner(self.policy, self.settings.optimizer, self.ranks, betas)
        if self.optimizer and steps_taken:
            learner.load_state(self.optimizer)
        self.optimizer = None
        return learner

    def means(self, sums: Sums) -> dict[str, float]:
        """The means of a step, from its sums over the tokens of all processes."""
        return compute_update_means(self.ranks.gather([dict(sums)]))

    def report(self, stage: str, step: int, values: Mapping[str, float], haystack: str = "") -> None:
        """Write a line of metrics; `haystack` is that of an evaluation."""
        if self.metrics:
            self.metrics.write(stage, step, values, haystack)
            self.observer.row(stage, step, values)

    def saves(self, learner: Learner, steps: int) -> bool:
        """Whether to save after this many steps of a stage.

        Not while gradients are not finite: that would replace a checkpoint from before the weights broke.
        """
        return steps % self.settings.checkpoint_every == 0 and not learner.skipped

    def save(self, learner: Learner | None) -> None:
        """Write a checkpoint; without a learner, the next stage begins with a new optimizer."""
        if self.metrics:
            state = {
                "settings": self.settings.record(),
                "files": dict(self.files),
                "position": asdict(self.position),
                "weights": self.policy.weights(),
                "optimizer": learner.state() if learner else None,
                "metrics": self.metrics.position(),
            }
            steps = self.position.warm_steps + self.position.step
            save_checkpoint(self.folder, steps, state, self.settings.keep)
        self.ranks.wait()


def save_checkpoint(run: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write the state after `step` steps and delete all but the newest `keep`. Raises `SettingsError`."""
    path = run / CHECKPOINTS / f"step-{step:06d}.pt"
    write_tensors(path, state)
    for old in _list_checkpoints(run)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def write_tensors(path: Path, state: dict[str, Any]) -> None:
    """Write a file of tensors atomically. Raises `SettingsError` if it cannot be written.

    Deletes partial files left by a killed run, which may be as large as a checkpoint.
    """
    for left in path.parent.glob(".*.pt.*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with write_in_place(path) as temporary:
            torch.save(state, temporary)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {reason(error)}") from error
    except RuntimeError as error:  # torch does not say why
        raise SettingsError(f"{path} cannot be written, perhaps because the disk is full: {error}") from error


def newest_checkpoint(run: Path) -> Path | None:
    """The checkpoint that a run continues from, or None."""
    return next(reversed(_list_checkpoints(run)), None)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, on the CPU. Raises `SettingsError` if it cannot be read."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise zip, pickle or torch errors
        raise SettingsError(
            f"{path} is not a checkpoint ({error}): remove it to continue from an older one"
        ) from error
    return state


def _list_checkpoints(run: Path) -> list[Path]:
    numbered = {path.stem.removeprefix("step-"): path for path in (run / CHECKPOINTS).glob("step-*.pt")}
    return [numbered[step] for step in sorted(filter(str.isdecimal, numbered), key=int)]
