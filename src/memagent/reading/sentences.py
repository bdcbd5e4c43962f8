"""Where the sentences of a text are: one rule for documents, memories and answers."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LONG = 300  # characters: a longer "sentence" is a list or a table, of which each line counts as one

_ABBREVIATION = r"(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\bMrs\.)"
SENTENCE_END = re.compile(rf"(?<=[.!?…]){_ABBREVIATION}[\"'”’»)\]]*\s+|(?<=[。！？])")
PARAGRAPH_END = re.compile(r"\n[ \t]*(?:\r?\n[ \t]*)+")
LINE_END = re.compile(r"\n+")
HEADING = re.compile(r"^#{1,6}[ \t][^\n]*", re.MULTILINE)

Span = tuple[int, int]
"""Where something begins and ends in a text."""


def sentences(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences of a paragraph, or its lines where they have no end."""
    for first, last in between(text, start, end, SENTENCE_END):
        if last - first > _LONG:
            yield from between(text, first, last, LINE_END)
        else:
            yield first, last


def between(text: str, start: int, end: int, border: re.Pattern[str]) -> Iterator[Span]:
    """What stands between borders, without the white space around it."""
    ends = [(it.start(), it.end()) for it in border.finditer(text, start, end)]
    for first, last in zip([start, *(it[1] for it in ends)], [*(it[0] for it in ends), end], strict=True):
        piece = text[first:last]
        if bare := piece.strip():
            first += len(piece) - len(piece.lstrip())
            yield first, first + len(bare)
