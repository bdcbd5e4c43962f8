"""Examples from a universe of PhantomWiki (arXiv 2502.20377): many hops, "how many", documents of any size.

    phantom-wiki-generate -od universe --seed 1 --article-format json --question-format json
    python recipes/phantomwiki.py universe --out phantomwiki.jsonl

The universe is a folder with `articles.json` (a list of `title` and `article`) and `questions.json` (a list
of `question`, `answer`, `id`). Each question becomes an example over all articles, in an order of its own.
Where several answers are asked for, all of them together are the answer: reward with `--scorer f1`, which
falls with each that is missing or wrong.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Write the examples as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("universe", type=Path, help="the folder with articles.json and questions.json")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file")
    parser.add_argument("--seed", type=int, default=0, help="of the articles' order (0)")
    given = parser.parse_args()
    rows = [json.dumps(row) + "\n" for row in examples(given.universe, given.seed)]
    given.out.write_text("".join(rows), "utf-8")
    print(f"{len(rows)} examples: {given.out}")


def examples(universe: Path, seed: int) -> Iterator[dict[str, Any]]:
    """The rows, one for each question that has an answer."""
    articles, questions = (
        json.loads((universe / name).read_text("utf-8")) for name in ("articles.json", "questions.json")
    )
    documents = [{"title": article["title"], "text": article["article"]} for article in articles]
    for question in questions:
        answers = question["answer"] if isinstance(question["answer"], list) else [question["answer"]]
        if not answers:
            continue
        order = random.Random(f"{seed}/{question['id']}").sample(documents, len(documents))
        yield {
            "id": question["id"],
            "task": "phantomwiki",
            "problem": question["question"],
            "documents": order,
            "answers": [", ".join(map(str, answers))],
        }


if __name__ == "__main__":
    main()
