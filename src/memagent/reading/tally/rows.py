"""Rows that a model proposes of a chunk: each is kept if one passage of the chunk has all of its values.

The model names values; code finds the passage, which is then the row's quote, and takes the values from
there, word for word. So nothing in a row is invented, and no words have to be copied twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from memagent.reading.sources import Source, Span, file_spans, source_at
from memagent.reading.tally.borders import borders_of
from memagent.reading.tally.plan import Plan, find_objects
from memagent.reading.tally.values import NOTHING, find_all, fold, meet
from memagent.types import Chunk

MAX_ROWS = 200
"""How many rows of a reply are looked at."""

MAX_QUOTE = 1500
"""The longest passage that a row may rest on, in characters: what is further apart is no one statement."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its values by field, as the text says them, and the passage that has them.

    `span` is where the values stand, in the whole document.
    """

    values: Mapping[str, str]
    source: Source
    span: Span

    def to_json(self) -> str:
        """The row as a line of JSON."""
        source = {"file": self.source.file, "page": self.source.page, "quote": self.source.excerpt}
        return json.dumps({**self.values, "source": source}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ReplyRows:
    """The rows of a reply, the values of those that were refused, and whether the reply was readable."""

    rows: tuple[Row, ...]
    refused: tuple[Mapping[str, str], ...] = ()
    readable: bool = True

    def without(self, refused: Collection[Row]) -> ReplyRows:
        """The same with some of its rows refused."""
        rows = tuple(row for row in self.rows if row not in refused)
        values = (row.values for row in self.rows if row in refused)
        return replace(self, rows=rows, refused=(*self.refused, *values))


def find_rows(reply: str, plan: Plan, chunk: Chunk) -> ReplyRows:
    """The rows in a reply about a chunk; one with half of the fields or fewer is none. Blocks."""
    proposals = list(_proposals(reply, plan))
    if not proposals:
        return ReplyRows((), (), _says_none(reply))
    texts = [(start, text, borders_of(text)) for start, text in texts_of(chunk)]
    rows, located, refused = list[Row](), set[tuple[str, Span]](), list[Mapping[str, str]]()
    for values in proposals[:MAX_ROWS]:
        has_enough = len(values) * 2 > len(plan.fields)
        row = _locate(values, plan, chunk, texts, located) if has_enough else None
        if row is None:
            refused.append(values)
        else:
            located.add((_key(values), row.span))
            rows.append(row)
    return ReplyRows(tuple(rows), tuple(refused))


def correct(reply: ReplyRows, others: Sequence[ReplyRows], plan: Plan) -> ReplyRows:
    """The rows of a reply, corrected by those of its passages that were read again. Blocks.

    Where places overlap, the corrected row stays unless the one before had more values. Values that were
    refused are left out if most of them stand in the words of a row: that row is what they were meant to be.
    """
    new = [
        row
        for row in (row for other in others for row in other.rows)
        if all(len(old.values) <= len(row.values) for old in reply.rows if meet(old.span, row.span))
    ]
    rows = [old for old in reply.rows if not any(meet(old.span, row.span) for row in new)] + new
    refused = (values for one in (reply, *others) for values in one.refused)
    kinds = {field.name: field.type for field in plan.fields}

    def is_in(values: Mapping[str, str], row: Row) -> bool:
        stated = [bool(find_all(kinds[name], value, row.source.excerpt)) for name, value in values.items()]
        return sum(stated) * 2 > len(stated)

    lost = {_key(values): values for values in refused if not any(is_in(values, row) for row in rows)}
    return ReplyRows(tuple(rows), tuple(lost.values()), reply.readable)


def merge(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """The rows in the document's order, those of one place once, and how many were left out for that. Blocks.

    What two chunks share is read twice: of two rows whose places overlap, the one with fewer values is left
    out if the other has all of them.
    """
    merged, left_out = list[Row](), 0
    for row in sorted(rows, key=lambda row: row.span):
        before = merged[-1] if merged else None
        if before and row.span[0] < before.span[1] and row.values.items() >= before.values.items():
            merged[-1], left_out = row, left_out + 1
        elif before and row.span[0] < before.span[1] and row.values.items() <= before.values.items():
            left_out += 1
        else:
            merged.append(row)
    return merged, left_out


def texts_of(chunk: Chunk) -> Iterator[tuple[int, str]]:
    """What a chunk has of each file: where it begins in the whole document, and the text."""
    for start, end in file_spans(chunk):
        yield start, chunk.text[start - chunk.start : end - chunk.start]


def _says_none(reply: str) -> bool:
    """Whether a reply says that there is no row; silence does not."""
    return re.search(r"\[\s*\]|\bnone\b", reply, re.IGNORECASE) is not None


def _proposals(reply: str, plan: Plan) -> Iterator[dict[str, str]]:
    """The values of each row in a reply, without those that say that there is none."""
    names = {field.name for field in plan.fields}
    for item in (item for value in find_objects(reply) for item in _flatten(value)):
        values = {
            name: text
            for name, value in item.items()
            if name in names and (text := _text(value)) and fold(text) not in NOTHING
        }
        if values:
            yield values


def _flatten(value: Any) -> Iterator[Mapping[str, Any]]:
    """A JSON object, or those in its lists instead."""
    if isinstance(value, dict):
        inner = [many for many in value.values() if isinstance(many, list)]
        if inner:
            yield from (item for many in inner for value in many for item in _flatten(value))
        else:
            yield value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _key(values: Mapping[str, str]) -> str:
    return json.dumps({name: fold(value) for name, value in values.items()}, sort_keys=True)


def _locate(
    values: Mapping[str, str],
    plan: Plan,
    chunk: Chunk,
    texts: Iterable[tuple[int, str, list[list[int]]]],
    located: set[tuple[str, Span]],
) -> Row | None:
    """The row of these values at the first place that no equal row has; None if no place has them all.

    A line that has them all comes before a paragraph, and that before what lies between surer borders.
    """
    kinds, key = {field.name: field.type for field in plan.fields}, _key(values)
    stated = [name for name in values if kinds[name] != "yes/no"]
    for start, text, borders in texts if stated else ():
        candidates = [find_all(kinds[name], values[name], text) for name in stated]
        for spans in chain.from_iterable(_windows(candidates, ends) for ends in reversed(borders)):
            first, last = start + min(spans)[0], start + max(end for _, end in spans)
            if (key, (first, last)) not in located:
                words = {name: text[slice(*span)] for name, span in zip(stated, spans, strict=True)}
                source = source_at(chunk, first, last, sentence=True)
                return Row({**values, **words}, source, (first, last))
    return None


def _windows(places: Sequence[Sequence[Span]], borders: Sequence[int]) -> Iterator[list[Span]]:
    """For each place of the rarest value, the nearest of all others; the narrowest passages first.

    None of them crosses one of the `borders` between records.
    """
    if not all(places):
        return
    windows = list[list[Span]]()
    for anchor in min(places, key=len):
        low = max((border for border in borders if border <= anchor[0]), default=0)
        high = min((border for border in borders if border > anchor[0]), default=anchor[1] + MAX_QUOTE)
        near = [[span for span in spans if low <= span[0] and span[1] <= high] for spans in places]
        if all(near):
            windows.append([min(spans, key=partial(_gap, anchor)) for spans in near])
    yield from (window for window in sorted(windows, key=_width) if _width(window) <= MAX_QUOTE)


def _gap(one: Span, other: Span) -> int:
    return max(one[0] - other[1], other[0] - one[1], 0)


def _width(spans: Sequence[Span]) -> int:
    return max(end for _, end in spans) - min(spans)[0]
