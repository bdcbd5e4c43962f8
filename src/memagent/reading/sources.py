"""Where statements come from: the place in the document that says each, if there is one.

A statement of the memory is looked for in the chunk that brought it; one of the answer, in the sources of
the memory's statements, then in the whole document (`memagent.reading.locating`). A text says a statement if
it has all its words in one run (`memagent.reading.quotes`). A source quotes the document character for
character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from memagent.documents.cutting import PARAGRAPH_END
from memagent.documents.tokens import UNSPACED
from memagent.reading.quotes import find_span, is_telling, says
from memagent.types import Chunk, Conversation, Part

_LONG = 300  # characters: a longer "sentence" is a list or a table, of which each line counts as one

_ABBREVIATION = r"(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\bMrs\.)"
SENTENCE_END = re.compile(rf"(?<=[.!?…]){_ABBREVIATION}[\"'”’»)\]]*\s+|(?<=[。！？])")
LINE_END = re.compile(r"\n+")
HEADING = re.compile(r"^#{1,6}[ \t][^\n]*", re.MULTILINE)

Span = tuple[int, int]
"""Where something begins and ends in a text."""

_STATEMENT_END = re.compile(rf"{SENTENCE_END.pattern}|{LINE_END.pattern}")
_TEXT_END = re.compile(rf"{SENTENCE_END.pattern}|{PARAGRAPH_END.pattern}")
"""Where a sentence of a document ends; a single line break does not end one."""

_HEADING = re.compile(rf"{HEADING.pattern}|^.*:[*_ \t]*\n", re.MULTILINE)
_BULLET = re.compile(r"\A\s*(?:[-*•–]|\d{1,3}[.)])\s+")
_WORD = re.compile(rf"[{UNSPACED}]|\w+")
_CONTEXT = 200
"""How many characters of a sentence a source shows on either side of a statement; none if it has more."""


@dataclass(frozen=True, slots=True)
class Source:
    """The place that a statement comes from: a file, the page if it has pages, and the verbatim excerpt.

    `start` and `end` are the excerpt's character offsets in the file's text (end exclusive), `at` is where it
    begins in the whole document that was read; None if that is not known.
    """

    file: str
    page: int | None
    start: int
    end: int
    excerpt: str
    at: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of a memory or an answer, and where it comes from: None if nothing in the text says it.

    The passages `nearest` to a statement without a source say it in other words, if at all.
    """

    text: str
    source: Source | None
    nearest: tuple[Source, ...] = ()


NEAREST = "nearest passage, other words"
"""The label of a passage that is nearest to a statement but does not say it word for word."""


class Sources(Protocol):
    """Tracks a memory while a document is read, and knows where its statements come from."""

    def chunk(self, chunk: Chunk) -> None:
        """A chunk is about to be read."""

    def update(self, conversation: Conversation) -> None:
        """The memory was written. May block."""

    @property
    def memory(self) -> tuple[Statement, ...]:
        """The statements of the memory as it is now."""

    def answer(self, answer: str) -> tuple[Statement, ...]:
        """The statements of an answer, with sources from the memory. May block."""

    def bare(self, answer: str) -> str:
        """The answer without the marks that name its sources."""


class Provenance:
    """The statements of a memory with their sources, while a document is read; `statements` are the first."""

    def __init__(self, statements: Iterable[Statement] = ()) -> None:
        self._chunks: dict[int, Chunk] = {}  # whose conversations have not ended
        self._statements = {statement.text: statement.source for statement in statements}

    def chunk(self, chunk: Chunk) -> None:
        """A chunk is about to be read."""
        self._chunks[chunk.index] = chunk

    def update(self, conversation: Conversation) -> None:
        """The memory was written: new statements come from the chunk that was read."""
        if conversation.kind == "answer":
            return
        index, span = conversation.chunk_index, conversation.span  # none where notes were merged
        chunk = None if index is None else self._chunks.get(index)
        self._statements = {
            text: self._statements.get(text) or (find(text, chunk, span) if chunk else None)
            for text in statements_of(conversation.memory)
        }
        for ended in [number for number in self._chunks if chunk and number < chunk.index]:
            del self._chunks[ended]

    @property
    def memory(self) -> tuple[Statement, ...]:
        """The statements of the memory as it is now."""
        return tuple(Statement(text, source) for text, source in self._statements.items())

    def answer(self, answer: str) -> tuple[Statement, ...]:
        """The statements of an answer, with sources from the memory."""
        known = [source for source in self._statements.values() if source]
        return tuple(
            Statement(
                text,
                self._statements.get(text)
                or next((source for source in known if says(source.excerpt, text)), None),
            )
            for text in statements_of(answer)
        )

    def bare(self, answer: str) -> str:
        """The answer, which has no marks."""
        return answer


def statements_of(text: str) -> list[str]:
    """The sentences of a text, each once and without bullets; those without a word are left out.

    A heading is no statement, nor is a line that announces those below it, unless the text has nothing else.
    """
    bare = _HEADING.sub("\n", text)
    parts = (
        _BULLET.sub("", part).strip() for part in _STATEMENT_END.split(bare if _WORD.search(bare) else text)
    )
    return list(dict.fromkeys(part for part in parts if _WORD.search(part)))


