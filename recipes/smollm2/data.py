"""The examples that the default reader is trained on: needles, variables, and questions on passages.

    python recipes/smollm2/data.py --novels BOOK.txt ... --sets SET.jsonl.gz ... --out FILE

Several questions are asked about each document, some of which it does not answer: what a chunk is worth
depends on the question, and training computes a chunk once for all of them.
"""

from __future__ import annotations

import argparse
import random
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from hidden import Question, needles, variables
from passages import documents, passages

from memagent.documents.tokens import estimate_tokens
from memagent.tasks import write_examples
from memagent.tasks.corpora import Corpora
from memagent.types import Example

WRAPPED = 0.25  # of the documents have short lines, like books of Project Gutenberg
VARIABLES = 3  # times fewer documents of these than of needles


def examples(name: str, made: Iterator[tuple[str, list[Question]]], count: int) -> Iterator[Example]:
    """Examples for the questions, document by document; some documents have short lines."""
    source = random.Random(name)
    for number, (document, questions) in enumerate(islice(made, count)):
        if source.random() < WRAPPED:
            document, questions = _wrapped(document, questions, source.randint(60, 80))
        for place, it in enumerate(questions):
            yield Example(
                id=f"{name}-{number}-{place}",
                task=it.task,
                problem=it.problem,
                document=document,
                answers=it.answers,
                length_tokens=estimate_tokens(document),
                evidence=it.evidence,
            )


def _wrapped(document: str, questions: list[Question], width: int) -> tuple[str, list[Question]]:
    """The document and its evidence with lines wrapped at `width` characters, or unchanged if that fails."""
    lines = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
             for line in document.split("\n"))  # fmt: skip
    wrapped = "\n".join("\n".join(parts) for parts in lines)
    if wrapped.replace("\n", " ") != document.replace("\n", " "):
        return document, questions

    def shown(text: str) -> str:
        start = document.index(text)
        return wrapped[start : start + len(text)]

    return wrapped, [replace(it, evidence=tuple(map(shown, it.evidence))) for it in questions]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--novels", nargs="+", type=Path, required=True, help="texts to hide facts in")
    parser.add_argument("--sets", nargs="+", type=Path, default=(), help="passages with questions")
    parser.add_argument("--needles", type=int, default=1200, help="documents with needles")
    parser.add_argument("--passages", type=int, default=2400, help="documents of passages")
    parser.add_argument("--characters", nargs=2, type=int, default=(1000, 4800), metavar="N",
                        help="minimum and maximum of a document (one to three chunks)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    limits = given.characters[0], given.characters[1]
    novels = [Corpora((("essays", book),)).essays() for book in given.novels]
    sets = [passages(path) for path in given.sets]
    parts = [
        examples("needles", needles(novels, limits, given.seed), given.needles),
        examples("variables", variables(limits, given.seed), given.needles // VARIABLES),
    ]
    if sets:
        parts.append(examples("passages", documents(sets, novels, limits, given.seed), given.passages))
    write_examples(given.out, chain.from_iterable(parts))


if __name__ == "__main__":
    main()
