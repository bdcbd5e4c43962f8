"""Cut a document into chunks within a token budget, at natural places, without losing a character.

On request, chunks are cut exactly at the budget instead, as the published readers were trained.
The length of a chunk is guessed in characters from the chunk before it, moved back to the end of
a paragraph, line, sentence or word, and then counted: the text is tokenised about once in all.
Small files share a chunk; each is shown under its name, on a line with a mark that no text in it can know.
A chunk that begins within a table shows the table's head again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from memagent.documents.columns import columns_after, is_separated
from memagent.documents.opening import Block, Document, Pass
from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, longest_prefix
from memagent.errors import DocumentError
from memagent.prompts import file_head
from memagent.types import Chunk, Part, TokenCounter

_FIRST_CHARACTERS_PER_TOKEN = 3.5
_AIM = 0.97  # of the budget: a guess that exceeds the budget has to be counted again
_LEAST = 0.75  # of the budget: a smaller chunk is grown if there is more text
_WINDOW = 0.2  # of a chunk's length: how far back to look for a natural place
_TRIES = 6
_MAX_TOKEN = 24  # characters: a token that ends with them may replace several that end before

# Best first: a blank line, a line end, a sentence end, white space. Only the end of a match counts;
# a pattern that begins with a literal character is found ten times as fast.
_PLACES = (
    re.compile(r"\n[ \t]*(?:\r?\n[ \t]*)+"),
    re.compile(r"\n"),
    re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』]*"),
    re.compile(r"\s+"),
)
# What belongs to the character before it, besides combining marks: a joiner, vowels and finals of
# decomposed Hangul, skin tones, the tag letters of a flag.
_EXTENDS = re.compile("[\u200d\u1160-\u11ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
_FLAG_HALVES = re.compile("[\U0001f1e6-\U0001f1ff]+$")
_MAX_CHARACTER = 32


def split(
    document: Document | Pass, chunk_tokens: int, count_tokens: TokenCounter, *, exact: bool = False
) -> Iterator[Chunk]:
    """The chunks of a document, in order: what is shown of each has at most `chunk_tokens` tokens.

    Joined, their texts are the document's. Only about one chunk of text is held at a time. With `exact`, a
    chunk ends where its tokens do, even within a word; otherwise at a natural place. A chunk of a single
    character may exceed the budget. Give a `Pass` to see what it found.
    """
    blocks = document.blocks() if isinstance(document, Document) else document
    index = 0
    for pieces in _pack(_pieces(blocks, chunk_tokens, count_tokens, exact), chunk_tokens):
        for chunk in _chunks_of(pieces, chunk_tokens, count_tokens):
            yield replace(chunk, index=index)
            index += 1


def cut_again(blocks: Iterable[Block], outlines: Iterable[Chunk]) -> Iterator[Chunk]:
    """Cut chunks again from a new pass over their document, without counting tokens.

    `outlines` are the chunks in order; their texts are not used. Holds about one chunk and one block of text
    at a time. Raises `DocumentError` if the document has become shorter.
    """
    stream, held, start = iter(blocks), "", 0  # `held` begins at offset `start` of the document
    for outline in outlines:
        while start + len(held) < outline.end:
            block = next(stream, None)
            if block is None:
                raise DocumentError(f"{outline.source} is shorter than when it was first read")
            passed = min(max(outline.start - start, 0), len(held))
            held, start = held[passed:] + block.text, start + passed
        yield replace(outline, text=held[outline.start - start : outline.end - start])


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one source contributes to a chunk; `tokens` includes its head, `last` ends the source."""

    text: str
    parts: tuple[Part, ...]
    tokens: int
    last: bool


def _pieces(blocks: Pass, chunk_tokens: int, count_tokens: TokenCounter, exact: bool) -> Iterator[_Piece]:
    """Cut each source on its own."""
    titled = blocks.document.titled or len(blocks.document.sources) > 1
    end = 0
    for source, own in groupby(blocks, key=lambda block: block.source):
        head = file_head(blocks.mark, source.title) if titled else ""
        if head and count_tokens(head) * 2 > chunk_tokens:  # it would leave too little room for the text
            head = ""
        offset, pages = end - source.characters_before, list[tuple[int, int | None]]()
        texts = _noting_pages(own, end, pages)
        counting = _counting_behind(head, count_tokens)
        pieces = cut(texts, chunk_tokens, counting, exact=exact, separated=is_separated(source.name))
        for text, tokens, last, columns in pieces:
            start, end = end, end + len(text)
            first, *others = _by_page(start, end, pages)
            parts = [Part(source.name, *first, offset, head, columns)]
            parts += [Part(source.name, *span, offset) for span in others]
            yield _Piece(text, tuple(parts), tokens, last)


