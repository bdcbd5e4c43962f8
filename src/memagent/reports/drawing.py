"""The pictures of reports, with matplotlib (the extra `report`) and without a display.

Those of an evaluation are here: scores and costs by length, scores by the answer's place.
Colours are Okabe and Ito's, which the colour-blind can tell apart; every line also has its own marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent.evaluation import statistics
from memagent.evaluation.statistics import Scored, Size, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_PANELS_PER_ROW = 4
_BESIDE = 0.05  # how far apart lines stand, in doublings of the length
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", "-.", ":")
_STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 2,
    "lines.markersize": 7,
    "figure.dpi": 150,
}


def save(pictures: Mapping[str, Callable[[], Figure | None]], out: Path) -> dict[str, Path] | None:
    """Draw the pictures into `out`, and return each one's file by name; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    drawn = {}
    with matplotlib.rc_context(_STYLE):
        for name, picture in pictures.items():
            if figure := picture():
                drawn[name] = out / f"{name.replace(' ', '_')}.png"
                figure.savefig(drawn[name], bbox_inches="tight", metadata={"Software": None})
    return drawn


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels of the given size in inches, without pyplot's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, index + 1) for index in range(rows * columns)]


def plain(name: str) -> str:
    """A name for matplotlib, which takes dollars for formulas and hides what begins with an underscore."""
    text = name.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of the line with this number."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def legend(figure: Figure, panel: Axes) -> None:
    """The names of a panel's lines, beside all panels."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, handlelength=2.6)


def pictures(results: Sequence[Scored], series: Sequence[str]) -> dict[str, Callable[[], Figure | None]]:
    """Functions that draw the pictures, by name; one returns None if the rows do not allow its picture."""
    drawn = {"score by length": _scores, "score by depth": _depths, "cost by length": _costs}
    return {name: partial(draw, results, series) for name, draw in drawn.items()}


def _scores(results: Sequence[Scored], series: Sequence[str]) -> Figure:
    """A line for each workflow over the document's length, with the interval of each of its points."""
    summaries = statistics.by_size(results)
    kinds = [kind for kind, _ in groupby(sorted({size for _, size in summaries}), lambda size: size.kind)]
    figure, axes = panels(1, len(kinds), 8, 5)
    for kind, panel in zip(kinds, axes, strict=True):
        points = {key: summary for key, summary in summaries.items() if key[1].kind == kind}
        for number, name in enumerate(series):
            line = [(size, summary) for (of, size), summary in points.items() if of == name]
            aside = 2 ** (_BESIDE * (number - (len(series) - 1) / 2))  # so that no interval hides another
            below = [max(0.0, 100 * (summary.score - summary.low)) for _, summary in line]
            above = [max(0.0, 100 * (summary.high - summary.score)) for _, summary in line]
            panel.errorbar(
                [aside * _length(size, summary) for size, summary in line],
                [100 * summary.score for _, summary in line],
                [below, above],
                label=plain(name),
                capsize=3,
                elinewidth=1.2,
                **style(number),
            )
        _lengths_axis(panel, points)
        panel.set_ylim(-3, 103)
        panel.set_ylabel("score, % (bars: 95% interval)")
    axes[0].set_title("Score by length of the document", loc="left")
    legend(figure, axes[0])
    return figure


def _costs(results: Sequence[Scored], series: Sequence[str]) -> Figure:
    """Tokens and seconds for one attempt, both axes logarithmic: a straight line of slope 1 is linear."""
    summaries = statistics.by_size(results)
    costs: tuple[tuple[str, Callable[[Summary], float | None]], ...] = (
        ("tokens for one attempt", lambda summary: summary.tokens),
        ("seconds for one attempt", lambda summary: summary.seconds),
    )
    figure, axes = panels(1, 2, 7.5, 4.8)
    for panel, (label, cost) in zip(axes, costs, strict=True):
        for number, name in enumerate(series):
            points = sorted(
                (summary.length_tokens, spent)
                for (of, _), summary in summaries.items()
                if of == name and (spent := cost(summary))
            )
            exponent = statistics.growth(points)
            grows = "" if exponent is None else f": length$^{{{exponent:.2f}}}$"
            panel.plot(
                *zip(*points, strict=True) if points else ((), ()), label=plain(name) + grows, **style(number)
            )
        _costs_axis(panel)
        _lengths_axis(panel, summaries)
        panel.set_ylabel(label)
        if panel.lines:
            panel.legend(frameon=False, fontsize=11, loc="upper left", bbox_to_anchor=(1, 1),
                         alignment="left", title="fitted growth", title_fontsize=11)  # fmt: skip
    axes[0].set_title("Cost by length of the document", loc="left")
    return figure


