"""Draw the scores of both readers by length, from the rows in docs/results: by_length.py FOLDER."""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memagent.reports.drawing import band, panels, save, style
from memagent.tasks.scoring import confidence_interval

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SMALL = {  # the names of readers in the rows, and in the picture
    "evidence": "a memory of excerpts, reinforced",
    "reinforcement": "a memory that is rewritten, reinforced",
    "warm start": "the second after imitation alone",
    "passages by BM25, in one prompt": "the second, over four passages by BM25",
}
DEFAULT = {
    "gated": "SmolLM2-135M with the LoRA, in chunks of 400",
    "truncate": "without LoRA, what 8K hold of the text",
    "rag": "without LoRA, RAG",
}
ROWS = ("ruler_4k_gated", "ruler_8k", "ruler_128k", "ruler_512k", "ruler_4k_without_memory", "ruler_base")
PUBLISHED = {1 << 13: 98.4, 1 << 17: 96.2, 1 << 19: 95.0}  # MemAgent's 14B model (arXiv 2507.02259)

Scores = Mapping[tuple[str, int], list[float]]


def rows(name: str) -> Iterable[dict[str, Any]]:
    """The rows of a file in docs/results."""
    with gzip.open(RESULTS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def draw(panel: Axes, scores: Scores, names: Mapping[str, str], title: str) -> None:
    """A line with its interval for each reader."""
    for number, (name, shown) in enumerate(names.items()):
        lengths = sorted(length for reader, length in scores if reader == name)
        bounds = [confidence_interval(scores[name, length]) for length in lengths]
        means = [100 * fmean(scores[name, length]) for length in lengths]
        panel.plot(lengths, means, label=shown, **style(number))
        low, high = ([100 * bound[side] for bound in bounds] for side in (0, 1))
        band(panel, lengths, low, high, style(number)["color"])
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks := [1 << power for power in (12, 13, 15, 17, 19, 22)])
    panel.set_xticklabels(f"{it >> 20}M" if it >> 20 else f"{it >> 10}K" for it in ticks)
    panel.set(title=title, xlabel="tokens of the document", ylabel="score", ylim=(-3, 103))


def figure() -> Figure:
    """The small reader on the left, the default reader on the right."""
    small: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows("small_three_seeds"):
        small[row["reader"], row["tokens"]].append(row["score"])
    default: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for row in (row for name in ROWS for row in rows(name)):
        workflow = "truncate" if row["workflow"] == "full" else row["workflow"]  # at 4K, it is the whole text
        default[workflow, row["length"]].append(row["score"])
    drawn, (left, right) = panels(1, 2, 6.4, 4.6)
    draw(left, small, SMALL, "A million weights, from nothing\n(needles, variables, two hops)")
    draw(right, default, DEFAULT, "SmolLM2-135M with a LoRA\n(RULER's eight needle tasks)")
    left.set_xlabel("tokens of the document, of 2.2 characters each")
    right.plot(
        [*PUBLISHED], [*PUBLISHED.values()], "k*", markersize=13, label="MemAgent's 14B model (published)"
    )
    for panel in (left, right):
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, fontsize=9, frameon=False)
    return drawn


if __name__ == "__main__":
    save({"by_length": figure}, Path(sys.argv[1]))
