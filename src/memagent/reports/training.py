"""A report on training runs: a table of rewards and held-out scores, and a picture of them over the steps.

It is made from what is in the runs' folders. What else was measured is in their metrics.jsonl, and in
TensorBoard and W&B.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from memagent.errors import SettingsError
from memagent.reports import drawing
from memagent.reports.folder import Pictures, as_page, as_text, cell, picture, table, write_folder
from memagent.storage import read_json
from memagent.training.metrics import SETTINGS_FILE, MetricsRow, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTE = """\
The reward is the mean over a step's attempts; the score is of held-out examples, in percent, with half of \
its 95% interval; the time is that of rollouts and updates. The best of many values is also the luckiest: \
`memagent eval` on other examples tells what a model is worth."""
_PICTURE = "training"
_PANELS = {
    ("warm_start", "loss"): "Warm start: loss, nats per token",
    ("training", "reward"): "Mean reward of a step's attempts",
    ("training", "equal_groups"): "Share of groups whose rewards are all equal",
    ("evaluation", "score"): "Held-out score, % (band: 95% interval)",
}
_MAX_EXACT = 50  # steps of a line that is not smoothed; a longer one is a moving mean over a 25th of it


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training run: its name in the report, and the contents of its folder."""

    name: str
    folder: Path
    settings: Mapping[str, Any]
    rows: tuple[MetricsRow, ...]

    @property
    def steps(self) -> int:
        """The number of training steps taken."""
        return max((row.step for row in self.rows if row.stage == "training"), default=0)

    @property
    def seconds(self) -> float:
        """How long rollouts and updates took together."""
        names = ("rollout_seconds", "update_seconds")
        return math.fsum(row.values[name] for row in self.rows for name in names if name in row.values)

    @property
    def tasks(self) -> list[str]:
        """The tasks whose rewards were measured."""
        names = {name for row in self.rows if row.stage == "training" for name in row.values}
        return sorted(name.removeprefix("reward/") for name in names if name.startswith("reward/"))

    def values(self, stage: str, name: str) -> dict[int, float]:
        """The finite values of a measure, by step."""
        values = {
            row.step: row.values[name] for row in self.rows if row.stage == stage and name in row.values
        }
        return {step: value for step, value in values.items() if math.isfinite(value)}


def load_runs(folders: Sequence[Path]) -> list[TrainingRun]:
    """Load runs, named after their folders; one that is given twice counts once.

    Raises `SettingsError` for a folder without a run's rows.
    """
    given = {folder.resolve(): folder for folder in folders}
    named = Counter(real.name for real in given)
    runs = [
        TrainingRun(
            name=real.name if named[real.name] == 1 else str(folder),
            folder=folder,
            settings=read_json(folder / SETTINGS_FILE),
            rows=tuple(read_metrics(folder)),
        )
        for real, folder in given.items()
    ]
    if empty := [run.name for run in runs if not run.rows]:
        raise SettingsError(f"no step yet in {', '.join(empty)}")
    return runs


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the report on the runs in `folders` to the folder `out`; returns the files.

    Raises `SettingsError` for a folder that holds no run, or if `out` cannot be written.
    """
    runs = load_runs(folders)
    return write_folder(out, as_json(runs), {_PICTURE: partial(_draw, runs)}, partial(as_markdown, runs))


def as_json(runs: Sequence[TrainingRun]) -> str:
    """The report as JSON, with the settings of each run."""
    described = {
        run.name: {
            "folder": str(run.folder),
            "steps": run.steps,
            "seconds": run.seconds,
            "reward": _summarise(run.values("training", "reward")),
            "tasks": {
                task: {
                    name: _summarise(run.values("training", f"{name}/{task}"))
                    for name in ("reward", "equal_groups")
                }
                for task in run.tasks
            },
            "score": _summarise(run.values("evaluation", "score")),
            "settings": run.settings,
        }
        for run in runs
    }
    return as_text({"runs": described})


def _summarise(values: Mapping[int, float]) -> dict[str, float] | None:
    """The first, best (highest) and last value; None if there are none."""
    if not values:
        return None
    best = max(values, key=lambda step: values[step])
    first, last = min(values), max(values)
    return {
        "first": values[first], "best": values[best], "best_step": best, "last": values[last],
        "last_step": last,
    }  # fmt: skip