def _depths(results: Sequence[Scored], series: Sequence[str]) -> Figure | None:
    """A map for each workflow: the place of the answer down, the length across, the score as colour."""
    summaries = statistics.by_depth(results)
    if not summaries:
        return None
    names = [name for name in series if any(of == name for of, _, _ in summaries)]
    sizes = sorted({size for _, size, _ in summaries})
    columns = min(len(names), _MAX_PANELS_PER_ROW)
    rows = ceil(len(names) / columns)
    figure, axes = panels(rows, columns, max(2.8, 1 + 0.65 * len(sizes)), 4)
    image = None
    for index, (panel, name) in enumerate(zip(axes, names, strict=False)):
        image = _draw_map(panel, name, sizes, summaries)
        panel.set_ylabel("" if index % columns else "place of the answer, %")
        panel.tick_params(labelleft=index % columns == 0)
    for spare in axes[len(names) :]:
        spare.remove()
    if image is not None:
        figure.colorbar(image, ax=axes[: len(names)], label="score, %", shrink=0.6, aspect=30)
    figure.suptitle("Score by place of the answer in the document", x=0.01, ha="left", fontsize=13)
    return figure


def _draw_map(
    panel: Axes, name: str, sizes: Sequence[Size], summaries: dict[tuple[str, Size, int], Summary]
) -> Any:
    bins = range(statistics.DEPTH_BINS)
    scores = [[_percent(summaries.get((name, size, depth))) for size in sizes] for depth in bins]
    panel.set_facecolor("#f2f2f2")
    panel.patch.set_hatch("///")
    panel.patch.set_edgecolor("#cccccc")
    image = panel.imshow(scores, vmin=0, vmax=100, cmap="cividis", aspect="auto")
    for depth, line in enumerate(scores):
        for column, value in enumerate(line):
            if value == value:  # not NaN
                ink = "white" if value < 55 else "black"
                panel.text(column, depth, f"{value:.0f}", ha="center", va="center", fontsize=10, color=ink)
    panel.grid(visible=False)
    panel.set_title(plain(name), loc="left", fontsize=12)
    panel.set_xticks(range(len(sizes)), [str(size) for size in sizes], rotation=45 if len(sizes) > 6 else 0)
    step = 100 // statistics.DEPTH_BINS
    panel.set_yticks(list(bins), [f"{step * depth}–{step * (depth + 1)}" for depth in bins])
    panel.set_xlabel("length")
    return image


def _percent(summary: Summary | None) -> float:
    return float("nan") if summary is None else 100 * summary.score


def _length(size: Size, summary: Summary) -> float:
    """A size's place on the axis: the tokens requested, or else the mean tokens of its documents."""
    return size.number if size.kind == "tokens" else summary.length_tokens


def _lengths_axis(panel: Axes, points: dict[tuple[str, Size], Summary]) -> None:
    """A logarithmic axis with a tick at each size."""
    from matplotlib.ticker import NullFormatter, NullLocator

    ticks = {size: _length(size, summary) for (_, size), summary in points.items()}
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(ticks.values()), [str(size).removesuffix(" documents") for size in ticks])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())
    documents = any(size.kind == "documents" for size in ticks)
    panel.set_xlabel("length of the document, " + ("documents" if documents else "tokens"))


def _costs_axis(panel: Axes) -> None:
    """A logarithmic axis with its numbers written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    )
