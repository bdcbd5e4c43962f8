"""Progress of a training run: a line per step, and on a terminal the time left below them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from memagent.cli.messages import tell

# A step takes seconds or minutes: the time left is estimated from the steps of the last hour.
_SPEED_SECONDS = 3600.0
_LINE = {
    "reward": "reward {:.3g}",
    "loss": "loss {:.3g}",
    "kl": "KL {:.3g}",
    "entropy": "entropy {:.3g}",
    "gradient_norm": "gradient norm {:.3g}",
    "memory_tokens": "memory {:,.0f} tokens",
    "cut": "updates cut {:.1%}",
    "unchanged": "unchanged {:.1%}",
    "tokens": "trained on {:,.0f} tokens",
    "rollout_seconds": "rollout time {:,.1f} s",
    "update_seconds": "update time {:,.1f} s",
}
"""What a step's line says, as far as it was measured."""


class TrainingWatch:
    """Shows the progress of a run on a console, or nothing if `quiet`. Use it as a context manager."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._steps = 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), TextColumn("passed,"),
            TimeRemainingColumn(), TextColumn("left"), console=console, speed_estimate_period=_SPEED_SECONDS,
            disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None

    def begin(self, first_step: int, steps: int, stage: str = "training") -> None:
        """Begin a stage of `steps` steps at `first_step`: 1, or the next step of a resumed run."""
        self._steps = steps
        if self._task is not None:
            self._bar.remove_task(self._task)
        name = stage.replace("_", " ")
        self._task = self._bar.add_task(name, total=steps, completed=first_step - 1)
        if first_step > 1:
            self._say(f"{name} resumes at step {first_step:,} of {steps:,}")

    def row(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Show a step, or an evaluation made after one."""
        if stage == "evaluation":
            self._say(f"held-out score after step {step:,}: {_score(values)}")
            return
        if self._task is not None:
            self._bar.update(self._task, completed=step)
        measured = ", ".join(text.format(values[name]) for name, text in _LINE.items() if name in values)
        self._say(f"{stage.replace('_', ' ')}, step {step:,} of {self._steps:,}: {measured}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()

    def _say(self, line: str) -> None:
        if not self._quiet:
            tell(self._console, line)


def _score(values: Mapping[str, float]) -> str:
    failed = f", {values['failed']:.0f} failed" if values.get("failed") else ""
    count = f" ({values['count']:.0f} examples{failed})" if "count" in values else ""
    return f"{values['score']:.1f} ± {values['half_width']:.1f}{count}"
