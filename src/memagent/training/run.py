"""A training run: what its stages share, where it stands, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from memagent.training import checkpoint
from memagent.training.data import Data
from memagent.training.metrics import MetricsLog
from memagent.training.optimization.learner import Learner, Sums
from memagent.training.optimization.policy import Policy
from memagent.training.ranks import Ranks
from memagent.training.settings import TrainingSettings
from memagent.training.step_statistics import update_means
from memagent.types import Engine


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
    """What a run's stages share. `optimizer` is a checkpoint's state, until a learner takes it over."""

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

    def learner(self, taken: int, betas: tuple[float, float] | None = None) -> Learner:
        """The learner of a stage that has `taken` steps: with the checkpoint's optimizer, or else a new one.

        `betas` are those of another stage than reinforcement.
        """
        learner = Learner(self.policy, self.settings.optimizer, self.ranks, betas)
        if self.optimizer and taken:
            learner.load_state(self.optimizer)
        self.optimizer = None
        return learner

    def means(self, sums: Sums) -> dict[str, float]:
        """The means of a step, from its sums over the tokens of all processes."""
        return update_means(self.ranks.gather([dict(sums)]))

    def report(self, stage: str, step: int, values: Mapping[str, float], haystack: str = "") -> None:
        """Write a line of metrics; `haystack` is that of an evaluation."""
        if self.metrics:
            self.metrics.write(stage, step, values, haystack)
            self.observer.row(stage, step, values)

    def saves(self, learner: Learner, steps: int) -> bool:
        """Whether to save after so many steps of a stage.

        Not while gradients are not finite: that would push out a checkpoint from before the weights broke.
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
            checkpoint.save(self.folder, steps, state, self.settings.keep)
        self.ranks.wait()
