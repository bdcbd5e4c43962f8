"""The picture of `compare.py`: score against time, and time against length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from memagent.reports import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the results of a comparison, as its JSON holds them, to a PNG."""

    def picture() -> Figure:
        figure, (scores, lengths) = drawing.panels(1, 2, 7.5, 5.5)
        _draw_scores(scores, results)
        _draw_lengths(lengths, [it for it in results if it["scaling"]])
        return figure

    drawing.save({file.stem: picture}, file.parent)


def _draw_scores(panel: Axes, results: Sequence[dict[str, Any]]) -> None:
    """Each reader at its mean seconds and its mean score; those of equal score stand apart by a little."""
    for number, it in enumerate(results):
        seconds = fmean(outcome["seconds"] for outcome in it["clean"])
        score = fmean(outcome["score"] for outcome in it["clean"])
        colour, marker = ("#0072B2", "o") if it["ours"] else ("#D55E00", "s")
        panel.plot([seconds], [score], marker, color=colour)
        up = number % 2 == 0
        panel.annotate(
            it["name"].removeprefix("memagent "),
            (seconds, score),
            textcoords="offset points",
            xytext=(0, 8 if up else -8),
            rotation=35 if up else -35,
            ha="left",
            va="bottom" if up else "top",
            fontsize=9,
            color=colour,
        )
    panel.set_xscale("log")
    panel.set_ylim(-0.15, 1.35)
    panel.set_xlabel("seconds a read")
    panel.set_ylabel("score")
    panel.set_title("Blue: memagent's workflows; orange: others")


def _draw_lengths(panel: Axes, results: Sequence[dict[str, Any]]) -> None:
    for number, it in enumerate(results):
        chunks = [outcome["chunks"] for outcome in it["scaling"]]
        seconds = [outcome["seconds"] for outcome in it["scaling"]]
        label = f"{it['name'].removeprefix('memagent ')} ({it['exponent']:.2f})"
        panel.plot(chunks, seconds, label=label, **drawing.style(number))
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("chunks of 5000 tokens")
    panel.set_ylabel("seconds a read")
    panel.set_title("Time by length (exponent)")
    panel.legend(fontsize=9)
