"""Progress of a training run: a live table on a terminal, a plain line per step elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from memagent.cli.messages import tell
from memagent.reports.measures import measure

_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.-=*#"
_SPARK_CELLS = 48
# A step takes seconds or minutes: the time left is estimated from the steps of the last hour.
_SPEED_SECONDS = 3600.0
_COLUMNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "training": (
        ("reward", "reward_std", "groups_dropped", "failed", "cut", "unchanged"),
        ("loss", "kl", "entropy", "gradient_norm", "clip_low", "clip_high"),
        ("memory_tokens", "answer_tokens", "rollout_tokens_per_second", "update_tokens_per_second",
         "learning_rate", "memory_mib"),
    ),
    "warm_start": (("loss", "gradient_norm"), ("tokens", "update_seconds"), ("update_tokens_per_second",)),
}  # fmt: skip
_LINE: Mapping[str, tuple[str, ...]] = {
    "training": ("reward", "loss", "kl", "entropy", "memory_tokens", "cut", "unchanged",
                 "rollout_seconds", "update_seconds"),
    "warm_start": ("loss", "gradient_norm", "tokens", "update_seconds"),
}  # fmt: skip


class TrainingWatch:
    """Shows the progress of a run: in place on a terminal, elsewhere a line per step; nothing if `quiet`.

    As a context manager, it stops the live display at its end and leaves the last step visible.
    """

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._steps = 0
        self._rewards: list[float] = []
        self._step: tuple[str, int, Mapping[str, float]] | None = None
        self._evaluation = ""
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), TextColumn("passed,"),
            TimeRemainingColumn(), TextColumn("left"), console=console, speed_estimate_period=_SPEED_SECONDS,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._live = (
            Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None
        )

    def begin(self, first_step: int, steps: int, stage: str = "training") -> None:
        """Begin a stage of `steps` steps at `first_step`: 1, or the next step of a resumed run."""
        self._steps = steps
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(_noun(stage), total=steps, completed=first_step - 1)
        if self._live is None and first_step > 1:
            self._say(f"{_noun(stage)} resumes at step {first_step:,} of {steps:,}")
        self._refresh()

    def row(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Show a step, or an evaluation made after one."""
        if stage == "evaluation":
            self._evaluation = f"held-out score after step {step:,}: {_score(values)}"
            told = self._evaluation
        else:
            self._step = (stage, step, values)
            self._rewards += [values["reward"]] if "reward" in values else []
            if self._task is not None:
                self._bar.update(self._task, completed=step)
            told = f"{_noun(stage)}, step {step:,} of {self._steps:,}: {_told(stage, values)}"
        if self._live is None:
            self._say(told)
        self._refresh()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _say(self, line: str) -> None:
        if not self._quiet:
            tell(self._console, line)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(Group(*self._parts()))

    def _parts(self) -> list[RenderableType]:
        parts: list[RenderableType] = []
        if self._step:
            stage, step, values = self._step
            parts += [
                Text(f"{_noun(stage)}, step {step:,} of {self._steps:,}", style="bold"),
                _table(stage, values),
            ]
        if len(self._rewards) > 1:
            finite = [reward for reward in self._rewards if math.isfinite(reward)]
            line = sparkline(self._rewards, _ASCII_SPARKS if self._console.options.ascii_only else _SPARKS)
            ends = f" {min(finite):.3g} to {max(finite):.3g}" if finite else ""
            parts.append(Text.assemble("reward ", (line, "cyan"), ends))
        if self._evaluation:
            parts.append(Text(self._evaluation))
        return [*parts, self._bar]


def _table(stage: str, values: Mapping[str, float]) -> Table:
    """Labels and values, side by side in blocks."""
    blocks = _COLUMNS.get(stage, (tuple(values),))
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in blocks:
        table.add_column(style="dim")
        table.add_column(justify="right", min_width=8)
    for place in range(max(map(len, blocks))):
        cells: list[str] = []
        for block in blocks:
            name = block[place] if place < len(block) else ""
            known = name in values
            cells += _pair(stage, name, values[name]) if known else ("", "")
        table.add_row(*cells)
    return table


def sparkline(values: Sequence[float], marks: str = _SPARKS, cells: int = _SPARK_CELLS) -> str:
    """A line of at most `cells` marks, each the mean of as many values; a space if none is finite."""
    size = math.ceil(len(values) / cells)
    parts = [values[start : start + size] for start in range(0, len(values), size or 1)]
    means = [fmean(it) if (it := [one for one in part if math.isfinite(one)]) else math.nan for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, spread = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    scale = (len(marks) - 1) / spread if spread else 0.0
    return "".join(marks[round((mean - low) * scale)] if math.isfinite(mean) else " " for mean in means)


def _told(stage: str, values: Mapping[str, float]) -> str:
    names = [name for name in _LINE.get(stage, tuple(values)) if name in values]
    return ", ".join(" ".join(_pair(stage, name, values[name])) for name in names)


def _pair(stage: str, name: str, value: float) -> tuple[str, str]:
    known = measure(stage, name)
    return known.label, known.shown(value)


def _score(values: Mapping[str, float]) -> str:
    failed = f", {values['failed']:.0f} failed" if values.get("failed") else ""
    count = f" ({values['count']:.0f} examples{failed})" if "count" in values else ""
    return f"{values['score']:.1f} ± {values['half_width']:.1f}{count}"


def _noun(stage: str) -> str:
    return stage.replace("_", " ")
