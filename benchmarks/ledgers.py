"""Documents with planted statements and distractors, and two kinds of problems about them.

`values`: all numbers of one merchant, spread evenly over the document. `hops`: the code of a merchant's
keeper, who is named only after the code has passed, so that a reader must go back for it. Every chunk holds
other merchants' numbers, keepers and codes, in exactly the same words.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import finder
import measure

from memagent.documents.cutting import cut
from memagent.documents.tokens import estimate_tokens

CHUNK_TOKENS = 5000
VALUES = 16
_CHUNK_BYTES = 17_150  # about 5000 tokens of this text
_DISTRACTORS = 6  # per chunk
_BEGINNINGS = ("Bar", "Cor", "Dal", "Fen", "Gor", "Hal", "Jor", "Kel", "Lom", "Mar", "Nor", "Pel", "Tar")
_MIDDLES = ("a", "e", "i", "o", "u", "ane", "ilo", "oru", "uma")
_ENDS = ("bel", "dan", "fis", "gard", "lin", "mund", "ner", "rik", "stan", "vel", "wyn", "zor")
_NAMES = [first + middle + last for first in _BEGINNINGS for middle in _MIDDLES for last in _ENDS]


@dataclass(frozen=True)
class Ledger:
    """A problem, its answers, and the files that hold the document and the chunks made of it."""

    kind: str
    problem: str
    answers: tuple[str, ...]
    document: Path
    cut: Path
    chunks: int

    def task(self, trace: Path) -> dict[str, str]:
        """The task as given to a process."""
        return {
            "document": str(self.document),
            "chunks": str(self.cut),
            "problem": self.problem,
            "trace": str(trace),
        }


def write_ledger(folder: Path, kind: str, chunks: int, seed: int) -> Ledger:
    """Write a document of about `chunks` chunks and a problem of that kind; repeatable by seed."""
    chance = random.Random(f"{kind} {seed}")  # the same positions at any length
    names = chance.sample(_NAMES, len(_NAMES))
    merchant, keeper = names.pop(), names.pop()
    if kind == "values":
        answers = tuple(map(str, chance.sample(range(10**6, 10**7), VALUES)))
        places = [(number + chance.random()) / VALUES for number in range(VALUES)]
        planted = [
            (position, finder.statement("number", merchant, value))
            for position, value in zip(places, answers, strict=True)
        ]
        problem = finder.problem("number", whose=merchant)
    else:
        answers = (str(chance.randrange(10**6, 10**7)),)
        planted = [
            (0.1 + 0.3 * chance.random(), finder.statement("code", keeper, answers[0])),
            (0.6 + 0.3 * chance.random(), finder.statement("keeper", merchant, keeper)),
        ]
        problem = finder.problem("code", "keeper", whose=merchant)
    planted += [(chance.random(), _distractor(chance, names)) for _ in range(_DISTRACTORS * chunks)]
    document = folder / f"{kind}-{chunks}-{seed}.txt"
    document.write_text(_text(planted, chunks * _CHUNK_BYTES, seed), "utf-8")
    return _cut_ledger(kind, problem, answers, document)


def _cut_ledger(kind: str, problem: str, answers: tuple[str, ...], document: Path) -> Ledger:
    pieces = [piece for piece, *_ in cut([document.read_text("utf-8")], CHUNK_TOKENS, estimate_tokens)]
    chunks = document.with_suffix(".json")
    chunks.write_text(json.dumps(pieces), "utf-8")
    return Ledger(kind, problem, answers, document, chunks, len(pieces))


def _distractor(chance: random.Random, names: list[str]) -> str:
    what, whose = chance.choice(("number", "keeper", "code")), chance.choice(names)
    value = chance.choice(names) if what == "keeper" else str(chance.randrange(10**6, 10**7))
    return finder.statement(what, whose, value)


def _text(planted: list[tuple[float, str]], size_bytes: int, seed: int) -> str:
    """A story with statements at their positions (shares of its length), each at the end of a paragraph."""
    story = measure.STORY.read_text("utf-8")
    paragraphs = "".join(measure.vary(f"({seed})\n\n{story}", size_bytes)).split("\n\n")
    for position, sentence in planted:
        paragraphs[min(int(position * len(paragraphs)), len(paragraphs) - 1)] += f" {sentence}"
    return "\n\n".join(paragraphs) + "\n"
