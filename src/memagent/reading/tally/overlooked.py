"""Passages that look like rows of which a reply has none: each is asked about again, by itself.

A small model often says of a chunk that is mostly about something else that it has no row, or gives a row a
name from the paragraph before. A passage looks like a row if it states a number, an amount or a date for each
field that is one. A plan without such fields has no passages that look like its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memagent.documents.chunking import cut_at
from memagent.reading.sources import Span
from memagent.reading.tally.borders import sure_borders
from memagent.reading.tally.plan import MEASURED, Kind, Plan
from memagent.reading.tally.rows import Row, texts_of
from memagent.reading.tally.values import figures_in, meet
from memagent.types import Chunk, TokenCounter

MAX_PASSAGES = 4
"""Of a chunk: where more look like rows, neighbours are read together."""

_BLANK_LINE = re.compile(r"\n(?:[ \t]*\n)+")
_LINE = re.compile(r"\n")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a chunk that looks like a row, and the numbers, amounts and dates for which it does."""

    chunk: Chunk
    figures: tuple[str, ...]


def overlooked(plan: Plan, chunk: Chunk, rows: Sequence[Row], count_tokens: TokenCounter) -> list[Passage]:
    """The passages of a chunk that look like rows and are in none that has all fields. Blocks."""
    kinds = {field.type for field in plan.fields if field.type in (*MEASURED, "date")}
    complete = [row.span for row in rows if len(row.values) == len(plan.fields)]
    spans = list[Span]()
    for start, text in texts_of(chunk) if kinds else ():
        whole = [(low - start, high - start) for low, high in complete]
        free = [
            [figure for figure in figures_in(kind, text) if not any(meet(figure, span) for span in whole)]
            for kind in kinds
        ]
        for passage in _passages_in(text):
            if all(any(meet(figure, passage) for figure in figures) for figures in free):
                spans.append((start + passage[0], start + passage[1]))
    size = -(-len(spans) // MAX_PASSAGES) or 1
    groups = [spans[first : first + size] for first in range(0, len(spans), size)]
    pieces = [_cut(chunk, group[0][0], group[-1][1], count_tokens) for group in groups]
    return [Passage(piece, _figures(piece.text, kinds)) for piece in pieces]


def _passages_in(text: str) -> Iterator[Span]:
    """The parts of a text between its surest borders: headings, else blank lines, else lines."""
    borders = sure_borders(text)
    for pattern in (_BLANK_LINE, _LINE):
        borders = borders or [match.end() for match in pattern.finditer(text)]
    yield from pairwise(sorted({0, *borders, len(text)}))


def _figures(text: str, kinds: Iterable[Kind]) -> tuple[str, ...]:
    spans = sorted({span for kind in kinds for span in figures_in(kind, text)})
    return tuple(dict.fromkeys(text[start:end] for start, end in spans))


def _cut(chunk: Chunk, start: int, end: int, count_tokens: TokenCounter) -> Chunk:
    if end < chunk.end:
        chunk, _ = cut_at(chunk, end - chunk.start, count_tokens)
    return cut_at(chunk, start - chunk.start, count_tokens)[1] if start > chunk.start else chunk
