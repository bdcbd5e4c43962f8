"""Documents to test a reader on, of about 1,600 tokens: 350 that hold the answer, and 149 that do not.

    python recipes/reader/documents.py --hotpot hotpot_dev_distractor.jsonl.gz
        --squadshifts squadshifts_new_wiki.jsonl.gz --out documents.jsonl
    memagent eval --examples documents.jsonl --workflow notes --scorer f1 --out runs/documents ...

HotpotQA's questions 200 to 399 with their ten paragraphs, and 400 to 474 without those that they need; and
questions on 150 paragraphs of SQuADShifts among nine others, and on 75 with nine others alone. Lessons are
made of neither.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memagent.tasks.corpora import read_rows
from memagent.tasks.files import write_examples
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import Example

HOTPOT, HOTPOT_ABSENT = range(200, 400), range(400, 475)
ASKED, ASKED_ABSENT, OTHERS = 150, 75, 9


def documents(
    hotpot: Sequence[dict[str, Any]], paragraphs: Sequence[dict[str, Any]], source: random.Random
) -> Iterator[Example]:
    """All documents; a question that needs all of its paragraphs cannot lack them, and is left out."""
    for number in (*HOTPOT, *HOTPOT_ABSENT):
        row, lacks = hotpot[number], number in HOTPOT_ABSENT
        needed = {title for title, _ in row["supporting_facts"]} if lacks else set()
        texts = [f"{title}\n{''.join(lines)}" for title, lines in row["context"] if title not in needed]
        if document := _shuffle(texts, source):
            yield _example("hotpot", number, row["question"], document, (row["answer"],), lacks)
    for number, row in enumerate(source.sample(paragraphs, ASKED + ASKED_ABSENT)):
        asked, lacks = source.choice(row["qas"]), number >= ASKED
        rest = [paragraph for paragraph in paragraphs if paragraph is not row]
        texts = [item["context"].strip() for item in source.sample(rest, OTHERS)]
        document = _shuffle(texts if lacks else [row["context"].strip(), *texts], source)
        answers = sorted({answer["text"] for answer in asked["answers"]})
        yield _example("squadshifts", number, asked["question"], document, tuple(answers), lacks)


def _shuffle(texts: list[str], source: random.Random) -> str:
    source.shuffle(texts)
    return "\n\n".join(texts)


def _example(
    task: str, number: int, problem: str, document: str, answers: tuple[str, ...], lacks: bool
) -> Example:
    gold, named = (ABSENT_ANSWERS, f"{task}-absent") if lacks else (answers, task)
    return Example(f"{task}-{number}", named, problem, document, gold, len(document) // 4)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(path)]


def main() -> None:
    """Write the documents."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hotpot", type=Path, required=True)
    parser.add_argument("--squadshifts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    every = documents(_rows(asked.hotpot), _rows(asked.squadshifts), random.Random("test"))
    print(write_examples(asked.out, every), "documents")


if __name__ == "__main__":
    main()
