"""How far the metrics agree with a person, and which reader that person finds better.

    python benchmarks/judged.py docs/results/reader_judged.jsonl

Each row has a question with its gold answers, the replies of two readers in random order, and of each
whether a person judged it right. Then each reader minus each other, by hand, over the same questions, with
its 95% interval.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from measure import load_rows, make_parser, table

from memagent.evaluation.statistics import paired_interval
from memagent.tasks.scoring import declines, exact_match, f1, published_substring_match, substring_match

METRICS: dict[str, Callable[[str, tuple[str, ...]], float]] = {
    "contains a gold answer": substring_match,
    "either contains the other": published_substring_match,
    "F1 of a half": lambda reply, answers: f1(reply, answers) >= 0.5,
    "exact": exact_match,
}


def flatten(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Each reply once, by its reader and its question."""
    return {
        (reader, row["id"]): {"reply": reply, "answers": tuple(row["answers"]), "judged": judged}
        for row in rows
        for reader, reply, judged in zip(row["readers"], row["replies"], row["judged"], strict=True)
    }


def main() -> None:
    """Print both tables."""
    parser = make_parser(__doc__)
    parser.add_argument("rows", type=Path)
    replies = flatten(load_rows(parser.parse_args().rows))
    readers = sorted({reader for reader, _ in replies})
    groups = {name: [reply for (reader, _), reply in replies.items() if reader == name] for name in readers}
    groups["all"] = list(replies.values())
    lines = []
    for name, own in groups.items():
        line = [name, f"{sum(reply['judged'] for reply in own)} of {len(own)}"]
        for metric in METRICS.values():
            scores = [
                not declines(reply["reply"]) and metric(reply["reply"], reply["answers"]) > 0 for reply in own
            ]
            agree = sum(score == reply["judged"] for score, reply in zip(scores, own, strict=True))
            line.append(f"{sum(scores)} ({agree})")
        lines.append(line)
    print("right by hand, and by each metric (in brackets, of how many replies it says what the person says)")
    print(table(["reader", "by hand", *METRICS], lines))
    print("\nby hand")
    for one, other in combinations(reversed(readers), 2):
        both = [key for reader, key in replies if reader == other and (one, key) in replies]
        values = [float(replies[one, key]["judged"] - replies[other, key]["judged"]) for key in both]
        low, high = paired_interval(values)
        print(f"{one} minus {other}: {fmean(values):+.0%} [{low:+.0%}, {high:+.0%}] of {len(values)}")


if __name__ == "__main__":
    main()
