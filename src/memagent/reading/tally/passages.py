"""Passages of a chunk that look like rows: each is judged by itself, and asked about again if it has no row.

A small model often says of a chunk that is mostly about something else that it has no row, or gives a row a
name from the paragraph before; and it takes for a row what has the same values and is none. Of a passage
alone it can tell. A passage looks like a row if it states a number, an amount or a date for each field of
that type. A plan without such fields has no passages that look like its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memagent.documents.chunking import cut_out
from memagent.reading.sources import Span
from memagent.reading.tally.borders import borders_of
from memagent.reading.tally.plan import MEASURED, Plan
from memagent.reading.tally.rows import Row, texts_of
from memagent.reading.tally.values import figures_in, meet
from memagent.types import Chunk, TokenCounter


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a chunk that looks like a row, and the rows that have values from there.

    `figures` are its numbers, amounts and dates, if enough for a row stand in no whole row of the piece.
    """

    chunk: Chunk
    rows: tuple[Row, ...]
    figures: tuple[str, ...]


def passages_of(plan: Plan, chunk: Chunk, rows: Sequence[Row], count_tokens: TokenCounter) -> list[Passage]:
    """The passages of a chunk that look like rows. Blocks."""
    kinds = {field.type for field in plan.fields if field.type in (*MEASURED, "date")}
    passages = list[Passage]()
    for start, end in _pieces(chunk) if kinds else ():
        figures = [figures_in(kind, chunk.text[start - chunk.start : end - chunk.start]) for kind in kinds]
        if all(figures):
            _, piece, _ = cut_out(chunk, start - chunk.start, end - chunk.start, count_tokens)
            own = tuple(row for row in rows if meet(row.span, (start, end)))
            whole = [
                (row.span[0] - start, row.span[1] - start)
                for row in own
                if len(row.values) == len(plan.fields) and start <= row.span[0] and row.span[1] <= end
            ]
            passages.append(Passage(piece, own, tuple(_free(piece.text, figures, whole))))
    return passages


def _pieces(chunk: Chunk) -> Iterator[Span]:
    """The parts of a chunk between its surest borders."""
    for start, text in texts_of(chunk):
        borders = next(filter(None, borders_of(text)), [])
        yield from ((start + low, start + high) for low, high in pairwise([0, *borders, len(text)]))


def _free(text: str, figures: Sequence[Sequence[Span]], whole: Sequence[Span]) -> Iterable[str]:
    """The figures of a text in its order; none if those of one kind all stand in `whole` rows."""
    if any(all(any(meet(span, other) for other in whole) for span in spans) for spans in figures):
        return ()
    ordered = sorted({span for spans in figures for span in spans})
    return dict.fromkeys(text[start:end] for start, end in ordered)
