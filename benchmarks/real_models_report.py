"""The tables of `real_models.py`, and its plot: `python real_models_report.py ROWS... [--plot PNG]`.

Scores have 95% intervals; differences are paired, question by question. Questions whose documents lack the
answer are left out of the scores, and counted apart: an answer to them is invented.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import real_models
from measure import load_rows, make_parser, table

from memagent.evaluation.statistics import confidence_interval, group_by, paired_interval
from memagent.reports import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "auto"
_TASKS = {
    "story": "story",
    "hotpot": "HotpotQA",
    "shifts": "SQuADShifts",
    "needles": "needles 8K",
    "hotpot-32K": "HotpotQA 32K",
    "shifts-32K": "SQuADShifts 32K",
}

Rows = Sequence[dict[str, Any]]


def by_reader(rows: Rows) -> dict[str, Rows]:
    """The rows of each reader, in the order of the readers."""
    groups = group_by(rows, itemgetter("reader"))
    order = [reader.name for reader in real_models.READERS]
    return {name: groups[name] for name in real_models.names_of(rows, order)}


def _family(row: Mapping[str, Any]) -> str:
    return real_models.family(row["task"])


def _cell(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    low, high = confidence_interval(scores)
    return f"{100 * fmean(scores):.0f} [{100 * low:.0f}, {100 * high:.0f}] of {len(scores)}"


def scores_table(rows: Rows) -> str:
    """Scores in percent by reader and kind of question, with what was invented and what it took."""
    tasks = [task for task in _TASKS if any(_family(row) == task for row in rows)]
    lines = []
    for name, own in by_reader(rows).items():
        there = [row for row in own if not row["absent"]]
        absent = [row for row in own if row["absent"]]
        cells = [_cell([item["score"] for item in there if _family(item) == task]) for task in tasks]
        invented = f"{sum(not item['declined'] for item in absent)} of {len(absent)}" if absent else ""
        empty = [row["empty"] for row in own if row["empty"] is not None and row["calls"] > 1]
        nothing = f"{sum(empty)} of {len(empty)}" if empty else ""
        tokens = [row["prompt_tokens"] + row["completion_tokens"] for row in own if row["prompt_tokens"]]
        mean_tokens = f"{fmean(tokens):,.0f}" if tokens else ""
        seconds = f"{fmean(row['seconds'] for row in own):.1f}"
        lines.append([name, *cells, invented, nothing, mean_tokens, seconds])
    head = ["reader", *(_TASKS[task] for task in tasks), "invented", "empty memories", "tokens", "seconds"]
    return table(head, lines)


def differences_table(rows: Rows) -> str:
    """The difference of our default's score from each other reader's, over the questions that both read."""
    scores: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in rows:
        if not row["absent"]:
            scores[row["reader"]][_family(row), row["id"]] = row["score"]
    lines = []
    for name in by_reader(rows):
        shared = [key for key in scores[name] if key in scores[OURS]]
        if name == OURS or not shared:
            continue
        apart = [scores[OURS][key] - scores[name][key] for key in shared]
        low, high = paired_interval(apart)
        difference = f"{100 * fmean(apart):+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"
        lines.append([name, str(len(shared)), difference])
    return table([f"{OURS} less", "questions", "difference"], lines)


def draw(rows: Rows, file: Path) -> None:
    """A row of panels a model, a panel a kind of question: each reader's score with its interval."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    tasks = [item for item in _TASKS if any(_family(row) == item for row in rows)]
    names = list(by_reader(rows))[::-1]

    def picture() -> Figure:
        figure, panels = drawing.panels(len(models), len(tasks), 3.0, 3.2)
        for (model, task), panel in zip(product(models, tasks), panels, strict=True):
            own = [row for row in rows if (row["model"], _family(row)) == (model, task) and not row["absent"]]
            for name, scored in by_reader(own).items():
                scores, position = [item["score"] for item in scored], names.index(name)
                low, high = confidence_interval(scores)
                colour = "#D55E00" if name == OURS else "#0072B2"
                panel.plot([100 * low, 100 * high], [position, position], color=colour)
                panel.plot([100 * fmean(scores)], [position], "o", color=colour)
            first = task == tasks[0]
            panel.set_yticks(range(len(names)), [drawing.plain(item) if first else "" for item in names])
            panel.set_ylim(-0.5, len(names) - 0.5)
            panel.set_xlim(0, 100)
            panel.set_xticks([0, 50, 100])
            panel.set_title(f"{_TASKS[task]}, {len({row['id'] for row in own})} questions")
        figure.supxlabel("score in percent, with 95% interval")
        return figure

    drawing.save({file.stem: picture}, file.parent)


def main() -> None:
    """Print the tables of each model, and draw the plot."""
    parser = make_parser(__doc__)
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    args = parser.parse_args()
    rows = [row for path in args.rows for row in load_rows(path)]
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        print(f"{model}\n\n{scores_table(own)}\n\n{differences_table(own)}\n")
    if args.plot:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
