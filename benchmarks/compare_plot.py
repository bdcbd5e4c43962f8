"""The plots of `compare.py`: time and score, and time against length.

`python compare_plot.py RECORD PNG` draws them again from a record. Hatching tells peers from ours even in
greyscale. Reads that ask ahead are left out: their lines would cover that of `map_reduce`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from memagent.reports import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_TIMES = 4
_STYLES = 8  # lines that `drawing.style` tells apart
_OURS: dict[str, Any] = {"color": "#0072B2"}
_PEERS: dict[str, Any] = {"color": "#F0C870", "hatch": "///", "edgecolor": "#333333"}


def draw(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the results in a comparison's JSON: a PNG of that name, and one by length."""
    results = [result for result in results if not result["name"].endswith(" ahead")]
    scaled = [result for result in results if result["exponent"] is not None]

    def scores() -> Figure:
        figure, (panel,) = drawing.panels(1, 1, 7.5, 6)
        _draw_scores(panel, results)
        return figure

    def lengths() -> Figure | None:
        if not scaled:
            return None
        figure, (panel,) = drawing.panels(1, 1, 8.5, 5.5)
        _draw_lengths(panel, scaled)
        return figure

    drawing.save({file.stem: scores, f"{file.stem}-by-length": lengths}, file.parent)


def _draw_scores(panel: Axes, results: Sequence[dict[str, Any]]) -> None:
    """A bar for each reader, the fastest on top, with its score for each kind of problem.

    A bar many times longer than most is cut off and labelled with its seconds.
    """
    kinds = list(dict.fromkeys(outcome["kind"] for outcome in results[0]["clean"]))
    ranked = sorted(results, key=lambda result: -fmean(outcome["seconds"] for outcome in result["clean"]))
    labelled = {True: "ours", False: "other people's"}
    longest = _MAX_TIMES * median(
        fmean(outcome["seconds"] for outcome in result["clean"]) for result in results
    )
    for position, item in enumerate(ranked):
        whole = fmean(outcome["seconds"] for outcome in item["clean"])
        seconds = min(whole, longest)
        scores = (fmean(out["score"] for out in item["clean"] if out["kind"] == kind) for kind in kinds)
        how = _OURS if item["ours"] else _PEERS
        panel.barh(position, seconds, label=labelled.pop(item["ours"], None), **how)
        cut = ""
        if whole > longest:
            cut = f" ({whole:.0f} s)"
            panel.text(0.93 * seconds, position, "//", color="white", weight="bold", va="center")
        label = " / ".join(f"{score:.2f}" for score in scores) + cut
        panel.annotate(
            label, (seconds, position), textcoords="offset points", xytext=(6, 0), va="center", fontsize=10
        )
    panel.set_yticks(range(len(ranked)), [entry["name"] for entry in ranked])
    panel.margins(x=0.3)
    panel.grid(visible=False, axis="y")
    panel.set_xlabel("seconds per read")
    panel.set_title(f"Simulated 7B model: time, and score for\n{' / '.join(kinds)}")
    panel.legend(fontsize=10, loc="upper right", frameon=False)


def _draw_lengths(panel: Axes, results: Sequence[dict[str, Any]]) -> None:
    for number, result in enumerate(results):
        chunks = [outcome["chunks"] for outcome in result["scaling"]]
        seconds = [outcome["seconds"] for outcome in result["scaling"]]
        label = f"{result['name'].removeprefix('memagent ')} ({result['exponent']:.2f})"
        again = {"markerfacecolor": "white"} if number >= _STYLES else {}
        panel.plot(chunks, seconds, label=label, **drawing.style(number) | again)
    panel.set_xscale("log")
    panel.set_yscale("log")
    chunks = [outcome["chunks"] for outcome in results[0]["scaling"]]
    panel.set_xticks(chunks, [str(count) for count in chunks])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("chunks of 5000 tokens")
    panel.set_ylabel("seconds per read")
    panel.set_title("Time by length (exponent)")
    panel.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text("utf-8"))["results"], Path(sys.argv[2]))