def find(statement: str, chunk: Chunk, span: tuple[int, int] | None = None) -> Source | None:
    """Where a chunk says a statement, within a span of the whole document; None if it does not.

    A single word that is neither a name nor a number is not looked for: it may occur anywhere.
    """
    if not is_telling(statement):
        return None
    match = find_in_chunk(chunk, statement, span)
    return source_at(chunk, *match, sentence=True) if match else None


def narrow(source: Source, statement: str) -> Source:
    """The sentence of a source that says a statement; the whole of it if several say it together."""
    text, span = source.excerpt, find_span(statement, source.excerpt)
    for paragraph in between(text, 0, len(text), PARAGRAPH_END):
        for start, end in sentences(text, *paragraph):
            if span and start <= span[0] and span[1] <= end:
                at = None if source.at is None else source.at + start
                return Source(
                    source.file, source.page, source.start + start, source.start + end, text[start:end], at
                )
    return source


def find_in_chunk(chunk: Chunk, words: str, span: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """The span in the whole document where a file in a chunk says some words; None if no file does.

    With a `span` of the whole document, only that part of the chunk is searched.
    """
    for start, end in file_spans(chunk, span):
        if match := find_span(words, chunk.text[start - chunk.start : end - chunk.start]):
            return start + match[0], start + match[1]
    return None


def source_at(chunk: Chunk, start: int, end: int, *, sentence: bool = False) -> Source:
    """The source at a span of the whole document, with the sentence around it if `sentence` is set.

    The span lies within one file. Of several pages, the one where it begins is given.
    """
    if sentence:
        start, end = _with_sentence(chunk, start, end)
    part = _part_at(chunk, start)
    excerpt = chunk.text[start - chunk.start : end - chunk.start]
    return Source(part.source, part.page, start - part.offset, end - part.offset, excerpt, start)


def file_span(chunk: Chunk, start: int) -> tuple[int, int]:
    """The part of a chunk, as a span of the whole document, that belongs to the file at offset `start`."""
    part = _part_at(chunk, start)
    same = [other for other in chunk.parts if (other.source, other.offset) == (part.source, part.offset)]
    return same[0].start, same[-1].end


def file_spans(chunk: Chunk, span: Span | None = None) -> Iterator[Span]:
    """The parts of a chunk, or of a span in it, that are of one file each, as spans of the whole document."""
    start, last = span or (chunk.start, chunk.end)
    while start < last:
        end = min(file_span(chunk, start)[1], last)
        yield start, end
        start = end


def _part_at(chunk: Chunk, start: int) -> Part:
    return next(part for part in chunk.parts if start < part.end)


def _with_sentence(chunk: Chunk, start: int, end: int) -> tuple[int, int]:
    """A span extended in its file to the sentence around it, on each side where that is in reach.

    Where it is not, nothing is added: half a sentence may say what the whole one does not.
    """
    text, (low, high) = chunk.text, (offset - chunk.start for offset in file_span(chunk, start))
    start, end = start - chunk.start, end - chunk.start
    first, last = max(start - _CONTEXT, low), min(end + _CONTEXT, high)
    before, after = text[first:start], text[end:last]
    if borders := [match.end() for match in _TEXT_END.finditer(before)]:
        before = before[borders[-1] :]
    elif first > low:
        before = ""
    if border := _TEXT_END.search(text, max(end - 1, low), last):
        after = text[end : max(border.start(), end)]
    elif last < high:
        after = ""
    before, after = before.lstrip(), after.rstrip()
    return chunk.start + start - len(before), chunk.start + end + len(after)


def add_offsets(statements: Iterable[Statement], beginnings: Mapping[str, int]) -> tuple[Statement, ...]:
    """The statements, each source with its offset in the document, in which files begin at `beginnings`."""
    placed = []
    for statement in statements:
        source = statement.source
        if source and source.at is None and (begins := beginnings.get(source.file)) is not None:
            statement = replace(statement, source=replace(source, at=begins + source.start))
        placed.append(statement)
    return tuple(placed)


def statements_from(recorded: Iterable[Mapping[str, Any]]) -> tuple[Statement, ...]:
    """Statements with their sources, from the JSON of `dataclasses.asdict`."""
    return tuple(
        Statement(
            record["text"],
            record["source"] and Source(**record["source"]),
            tuple(Source(**near) for near in record["nearest"]),
        )
        for record in recorded
    )


def sentences(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences of a paragraph, or its lines where they have no end."""
    for first, last in between(text, start, end, SENTENCE_END):
        if last - first > _LONG:
            yield from between(text, first, last, LINE_END)
        else:
            yield first, last


def between(text: str, start: int, end: int, border: re.Pattern[str]) -> Iterator[Span]:
    """The stretches between borders, without white space around them."""
    borders = [match.span() for match in border.finditer(text, start, end)]
    for first, last in zip(
        [start, *(last for _, last in borders)], [*(first for first, _ in borders), end], strict=True
    ):
        piece = text[first:last]
        if bare := piece.strip():
            first += len(piece) - len(piece.lstrip())
            yield first, first + len(bare)
