"""Cut a stream of text into chunks of a token budget, at natural places, without losing a byte.

The length of a chunk is guessed in characters from the chunks before it, moved back to the end of
a paragraph, line, sentence or word, and then counted: about one tokenisation of the text in all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace

from memagent.documents import Document, Source
from memagent.types import Chunk, TokenCounter

_FIRST_CHARACTERS_PER_TOKEN = 3.5
_AIM = 0.97  # of the budget: a guess that comes out above the budget has to be counted again
_LEAST = 0.75  # of the budget: a smaller chunk is grown, if there is more text
_WINDOW = 0.2  # of a chunk's length: how far back a natural place is looked for
_TRIES = 6

# Best first: a blank line, a line end, a sentence end, white space.
_PLACES = (
    re.compile(r"(?:\r?\n[ \t]*){2,}"),
    re.compile(r"\r?\n"),
    re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』]*"),
    re.compile(r"\s+"),
)
_JOINERS = "\u200d\ufe0e\ufe0f"


def split(document: Document, chunk_tokens: int, count_tokens: TokenCounter) -> Iterator[Chunk]:
    """The chunks of a document: each at most `chunk_tokens` long, from one source, in order.

    Joined, their texts are the document's. Only about one chunk of text is held at a time. A
    single character may exceed a budget smaller than itself.
    """
    index = start = 0
    for source, blocks in _by_source(document.blocks()):
        for text, tokens in cut(blocks, chunk_tokens, count_tokens):
            yield Chunk(index, text, start, start + len(text), tokens, source.name)
            index, start = index + 1, start + len(text)


def _by_source(blocks: Iterable[tuple[Source, str]]) -> Iterator[tuple[Source, Iterator[str]]]:
    """Group the blocks of each source; a group must be used up before the next is taken."""
    rest = iter(blocks)
    upcoming = next(rest, None)

    def texts(source: Source) -> Iterator[str]:
        nonlocal upcoming
        while upcoming is not None and upcoming[0] is source:
            yield upcoming[1]
            upcoming = next(rest, None)

    while upcoming is not None:
        yield upcoming[0], texts(upcoming[0])


def cut(blocks: Iterable[str], chunk_tokens: int, count_tokens: TokenCounter) -> Iterator[tuple[str, int]]:
    """Cut one text, given in blocks, into pieces with their token counts."""
    stream = iter(blocks)
    buffer, position, ended = "", 0, False
    ratio = _FIRST_CHARACTERS_PER_TOKEN
    while True:
        wanted = max(1, int(chunk_tokens * ratio * _AIM))
        while not ended and len(buffer) - position <= 2 * wanted:
            block = next(stream, None)
            ended = block is None
            buffer, position = buffer[position:] + (block or ""), 0
        if position == len(buffer):
            return
        ahead = buffer[position : position + 2 * wanted + 1]
        length, tokens = _fit(ahead, wanted, chunk_tokens, count_tokens)
        yield ahead[:length], tokens
        position += length
        ratio = length / max(tokens, 1)


def _fit(text: str, guess: int, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """How long the first piece of `text` is, in characters and tokens."""
    best = (0, 0)
    for _ in range(_TRIES):
        length = natural_end(text, guess)
        if length <= best[0]:
            break
        tokens = count_tokens(text[:length])
        if tokens <= budget:
            best = (length, tokens)
            if length == len(text) or tokens >= _LEAST * budget:
                return best
            guess = min(len(text), int(length / max(tokens, 1) * budget * _AIM))
        elif length == 1:
            return length, tokens
        else:
            guess = max(1, int(length * budget / tokens * _AIM))
    return best if best[0] else _bisect(text[:guess], budget, count_tokens)


def _bisect(text: str, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """The rare text whose density jumps: halve until it fits."""
    length = len(text)
    while (tokens := count_tokens(text[:length])) > budget and length > 1:
        length = _whole_character(text, length // 2)
    return length, tokens


def natural_end(text: str, limit: int) -> int:
    """The last natural place to end a piece of at most `limit` characters (at least one)."""
    if limit >= len(text):
        return len(text)
    earliest = int(limit * (1 - _WINDOW))
    for place in _PLACES:
        end = 0
        for match in place.finditer(text, earliest, limit):
            end = match.end()
        if end > earliest:
            return end
    return _whole_character(text, limit)


def _whole_character(text: str, end: int) -> int:
    """`end`, moved back so that no combining sequence or line end is cut through (up to 32)."""
    for position in range(max(end, 1), max(end - 32, 1), -1):
        before, after = text[position - 1], text[position : position + 1]
        joined = (
            after in _JOINERS
            or before == "\u200d"
            or before + after == "\r\n"
            or unicodedata.category(after).startswith("M")
        )
        if not after or not joined:
            return position
    return max(end, 1)


def halve(chunk: Chunk, count_tokens: TokenCounter) -> tuple[Chunk, Chunk]:
    """Two chunks for one, cut at a natural place near the middle; both keep its index.

    Raises `ValueError` for a chunk of a single character.
    """
    if len(chunk.text) < 2:
        raise ValueError("a chunk of one character cannot be halved")
    middle = min(natural_end(chunk.text, (len(chunk.text) + 1) // 2), len(chunk.text) - 1)
    first, second = chunk.text[:middle], chunk.text[middle:]
    border = chunk.start + middle
    return (
        replace(chunk, text=first, end=border, tokens=count_tokens(first)),
        replace(chunk, text=second, start=border, tokens=count_tokens(second)),
    )
