"""A report on training runs: report.md, report.json and pictures, made from what is in their folders.

The same metrics always give the same report. Pictures need the extra `report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from memagent.reports import training_plots as plots
from memagent.reports.curves import Point, TrainingRun, by_series, curve, load_runs, measured, score_curve
from memagent.reports.folder import Pictures, as_page, as_text, cell, picture, table, write_folder
from memagent.reports.measures import measure
from memagent.training.settings import TrainingSettings

_OUTCOMES = """\
The reward is the mean over a step's attempts; the score is of held-out examples, in percent, with half of \
its 95% interval; the time is that of rollouts and updates. The best of many values is also the luckiest: \
`memagent eval` on other examples tells what a model is worth."""
_SECTIONS = {
    "optimisation": "The loss is near 0 whatever is learned, since a group's advantages all but cancel. "
    "Signs of trouble are a KL that runs away, an entropy that falls to 0, and spikes of the gradient norm.",
    "clipping": "How many tokens had a ratio beyond its bounds. With one update for each step's rollouts the "
    "ratio is 1, except where policy and sampler compute differently: that should stay near 0.",
    "memory": "Updates that are cut at their limit have lost their end: they should become rare.",
    "groups": "Groups whose rewards are all equal teach nothing and are dropped. Where most are, the "
    "examples are too hard or too easy.",
    "speed": "Tokens that were sampled, and tokens that were trained on, for each second spent on it.",
    "warm start": "Imitation before reinforcement; its steps are counted separately.",
}
_PREFIXES = {"warm_start": "warm start: ", "training": "", "evaluation": "held out: "}


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write the report on the runs in `folders` to the folder `out`; returns the files.

    Raises `SettingsError` for a folder that holds no run, or if `out` cannot be written.
    """
    runs = load_runs(folders)
    return write_folder(out, as_json(runs), plots.pictures(runs), partial(as_markdown, runs))


def as_json(runs: Sequence[TrainingRun]) -> str:
    """Everything that the report says, as JSON. A curve's points are step, mean, lowest and highest."""
    curves = [
        {"series": series, "stage": stage, "measure": name, "points": [astuple(it) for it in points]}
        for series, members in by_series(runs).items()
        for stage, name in measured(members)
        if (points := _curve(members, stage, name))
    ]
    return as_text({"runs": {run.name: _as_json(run) for run in runs}, "curves": curves})


def _as_json(run: TrainingRun) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "series": run.series,
        "steps": run.steps,
        "seconds": _seconds(run),
        "reward": _told(run, "training", "reward"),
        "score": _told(run, "evaluation", "score"),
        "settings": run.settings,
    }


def _curve(runs: Sequence[TrainingRun], stage: str, name: str) -> list[Point]:
    return score_curve(runs) if (stage, name) == ("evaluation", "score") else curve(runs, stage, name)


def _told(run: TrainingRun, stage: str, name: str) -> dict[str, float] | None:
    """The first, best (highest) and last value; None if nothing was measured."""
    values = run.values(stage, name)
    if not values:
        return None
    best = max(values, key=lambda step: values[step])
    first, last = min(values), max(values)
    return {
        "first": values[first], "best": values[best], "best_step": best, "last": values[last],
        "last_step": last,
    }  # fmt: skip


def _seconds(run: TrainingRun) -> float:
    """How long rollouts and updates took together."""
    names = [
        (stage, name) for stage, name in measured([run]) if name in ("rollout_seconds", "update_seconds")
    ]
    return sum(sum(run.values(stage, name).values()) for stage, name in names)


def as_markdown(runs: Sequence[TrainingRun], pictures: Pictures | None) -> str:
    """The report as Markdown, with the pictures that were drawn; None if none could be."""
    parts = [
        "# Training\n",
        *map(_run, runs),
        f"\n## Reward and held-out score\n\n{_OUTCOMES}\n",
        _outcomes(runs),
        *(picture(name, pictures) for name in ("reward", "held-out score")),
        f"## Settings\n\n{_settings(runs)}",
        *(
            f"## {name.capitalize()}\n\n{told}\n\n{shown}"
            for name, told in _SECTIONS.items()
            if (shown := picture(name, pictures))
        ),
        "## First and last values\n",
        _values(runs),
    ]
    return as_page(parts, pictures)


