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

_STYLES = 8  # lines that `drawing.style` tells apart


def draw(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the results of a comparison, as its JSON holds them, to a PNG."""

    def picture() -> Figure:
        figure, (scores, lengths) = drawing.panels(1, 2, 7.5, 5.5)
        _draw_scores(scores, results)
        _draw_lengths(lengths, [it for it in results if it["scaling"]])
        return figure

    drawing.save({file.stem: picture}, file.parent)


def _draw_scores(panel: Axes, results: Sequence[dict[str, Any]]) -> None:
    """A bar for each reader, the fastest on top, with its score for each kind of problem."""
    kinds = list(dict.fromkeys(outcome["kind"] for outcome in results[0]["clean"]))
    ranked = sorted(results, key=lambda it: -fmean(outcome["seconds"] for outcome in it["clean"]))
    for place, it in enumerate(ranked):
        seconds = fmean(outcome["seconds"] for outcome in it["clean"])
        scores = (fmean(out["score"] for out in it["clean"] if out["kind"] == kind) for kind in kinds)
        panel.barh(place, seconds, color="#0072B2" if it["ours"] else "#E69F00")
        told = " / ".join(f"{score:.2f}" for score in scores)
        panel.annotate(
            told, (seconds, place), textcoords="offset points", xytext=(6, 0), va="center", fontsize=10
        )
    panel.set_yticks(range(len(ranked)), [it["name"] for it in ranked])
    panel.margins(x=0.3)
    panel.grid(visible=False, axis="y")
    panel.set_xlabel("seconds a read")
    panel.set_title(f"Time, and score for {' / '.join(kinds)}")


def _draw_lengths(panel: Axes, results: Sequence[dict[str, Any]]) -> None:
    for number, it in enumerate(results):
        chunks = [outcome["chunks"] for outcome in it["scaling"]]
        seconds = [outcome["seconds"] for outcome in it["scaling"]]
        label = f"{it['name'].removeprefix('memagent ')} ({it['exponent']:.2f})"
        again = {"markerfacecolor": "white"} if number >= _STYLES else {}
        panel.plot(chunks, seconds, label=label, **drawing.style(number) | again)
    panel.set_xscale("log")
    panel.set_yscale("log")
    if results:
        chunks = [outcome["chunks"] for outcome in results[0]["scaling"]]
        panel.set_xticks(chunks, [str(count) for count in chunks])
        panel.set_xticks([], minor=True)
    panel.set_xlabel("chunks of 5000 tokens")
    panel.set_ylabel("seconds a read")
    panel.set_title("Time by length (exponent)")
    panel.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