def _counting_behind(head: str, count_tokens: TokenCounter) -> TokenCounter:
    return (lambda text: count_tokens(head + text)) if head else count_tokens


def _noting_pages(blocks: Iterable[Block], offset: int, pages: list[tuple[int, int | None]]) -> Iterator[str]:
    """The texts of blocks; the offset at which each page begins is added to `pages`."""
    for block in blocks:
        if not pages or pages[-1][1] != block.page:
            pages.append((offset, block.page))
        offset += len(block.text)
        yield block.text


def _by_page(start: int, end: int, pages: list[tuple[int, int | None]]) -> list[tuple[int, int, int | None]]:
    """A span split where pages begin, each part with its page; drops pages that end before it."""
    while len(pages) > 1 and pages[1][0] <= start:
        del pages[0]
    begun = [(max(begins, start), page) for begins, page in pages if begins < end]
    ends = [*(begins for begins, _ in begun[1:]), end]
    return [(begins, ends[number], page) for number, (begins, page) in enumerate(begun)]


def _pack(pieces: Iterable[_Piece], chunk_tokens: int) -> Iterator[list[_Piece]]:
    """Group the pieces that share a chunk: the end of a source and the whole sources after it that fit."""
    held: list[_Piece] = []
    tokens = characters = 0
    for piece in pieces:
        fits = tokens + piece.tokens + 1 <= chunk_tokens  # a line end may be needed between them
        short = characters + len(piece.text) <= chunk_tokens * MAX_CHARACTERS_PER_TOKEN
        if held and not (piece.last and fits and short):
            yield held
            held, tokens, characters = [], 0, 0
        held.append(piece)
        tokens, characters = tokens + piece.tokens + 1, characters + len(piece.text)
        if not piece.last:
            yield held
            held, tokens, characters = [], 0, 0
    if held:
        yield held


def _chunks_of(pieces: list[_Piece], chunk_tokens: int, count_tokens: TokenCounter) -> Iterator[Chunk]:
    """Join the pieces into one chunk, or into several if together they exceed the budget."""
    if len(pieces) == 1:
        one = pieces[0]
        yield Chunk(0, one.text, one.parts[0].start, one.parts[-1].end, one.tokens, one.parts)
        return
    parts = list(pieces[0].parts)
    for before, piece in pairwise(pieces):
        first, *others = piece.parts
        if first.head and not before.text.endswith("\n"):
            first = replace(first, head="\n" + first.head)
        parts += [first, *others]
    text = "".join(piece.text for piece in pieces)
    chunk = _count(0, text, tuple(parts), count_tokens)
    if chunk.tokens <= chunk_tokens:
        yield chunk
    else:
        middle = len(pieces) // 2
        yield from _chunks_of(pieces[:middle], chunk_tokens, count_tokens)
        yield from _chunks_of(pieces[middle:], chunk_tokens, count_tokens)


class Cut(NamedTuple):
    """A piece of a text: its tokens, with those of `columns`, which is the head of the table it continues."""

    text: str
    tokens: int
    last: bool
    columns: str


def cut(
    blocks: Iterable[str],
    chunk_tokens: int,
    count_tokens: TokenCounter,
    *,
    exact: bool = False,
    separated: bool = False,
) -> Iterator[Cut]:
    """Cut one text, given in blocks, into pieces.

    The pieces do not depend on how the text is divided into blocks. Those of a `separated` text all continue
    the table whose head is its first line; `exact` pieces are shown without heads.
    """
    stream = iter(blocks)
    buffer, position, columns = "", 0, ""
    ratio = _FIRST_CHARACTERS_PER_TOKEN
    while True:
        wanted = max(1, int(chunk_tokens * ratio * _AIM))
        if len(buffer) - position <= 2 * wanted:
            buffer, position = _fill(buffer[position:], stream, 2 * wanted), 0
        if position == len(buffer):
            return
        # One character more than a piece may have shows whether more text follows.
        ahead = buffer[position : position + 2 * wanted + 1]
        shown = columns
        if exact or (shown and count_tokens(shown) * 2 > chunk_tokens):  # it would leave too little room
            shown = ""
        if exact:
            length, tokens = _fit_exactly(ahead[: 2 * wanted], chunk_tokens, count_tokens)
        else:
            length, tokens = _fit(ahead, wanted, chunk_tokens, _counting_behind(shown, count_tokens))
        position += length
        yield Cut(ahead[:length], tokens, position == len(buffer), shown)
        columns = columns_after(ahead[:length], columns, ahead[length : length + 1], separated)
        # Blank or unbroken text may have hardly any tokens: pieces stay finite.
        ratio = min(length / max(tokens, 1), MAX_CHARACTERS_PER_TOKEN)