def _run(run: TrainingRun) -> str:
    model = run.settings.get("policy", {}).get("model") or "the embedded model"
    planned = run.settings.get("steps", run.steps)
    behind = "" if run.steps >= planned else f" **Not finished: {planned - run.steps:,} steps are missing.**"
    failed = sum(run.values("training", "failed").values())
    lost = f" {failed:,.0f} attempts failed, and count as 0{_causes(run, failed)}." if failed else ""
    return f"- {cell(run.name)}: {cell(str(model))}, {run.steps:,} of {planned:,} steps.{behind}{lost}"


def _causes(run: TrainingRun, failed: float) -> str:
    """Why attempts failed, if the run recorded it: their last reply held no answer."""
    cut = run.values("training", "failed_cut")
    if not cut:
        return ""
    limited = sum(cut.values())
    empty = failed - limited
    return f": {limited:,.0f} without an answer at its limit of tokens, {empty:,.0f} with an empty one"


def _outcomes(runs: Sequence[TrainingRun]) -> str:
    """A row per run: its time, and the first, best and last values of reward and score."""
    rows = []
    for run in runs:
        reward, score = _told(run, "training", "reward"), _told(run, "evaluation", "score")
        half = run.values("evaluation", "half_width")
        reach = f" ± {half[int(score['last_step'])]:.1f}" if score and score["last_step"] in half else ""
        rows.append(
            [
                run.name,
                str(timedelta(seconds=round(_seconds(run)))),
                *_cells(reward, ".3f"),
                *_cells(score, ".1f", reach),
            ]
        )
    heads = [
        "run",
        "time",
        *(f"{what}, {when}" for what in ("reward", "score") for when in ("first", "best", "last")),
    ]
    return table(heads, rows)


def _cells(told: Mapping[str, float] | None, digits: str, reach: str = "") -> list[str]:
    if told is None:
        return ["–"] * 3
    best = f"{told['best']:{digits}} (step {told['best_step']:,})"
    return [f"{told['first']:{digits}}", best, f"{told['last']:{digits}}{reach}"]


def _settings(runs: Sequence[TrainingRun]) -> str:
    """A table of the settings that differ from the defaults in any run; seeds share a column."""
    defaults = _flat(TrainingSettings().recorded())
    series = {name: [_flat(run.settings) for run in members] for name, members in by_series(runs).items()}
    found = [flat for members in series.values() for flat in members]
    known = dict.fromkeys(name for flat in (defaults, *found) for name in flat)
    names = [name for name in known if any(flat.get(name) != defaults.get(name) for flat in found)]
    rows = []
    for name in names:
        values = [dict.fromkeys(_value(flat.get(name)) for flat in members) for members in series.values()]
        rows.append([name, _value(defaults.get(name)), *map(", ".join, values)])
    if not rows:
        return "All are the defaults.\n"
    return table(["setting", "default", *series], rows, texts=2 + len(series))


def _flat(settings: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{place}{name}.") if isinstance(value, dict) else {f"{place}{name}": value}
    return flat


def _value(value: Any) -> str:
    if value in (None, []):
        return "–"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _values(runs: Sequence[TrainingRun]) -> str:
    """A table of each measure's first and last value, by series; means over seeds."""
    series = by_series(runs)
    rows = []
    for stage, name in measured(runs):
        known = measure(stage, name)
        curves = [curve(members, stage, name) for members in series.values()]
        label = _PREFIXES[stage] + known.label + (f", {known.suffix}" if known.suffix else "")
        ends = [f"{known.number(it[0].mean)} → {known.number(it[-1].mean)}" if it else "–" for it in curves]
        rows.append([label, *ends])
    return table(["measure", *series], rows)
