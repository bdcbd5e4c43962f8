"""Cut a document into chunks within a token budget, without losing a character.

Small files share a chunk; each is shown under its name, on a line with a mark that no text in it can know.
A chunk that begins within a table shows the table's head again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from memagent.documents.cutting import columns_after, count_with, cut, is_separated, natural_end
from memagent.documents.opening import Block, Document, Pass
from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN
from memagent.errors import DocumentError
from memagent.prompts import file_head
from memagent.types import Chunk, Part, TokenCounter


def split(
    document: Document | Pass, chunk_tokens: int, count_tokens: TokenCounter, *, exact: bool = False
) -> Iterator[Chunk]:
    """The chunks of a document, in order: what is shown of each has at most `chunk_tokens` tokens.

    Joined, their texts are the document's. Only about one chunk of text is held at a time. With `exact`, a
    chunk ends where its tokens do, even within a word; otherwise at a natural place. A chunk of a single
    character may exceed the budget. Give a `Pass` to see what was skipped.
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
    stream, buffer, start = iter(blocks), "", 0  # `buffer` begins at offset `start` of the document
    for outline in outlines:
        while start + len(buffer) < outline.end:
            block = next(stream, None)
            if block is None:
                raise DocumentError(f"{outline.source} is shorter than when it was first read")
            passed = min(max(outline.start - start, 0), len(buffer))
            buffer, start = buffer[passed:] + block.text, start + passed
        yield replace(outline, text=buffer[outline.start - start : outline.end - start])


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one source contributes to a chunk. `tokens` includes its head; the `last` one ends the source."""

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
        texts = _note_pages(own, end, pages)
        counting = count_with(head, count_tokens)
        pieces = cut(texts, chunk_tokens, counting, exact=exact, separated=is_separated(source.name))
        for text, tokens, last, columns in pieces:
            start, end = end, end + len(text)
            first, *others = _by_page(start, end, pages)
            parts = [Part(source.name, *first, offset, head, columns)]
            parts += [Part(source.name, *span, offset) for span in others]
            yield _Piece(text, tuple(parts), tokens, last)


def _note_pages(blocks: Iterable[Block], offset: int, pages: list[tuple[int, int | None]]) -> Iterator[str]:
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
    starts = [(max(begins, start), page) for begins, page in pages if begins < end]
    ends = [*(begins for begins, _ in starts[1:]), end]
    return [(begins, ends[number], page) for number, (begins, page) in enumerate(starts)]


def _pack(pieces: Iterable[_Piece], chunk_tokens: int) -> Iterator[list[_Piece]]:
    """Group the pieces that share a chunk: the end of a source and the whole sources after it that fit."""
    group: list[_Piece] = []
    tokens = characters = 0
    for piece in pieces:
        fits = tokens + piece.tokens + 1 <= chunk_tokens  # a line end may be needed between them
        short = characters + len(piece.text) <= chunk_tokens * MAX_CHARACTERS_PER_TOKEN
        if group and not (piece.last and fits and short):
            yield group
            group, tokens, characters = [], 0, 0
        group.append(piece)
        tokens, characters = tokens + piece.tokens + 1, characters + len(piece.text)
        if not piece.last:
            yield group
            group, tokens, characters = [], 0, 0
    if group:
        yield group


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


def halve(chunk: Chunk, count_tokens: TokenCounter) -> tuple[Chunk, Chunk]:
    """Cut a chunk in two at a natural place near the middle; both halves keep its index.

    Raises `ValueError` for a chunk of a single character.
    """
    if len(chunk.text) < 2:
        raise ValueError("a chunk of one character cannot be halved")
    return cut_at(chunk, natural_end(chunk.text, len(chunk.text) // 2), count_tokens)


def cut_at(chunk: Chunk, middle: int, count_tokens: TokenCounter) -> tuple[Chunk, Chunk]:
    """Cut a chunk in two at a place within its text; both pieces keep its index."""
    border = chunk.start + middle
    before = tuple(replace(part, end=min(part.end, border)) for part in chunk.parts if part.start < border)
    after = [replace(part, start=max(part.start, border)) for part in chunk.parts if part.end > border]
    heads = [part.head for part in before if part.source == after[0].source and part.head]
    after[0] = replace(after[0], head=(after[0].head or "".join(heads)).lstrip("\n"))
    if (part := before[-1]).source == after[0].source:
        columns = columns_after(
            chunk.text_of(part), part.columns, chunk.text[middle : middle + 1],
            separated=is_separated(part.source), first=part.start == part.offset,
        )  # fmt: skip
        after[0] = replace(after[0], columns=columns)
    return (
        _count(chunk.index, chunk.text[:middle], before, count_tokens),
        _count(chunk.index, chunk.text[middle:], tuple(after), count_tokens),
    )


def cut_out(
    chunk: Chunk, start: int, end: int, count_tokens: TokenCounter
) -> tuple[Chunk | None, Chunk, Chunk | None]:
    """A span of a chunk's text as a chunk of its own, and what stands before and after it, if anything."""
    before, rest = cut_at(chunk, start, count_tokens) if start else (None, chunk)
    length = end - start
    middle, after = cut_at(rest, length, count_tokens) if length < len(rest.text) else (rest, None)
    return before, middle, after


def _count(index: int, text: str, parts: tuple[Part, ...], count_tokens: TokenCounter) -> Chunk:
    chunk = Chunk(index, text, parts[0].start, parts[-1].end, 0, parts)
    return replace(chunk, tokens=count_tokens(chunk.shown))