def as_markdown(runs: Sequence[TrainingRun], pictures: Pictures | None) -> str:
    """The report as Markdown, with the picture if it was drawn; `pictures` is None without matplotlib."""
    heads = [f"{what}, {when}" for what in ("reward", "score") for when in ("first", "best", "last")]
    parts = [
        "# Training\n",
        *map(_introduce, runs),
        f"\n{_NOTE}\n",
        table(["run", "time", *heads], map(_row, runs)),
        *([_table_of_tasks(runs)] if any(len(run.tasks) > 1 for run in runs) else []),
        picture(_PICTURE, pictures),
    ]
    return as_page(parts, pictures)


def _table_of_tasks(runs: Sequence[TrainingRun]) -> str:
    """The reward of each task, and the share of its groups whose rewards are all equal."""
    whens = {"reward": ("first", "best", "last"), "equal groups": ("first", "highest", "last")}
    heads = [f"{what}, {when}" for what, times in whens.items() for when in times]
    rows = [
        [
            run.name,
            task,
            *_cells(run.values("training", f"reward/{task}"), ".3f"),
            *_cells(run.values("training", f"equal_groups/{task}"), ".2f"),
        ]
        for run in runs
        for task in run.tasks
    ]
    return "\n" + table(["run", "task", *heads], rows)


def _introduce(run: TrainingRun) -> str:
    model = run.settings.get("policy", {}).get("model") or "the default model"
    planned = run.settings.get("steps", run.steps)
    missing = "" if run.steps >= planned else f" **Not finished: {planned - run.steps:,} steps are missing.**"
    failed, cut = (sum(run.values("training", name).values()) for name in ("failed", "failed_cut"))
    lost = (
        f" {failed:,.0f} attempts failed, and count as 0: {cut:,.0f} of them at the limit of tokens."
        if failed
        else ""
    )
    return f"- {cell(run.name)}: {cell(str(model))}, {run.steps:,} of {planned:,} steps.{missing}{lost}"


def _row(run: TrainingRun) -> list[str]:
    score, half = run.values("evaluation", "score"), run.values("evaluation", "half_width")
    last = max(score, default=0)
    interval = f" ± {half[last]:.1f}" if last in half else ""
    return [
        run.name,
        str(timedelta(seconds=round(run.seconds))),
        *_cells(run.values("training", "reward"), ".3f"),
        *_cells(score, ".1f", interval),
    ]


def _cells(values: Mapping[int, float], digits: str, interval: str = "") -> list[str]:
    if (summary := _summarise(values)) is None:
        return ["–"] * 3
    best = f"{summary['best']:{digits}} (step {summary['best_step']:,})"
    return [f"{summary['first']:{digits}}", best, f"{summary['last']:{digits}}{interval}"]


def _draw(runs: Sequence[TrainingRun]) -> Figure | None:
    """A panel for each of `_PANELS` that was measured, with a line for each run."""
    parts = [part for part in _PANELS if any(run.values(*part) for run in runs)]
    if not parts:
        return None
    figure, panels = drawing.panels(1, len(parts), 6.5, 4.5)
    for part, panel in zip(parts, panels, strict=True):
        for number, run in enumerate(runs):
            _draw_line(panel, drawing.style(number), run, *part)
        panel.set_title(_PANELS[part], loc="left")
        panel.set_xlabel("step")
    if len(runs) > 1:
        drawing.legend(figure, max(panels, key=lambda panel: len(panel.lines)))
    return figure


def _draw_line(panel: Axes, style: dict[str, Any], run: TrainingRun, stage: str, name: str) -> None:
    values = run.values(stage, name)
    if not values:
        return
    half = run.values(stage, "half_width")
    window = 1 if half or len(values) <= _MAX_EXACT else len(values) // 25 | 1
    if window > 1:
        style["marker"] = ""
        panel.plot([*values], [*values.values()], color=style["color"], alpha=0.2, linewidth=0.8)
    panel.plot([*values], smooth([*values.values()], window), label=drawing.plain(run.name), **style)
    if half:
        low = [max(0.0, value - half.get(step, 0.0)) for step, value in values.items()]
        high = [min(100.0, value + half.get(step, 0.0)) for step, value in values.items()]
        panel.fill_between([*values], low, high, color=style["color"], alpha=0.2, linewidth=0)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The moving mean over `window` values, over fewer at the ends."""
    before, after = (window - 1) // 2, window // 2 + 1
    return [fmean(values[max(0, index - before) : index + after]) for index in range(len(values))]
