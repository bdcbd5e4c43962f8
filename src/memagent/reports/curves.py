"""Training runs as curves over their steps. Runs that differ only in the seed are one curve with a band.

They are recognised by their folders' names: reader-seed0, reader-seed1 and so on are the seeds of reader.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from memagent.errors import SettingsError
from memagent.evaluation.statistics import grouped
from memagent.reports.measures import STAGES
from memagent.storage import read_json
from memagent.training.metrics import SETTINGS_FILE, MetricsRow, read_metrics

_SEED = re.compile(r"(.+)[-_]seed[-_]?\d+")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training run: its name and its curve's name in the report, and the contents of its folder."""

    name: str
    series: str
    folder: Path
    settings: Mapping[str, Any]
    rows: tuple[MetricsRow, ...]

    @property
    def steps(self) -> int:
        """The number of training steps taken."""
        return max((row.step for row in self.rows if row.stage == "training"), default=0)

    def names(self, stage: str) -> list[str]:
        """What was measured in a stage: known measures in their order, then others sorted."""
        found = {name for row in self.rows if row.stage == stage for name in row.values}
        known = [name for name in STAGES.get(stage, {}) if name in found]
        return [*known, *sorted(found.difference(known))]

    def values(self, stage: str, name: str) -> dict[int, float]:
        """The finite values of a measure, by step."""
        found = {row.step: row.values[name] for row in self.rows if row.stage == stage and name in row.values}
        return {step: value for step, value in found.items() if math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class Point:
    """A step of a curve: the mean over its runs, and the range of the runs or of a score's interval."""

    step: int
    mean: float
    low: float
    high: float


def load_runs(folders: Sequence[Path]) -> list[TrainingRun]:
    """Load runs, named after their folders; one that is given twice counts once.

    Raises `SettingsError` for a folder without a run's rows.
    """
    given = {folder.resolve(): folder for folder in folders}
    named = Counter(real.name for real in given)
    names = [real.name if named[real.name] == 1 else str(it) for real, it in given.items()]
    stems = Counter(stem(name) for name in names)
    runs = [
        TrainingRun(
            name=name,
            series=stem(name) if stems[stem(name)] > 1 else name,
            folder=folder,
            settings=_settings(folder),
            rows=tuple(read_metrics(folder)),
        )
        for name, folder in zip(names, given.values(), strict=True)
    ]
    if empty := [run.name for run in runs if not run.rows]:
        raise SettingsError(f"no step yet in {', '.join(empty)}")
    return runs


def stem(name: str) -> str:
    """A run's name without its seed."""
    found = _SEED.fullmatch(name)
    return found[1] if found else name


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS_FILE
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise SettingsError(f"{path} holds no settings of a run: it is not an object")
    if not isinstance(settings.get("steps", 0), int) or not isinstance(settings.get("policy", {}), dict):
        raise SettingsError(f"{path} holds no settings of a run: steps must be a number, and policy a table")
    return settings


def by_series(runs: Sequence[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """The runs of each curve."""
    return grouped(runs, lambda run: run.series)


def curve(runs: Sequence[TrainingRun], stage: str, name: str) -> list[Point]:
    """By step, the mean of the runs that have it, with their lowest and highest value."""
    values = [run.values(stage, name) for run in runs]
    steps = sorted({step for it in values for step in it})
    points = []
    for step in steps:
        found = [it[step] for it in values if step in it]
        points.append(Point(step, fmean(found), min(found), max(found)))
    return points


def score_curve(runs: Sequence[TrainingRun]) -> list[Point]:
    """The held-out score in percent: for one run with its 95% interval, for several as in `curve`."""
    points = curve(runs, "evaluation", "score")
    if len(runs) > 1:
        return points
    half = runs[0].values("evaluation", "half_width")
    return [
        Point(it.step, it.mean, max(0.0, it.mean - reach), min(100.0, it.mean + reach))
        for it in points
        for reach in [half.get(it.step, 0.0)]
    ]


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The moving mean over `window` values, over fewer at the ends."""
    before, after = (window - 1) // 2, window // 2 + 1
    return [fmean(values[max(0, place - before) : place + after]) for place in range(len(values))]


def measured(runs: Sequence[TrainingRun]) -> list[tuple[str, str]]:
    """The stage and name of everything that any of the runs has measured, without repeats."""
    return list(dict.fromkeys((stage, name) for stage in STAGES for run in runs for name in run.names(stage)))
