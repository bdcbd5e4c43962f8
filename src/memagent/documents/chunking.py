"""Cut a stream of text into chunks of a token budget, at natural places, without losing a byte.

The length of a chunk is guessed in characters from the chunks before it, moved back to the end of
a paragraph, line, sentence or word, and then counted: about one tokenisation of the text in all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace

from memagent.documents.opening import Document, Source
from memagent.types import Chunk, TokenCounter

_FIRST_CHARACTERS_PER_TOKEN = 3.5
_MOST_CHARACTERS_PER_TOKEN = 16.0  # blank or unbroken text may count for next to nothing: chunks stay finite
_AIM = 0.97  # of the budget: a guess that comes out above the budget has to be counted again
_LEAST = 0.75  # of the budget: a smaller chunk is grown, if there is more text
_WINDOW = 0.2  # of a chunk's length: how far back a natural place is looked for
_TRIES = 6

# Best first: a blank line, a line end, a sentence end, white space. Only where a match ends counts;
# a pattern that begins with a plain character is found ten times as fast.
_PLACES = (
    re.compile(r"\n[ \t]*(?:\r?\n[ \t]*)+"),
    re.compile(r"\n"),
    re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』]*"),
    re.compile(r"\s+"),
)
# What belongs to the character before it, beside combining marks: a joiner, vowels and finals of
# Hangul in parts, skin tones, the letters in a flag's tag.
_EXTENDS = re.compile("[\u200d\u1160-\u11ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
_FLAG_HALVES = re.compile("[\U0001f1e6-\U0001f1ff]+$")
_LONGEST_CHARACTER = 32


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
    """Cut one text, given in blocks, into pieces with their token counts.

    The pieces do not depend on how the text is divided into blocks.
    """
    stream = iter(blocks)
    buffer, position = "", 0
    ratio = _FIRST_CHARACTERS_PER_TOKEN
    while True:
        wanted = max(1, int(chunk_tokens * ratio * _AIM))
        if len(buffer) - position <= 2 * wanted:
            buffer, position = _filled(buffer[position:], stream, 2 * wanted), 0
        if position == len(buffer):
            return
        # One character more than a piece may have tells whether the text goes on behind it.
        ahead = buffer[position : position + 2 * wanted + 1]
        length, tokens = _fit(ahead, wanted, chunk_tokens, count_tokens)
        yield ahead[:length], tokens
        position += length
        ratio = min(length / max(tokens, 1), _MOST_CHARACTERS_PER_TOKEN)


def _filled(held: str, stream: Iterator[str], least: int) -> str:
    """`held` and what follows it, until it is longer than `least` or the stream ends."""
    parts, length = [held], len(held)
    while length <= least and (block := next(stream, None)) is not None:
        parts.append(block)
        length += len(block)
    return "".join(parts)


def _fit(text: str, wanted: int, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """How long the first piece of `text` is (at most 2 * `wanted`), in characters and tokens."""
    best, guess, most = (0, 0), wanted, 2 * wanted
    for _ in range(_TRIES):
        length = natural_end(text, guess)
        if length <= best[0]:
            break
        tokens = count_tokens(text[:length])
        if tokens <= budget:
            best = (length, tokens)
            if length == len(text) or tokens >= _LEAST * budget:
                return best
            guess = min(most, int(length / max(tokens, 1) * budget * _AIM))
        elif length == 1:
            return length, tokens
        else:
            guess = max(1, int(length * budget / tokens * _AIM))
    return best if best[0] else _bisect(text, guess, budget, count_tokens)


def _bisect(text: str, length: int, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """The rare text whose density jumps: halve until it fits."""
    length = natural_end(text, length)
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
        if end > earliest and (whole := _whole_character(text, end)) > earliest:
            return whole
    return _whole_character(text, limit)


def _whole_character(text: str, end: int) -> int:
    """`end`, moved back so that no line end, and nothing that a reader sees as one character, is cut."""
    end = max(end, 1)
    before = range(end, max(end - _LONGEST_CHARACTER, 0), -1)
    return next((position for position in before if not _joined(text, position)), end)


def _joined(text: str, position: int) -> bool:
    """Whether the characters on both sides of a place belong together."""
    before, after = text[position - 1], text[position : position + 1]
    if not after:
        return False
    if _FLAG_HALVES.match(after):
        halves = _FLAG_HALVES.search(text, max(position - _LONGEST_CHARACTER, 0), position)
        return halves is not None and len(halves.group()) % 2 == 1
    return (
        before == "\u200d"
        or before + after == "\r\n"
        or _EXTENDS.match(after) is not None
        or unicodedata.category(after).startswith("M")
    )


def halve(chunk: Chunk, count_tokens: TokenCounter) -> tuple[Chunk, Chunk]:
    """Two chunks for one, cut at a natural place near the middle; both keep its index.

    Raises `ValueError` for a chunk of a single character.
    """
    if len(chunk.text) < 2:
        raise ValueError("a chunk of one character cannot be halved")
    middle = natural_end(chunk.text, len(chunk.text) // 2)
    first, second = chunk.text[:middle], chunk.text[middle:]
    border = chunk.start + middle
    return (
        replace(chunk, text=first, end=border, tokens=count_tokens(first)),
        replace(chunk, text=second, start=border, tokens=count_tokens(second)),
    )
