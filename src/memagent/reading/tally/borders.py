"""Where records end: chunks are cut there, so that none of them is read in halves.

A border is a heading, a rule, a blank line or a line, the strongest that is in reach. What comes after the
last one in a chunk is read with the next chunk. Where there is none, the last sentences of a chunk are read
twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from memagent.documents.chunking import cut_at
from memagent.documents.cutting import is_separated
from memagent.reading.conversations import Chunks
from memagent.reading.sources import SENTENCE_END, file_spans
from memagent.types import Chunk, TokenCounter

_REACH = 2 / 3
"""How much of a chunk may be read with the next one: so none has more than three times its size."""

_OVERLAP = 0.2

_BORDERS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        *(rf"^(?=#{{{level}}}[ \t])" for level in range(1, 7)),
        r"^(?:-{3,}|={3,}|\*{3,}|_{3,})[ \t]*\n",
        r"\n(?:[ \t]*\n){2,}",
        r"\n(?:[ \t]*\n)+",
        r"\n",
    )
)
"""Where a record ends, the surest first: the end of a match is where the next record begins."""


async def whole_records(chunks: Chunks, count_tokens: TokenCounter) -> AsyncGenerator[Chunk, None]:
    """The chunks, each moved to where records end."""
    before: Chunk | None = None
    async with aclosing(chunks):
        async for chunk in chunks:
            if before and _goes_on(before, chunk):
                whole, rest = await asyncio.to_thread(_divide, before, count_tokens)
                yield whole
                chunk = await asyncio.to_thread(_join, rest, chunk, count_tokens) if rest else chunk
            elif before:
                yield before
            before = chunk
    if before:
        yield before


def borders_of(text: str) -> list[list[int]]:
    """Where records of a text may end, the surest first: its highest headings, rules or several blank lines;
    blank lines; lines. Each may be none.
    """
    found = [
        [match.end() for match in border.finditer(text) if 0 < match.end() < len(text)] for border in _BORDERS
    ]
    *sure, blank_lines, lines = found
    return [next(filter(None, sure), []), blank_lines, lines]


def _goes_on(before: Chunk, chunk: Chunk) -> bool:
    """Whether a chunk goes on with the file in which the one before it ends."""
    last, first = before.parts[-1], chunk.parts[0]
    return before.end == chunk.start and (last.source, last.offset) == (first.source, first.offset)


def _divide(chunk: Chunk, count_tokens: TokenCounter) -> tuple[Chunk, Chunk | None]:
    """What is read of a chunk now, and what is read with the next one. Blocks."""
    text = chunk.text
    first = max(chunk.parts[-1].start - chunk.start, int(len(text) * (1 - _REACH)))
    separated, (*_, (begin, _)) = is_separated(chunk.parts[-1].source), file_spans(chunk)
    for border in _BORDERS[-1:] if separated else _BORDERS:
        ends = [match.end() for match in border.finditer(text, first) if first < match.end() <= len(text)]
        if separated:  # a quoted value may have several lines; a lone quote quotes nothing
            ends = [end for end in ends if text.count('"', begin - chunk.start, end) % 2 == 0] or ends
        if not ends:
            continue
        if ends[-1] == len(text):
            return chunk, None
        whole, rest = cut_at(chunk, ends[-1], count_tokens)
        return (whole, rest) if rest.text.strip() else (chunk, None)
    ends = [match.end() for match in SENTENCE_END.finditer(text, first) if match.end() < len(text)]
    again = next((end for end in ends if end > len(text) * (1 - _OVERLAP)), ends[-1] if ends else None)
    return chunk, cut_at(chunk, again, count_tokens)[1] if again else None


def _join(rest: Chunk, chunk: Chunk, count_tokens: TokenCounter) -> Chunk:
    """A chunk with what is left of the one before it. Blocks."""
    parts = (*rest.parts, replace(chunk.parts[0], head="", columns=""), *chunk.parts[1:])
    joined = Chunk(chunk.index, rest.text + chunk.text, rest.start, chunk.end, 0, parts)
    return replace(joined, tokens=count_tokens(joined.shown))