def _fill(held: str, stream: Iterator[str], least: int) -> str:
    """`held` and what follows it, until it is longer than `least` or the stream ends."""
    parts, length = [held], len(held)
    while length <= least and (block := next(stream, None)) is not None:
        parts.append(block)
        length += len(block)
    return "".join(parts)


def _fit(text: str, wanted: int, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """The length of the first piece of `text`, in characters (at most 2 * `wanted`) and tokens."""
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


def _fit_exactly(text: str, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """The length of the longest piece of `text` that fits, in whole characters, and its tokens.

    Found by bisection; then the characters after it are tried, since a whole word may have fewer tokens than
    its beginning.
    """
    fits = longest_prefix(text, budget, count_tokens, 1, len(text) + 1)
    ends = range(min(fits + _MAX_TOKEN, len(text)), fits, -1)
    fits = next((end for end in ends if count_tokens(text[:end]) <= budget), fits)
    length = _whole_character(text, fits)
    return length, count_tokens(text[:length])


def _bisect(text: str, length: int, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """Halve the length until it fits: for the rare text whose token density jumps."""
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
    """`end`, moved back so that it splits no line end and nothing that a reader sees as one character."""
    end = max(end, 1)
    before = range(end, max(end - _MAX_CHARACTER, 0), -1)
    return next((position for position in before if not _join(text, position)), end)


def _join(text: str, position: int) -> bool:
    """Whether the characters on either side of a position belong together."""
    before, after = text[position - 1], text[position : position + 1]
    if not after:
        return False
    if _FLAG_HALVES.match(after):
        halves = _FLAG_HALVES.search(text, max(position - _MAX_CHARACTER, 0), position)
        return halves is not None and len(halves.group()) % 2 == 1
    return (
        before == "\u200d"
        or before + after == "\r\n"
        or _EXTENDS.match(after) is not None
        or unicodedata.category(after).startswith("M")
    )


def halve(chunk: Chunk, count_tokens: TokenCounter) -> tuple[Chunk, Chunk]:
    """Cut a chunk in two at a natural place near the middle; both halves keep its index.

    Raises `ValueError` for a chunk of a single character.
    """
    if len(chunk.text) < 2:
        raise ValueError("a chunk of one character cannot be halved")
    middle = natural_end(chunk.text, len(chunk.text) // 2)
    border = chunk.start + middle
    before = tuple(replace(part, end=min(part.end, border)) for part in chunk.parts if part.start < border)
    after = [replace(part, start=max(part.start, border)) for part in chunk.parts if part.end > border]
    heads = [part.head for part in before if part.source == after[0].source and part.head]
    after[0] = replace(after[0], head=(after[0].head or "".join(heads)).lstrip("\n"))
    if (part := before[-1]).source == after[0].source:
        begun = bool(part.columns) or part.start == part.offset
        text, following = chunk.text_of(part), chunk.text[middle : middle + 1]
        columns = columns_after(text, part.columns, following, begun and is_separated(part.source))
        after[0] = replace(after[0], columns=columns)
    return (
        _count(chunk.index, chunk.text[:middle], before, count_tokens),
        _count(chunk.index, chunk.text[middle:], tuple(after), count_tokens),
    )


def _count(index: int, text: str, parts: tuple[Part, ...], count_tokens: TokenCounter) -> Chunk:
    chunk = Chunk(index, text, parts[0].start, parts[-1].end, 0, parts)
    return replace(chunk, tokens=count_tokens(chunk.shown))
