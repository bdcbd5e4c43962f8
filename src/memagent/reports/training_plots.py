"""The pictures of training runs: a panel for each measure, over the training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from memagent.reports import drawing
from memagent.reports.curves import TrainingRun, by_series, curve, score_curve, smoothed
from memagent.reports.measures import measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHORT = 50  # steps: a curve with no more is not smoothed
_PARTS = 25  # of a longer run; its line is the moving mean over one of them
_FEW = 20  # points: on a line with no more, each has a marker


@dataclass(frozen=True, slots=True)
class _Panel:
    """What is drawn in a panel, and its title."""

    name: str
    title: str
    stage: str = "training"


_PANELS: Mapping[str, tuple[_Panel, ...]] = {
    "optimisation": (
        _Panel("loss", "loss"),
        _Panel("kl", "KL from the reference, nats a token"),
        _Panel("entropy", "entropy, nats a token"),
        _Panel("gradient_norm", "gradient norm"),
    ),
    "clipping": (
        _Panel("clip_low", "ratio clipped from below, % of tokens"),
        _Panel("clip_high", "ratio clipped from above, % of tokens"),
        _Panel("mismatch", "policy against sampler, mean |Δ log p|"),
    ),
    "memory": (
        _Panel("memory_tokens", "reply of an update, tokens"),
        _Panel("answer_tokens", "answer, tokens"),
        _Panel("cut", "updates cut at their limit, %"),
        _Panel("unchanged", "updates that change nothing, %"),
    ),
    "groups": (
        _Panel("reward_std", "spread of rewards (standard deviation)"),
        _Panel("groups_dropped", "groups dropped for equal rewards"),
        _Panel("failed", "failed attempts"),
    ),
    "speed": (
        _Panel("rollout_tokens_per_second", "rollout, tokens/s"),
        _Panel("update_tokens_per_second", "update, tokens/s"),
        _Panel("memory_mib", "peak memory, MiB"),
    ),
    "warm start": (
        _Panel("loss", "loss", "warm_start"),
        _Panel("gradient_norm", "gradient norm", "warm_start"),
    ),
}


def pictures(runs: Sequence[TrainingRun]) -> dict[str, Callable[[], Figure | None]]:
    """Functions that draw the pictures, by name; one returns None if nothing that it shows was measured."""
    return {
        "reward": partial(_reward, runs),
        "held-out score": partial(_scores, runs),
        **{name: partial(_small, name, parts, runs) for name, parts in _PANELS.items()},
    }


def _reward(runs: Sequence[TrainingRun]) -> Figure | None:
    """The reward of all runs in one panel."""
    rewards = [reward for run in runs for reward in run.values("training", "reward").values()]
    if not rewards:
        return None
    figure, (panel,) = drawing.panels(1, 1, 8.5, 5)
    _curves(panel, _Panel("reward", "Reward in training"), runs)
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    panel.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
    panel.set_ylabel("mean reward of a step's attempts")
    panel.set_xlabel(f"training step{_note(runs, 'training')}")
    _legend(figure, [panel], runs)
    return figure


def _scores(runs: Sequence[TrainingRun]) -> Figure | None:
    """The held-out score of all runs in one panel, with intervals."""
    series = by_series(runs)
    if not any(map(score_curve, series.values())):
        return None
    figure, (panel,) = drawing.panels(1, 1, 8.5, 5)
    for number, (name, members) in enumerate(series.items()):
        style, points = drawing.style(number), score_curve(members)
        steps = [it.step for it in points]
        panel.plot(steps, [it.mean for it in points], label=drawing.plain(name), **style)
        drawing.band(panel, steps, [it.low for it in points], [it.high for it in points], style["color"])
    _axes(panel, "Held-out score")
    panel.set_ylim(-3, 103)
    bands = dict.fromkeys(
        "lowest to highest seed" if len(it) > 1 else "95% interval" for it in series.values()
    )
    panel.set_ylabel("score, %")
    panel.set_xlabel(f"training step (band: {' or '.join(bands)})")
    _legend(figure, [panel], runs)
    return figure


def _small(name: str, parts: Sequence[_Panel], runs: Sequence[TrainingRun]) -> Figure | None:
    """A panel for each of the parts that any run has measured."""
    parts = [part for part in parts if any(run.values(part.stage, part.name) for run in runs)]
    if not parts:
        return None
    columns = len(parts) if len(parts) < 4 else 2
    figure, panels = drawing.panels(ceil(len(parts) / columns), columns, 6 if columns < 3 else 5, 3.5)
    for part, panel in zip(parts, panels, strict=False):
        _curves(panel, part, runs)
    stage = parts[0].stage
    figure.suptitle(name.capitalize(), x=0.01, ha="left", fontsize=14)
    figure.supxlabel(f"{stage.replace('_', ' ')} step{_note(runs, stage)}", fontsize=12)
    _legend(figure, panels, runs)
    return figure


def _curves(panel: Axes, part: _Panel, runs: Sequence[TrainingRun]) -> None:
    """A line for each series. A single run has its unsmoothed values behind it; seeds have a band."""
    scale = 100 if measure(part.stage, part.name).unit == "share" else 1
    window = _window(runs, part.stage)
    series = by_series(runs)
    highest = 0.0
    for number, (name, members) in enumerate(series.items()):
        points = curve(members, part.stage, part.name)
        if not points:
            continue
        style, steps = drawing.style(number), [it.step for it in points]
        heights = zip(*((it.mean, it.low, it.high) for it in points), strict=True)
        means, low, high = ([scale * value for value in it] for it in heights)
        highest = max(highest, *high)
        if len(members) > 1:
            low, high = smoothed(low, window), smoothed(high, window)
            panel.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
        elif window > 1:
            faint = 0.3 if len(series) == 1 else 0.18
            panel.plot(steps, means, color=style["color"], alpha=faint, linewidth=0.8)
        if len(points) > 1 and (window > 1 or len(points) > _FEW):
            style["marker"] = ""
        panel.plot(steps, smoothed(means, window), label=drawing.plain(name), **style)
    if part.name != "loss":  # all others begin at 0, and the reward has limits of its own
        panel.set_ylim(0, 1.08 * highest if highest > 0 else 1)
    _axes(panel, part.title)


def _window(runs: Sequence[TrainingRun], stage: str) -> int:
    """Over how many steps lines are smoothed: 1 in short runs, an odd number in long ones."""
    steps = max(len(run.values(stage, name)) for run in runs for name in run.names(stage))
    return 1 if steps <= _SHORT else steps // _PARTS | 1


def _note(runs: Sequence[TrainingRun], stage: str) -> str:
    """What lines and bands mean, for the label of the step axis."""
    window = _window(runs, stage)
    notes = [f"line: mean over {window} steps"] if window > 1 else []
    if any(len(it) > 1 for it in by_series(runs).values()):
        notes.append("band: lowest to highest seed")
    return f" ({'; '.join(notes)})" if notes else ""


def _axes(panel: Axes, title: str) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    panel.set_title(title, loc="left", fontsize=12)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))


def _legend(figure: Figure, panels: Sequence[Axes], runs: Sequence[TrainingRun]) -> None:
    """The names of the lines, if there are several runs, from the panel that has most of them."""
    if len(by_series(runs)) > 1:
        drawing.legend(figure, max(panels, key=lambda panel: len(panel.get_legend_handles_labels()[1])))
