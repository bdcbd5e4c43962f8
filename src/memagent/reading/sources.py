"""Where statements come from: for each one the place in the document that says it, or that there is none.

A statement of the memory is looked for in the chunk that brought it, one of the answer in the places that the
memory's statements came from, then in the whole document: first its very words, then the sentence with most
of the words that carry its meaning. Time grows linearly with the text. A source that is shown stands in the
document, character for character. Leaves out paraphrases in other words, which count as unsupported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from memagent.types import Chunk, Conversation

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])|\n+")
_TEXT_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])|\n[ \t]*(?:\r?\n[ \t]*)+")
"""Where a sentence of a document ends: its lines may be broken anywhere."""

_BULLET = re.compile(r"\A\s*(?:[-*•–]|\d{1,3}[.)])\s+")
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Characters of scripts that put no spaces between words."""

_WORD = re.compile(rf"[{_UNSPACED}]|\w+")
_NUMBER = re.compile(r"\d+(?:[.,/:]\d+)*")
_THOUSANDS = re.compile(r"[.,](?=\d{3}(?!\d))")
_LONGEST_EXCERPT = 400
_LEAST_SHARED = 0.6
"""Of the words that carry a statement's meaning: with fewer in common, an excerpt does not support it."""

_LEAST_LETTERS = 4
_MOST_DROPPED = 1000


@dataclass(frozen=True, slots=True)
class Source:
    """The place that a statement comes from: a file, the page if it has pages, and the verbatim excerpt.

    `start` and `end` are character offsets into the file's text (end exclusive), which is `excerpt` there.
    """

    file: str
    page: int | None
    start: int
    end: int
    excerpt: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of a memory or an answer, and where it comes from: None if nothing in the text says it."""

    text: str
    source: Source | None


class Provenance:
    """The statements of a memory with their sources, while a document is read."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._statements: dict[str, Source | None] = {}
        self._dropped: dict[str, Source] = {}  # out of the memory, but may come back

    def chunk(self, chunk: Chunk) -> None:
        """A chunk is about to be read."""
        self._chunks[chunk.index] = chunk

    def update(self, conversation: Conversation) -> None:
        """The memory was written: statements that are new come from the chunk that was read."""
        if conversation.chunk_index is None or conversation.span is None:
            return
        chunk = self._chunks.get(conversation.chunk_index)
        statements = {}
        for text in statements_of(conversation.memory):
            known = self._statements.get(text) or self._dropped.get(text)
            statements[text] = known or (find(text, chunk, conversation.span) if chunk else None)
        self._dropped |= {text: source for text, source in self._statements.items() if source}
        for oldest in list(self._dropped)[:-_MOST_DROPPED]:
            del self._dropped[oldest]
        self._statements = statements
        if chunk and conversation.span[1] == chunk.end:
            del self._chunks[conversation.chunk_index]

    @property
    def memory(self) -> tuple[Statement, ...]:
        """The statements of the memory as it is now."""
        return tuple(Statement(text, source) for text, source in self._statements.items())

    def answer(self, answer: str) -> tuple[Statement, ...]:
        """The statements of an answer, with the sources of what the memory says of them."""
        found = []
        for text in statements_of(answer):
            source = self._statements.get(text) or self._supporting(text)
            found.append(Statement(text, source))
        return tuple(found)

    def _supporting(self, statement: str) -> Source | None:
        """The source that supports a statement of the answer best."""
        best: tuple[float, Source | None] = (0.0, None)
        for source in self._statements.values():
            if source and (share := support(statement, source.excerpt)) > best[0]:
                best = (share, source)
        return best[1]


def statements_of(text: str) -> list[str]:
    """The sentences of a text, each once, without bullets; what has no word is left out."""
    parts = (_BULLET.sub("", part).strip() for part in _SENTENCE_END.split(text))
    return list(dict.fromkeys(part for part in parts if _WORD.search(part)))


def find(statement: str, chunk: Chunk, span: tuple[int, int] | None = None) -> Source | None:
    """Where a chunk says a statement, within a span of the whole document; None if it does not."""
    first, last = span or (chunk.start, chunk.end)
    text = chunk.text[first - chunk.start : last - chunk.start]
    words = statement.rstrip(".!?… ")
    if len(words.split()) > 1 and (exact := _whole_words(words).search(text)):
        return _source(chunk, first, exact.span())
    best = max(_sentences(text), key=lambda place: support(statement, text[slice(*place)]), default=(0, 0))
    return _source(chunk, first, best) if support(statement, text[slice(*best)]) else None


def _whole_words(words: str) -> re.Pattern[str]:
    """Matches these words where they neither begin nor end within a longer word or number."""
    return re.compile(rf"(?<![^\W{_UNSPACED}])(?<!\d[.,]){re.escape(words)}(?![^\W{_UNSPACED}]|[.,]\d)")


def support(statement: str, excerpt: str) -> float:
    """How much of a statement's meaning an excerpt carries, from 0 to 1; 0 if that is too little.

    All its numbers must be there, and most of the words that carry meaning: names, and longer words. Where a
    name is missing, the excerpt may not have another in its place.
    """
    wanted, found = _telling(statement), {word.lower() for word in _WORD.findall(excerpt)}
    if not wanted or _numbers(statement) - _numbers(excerpt):
        return 0.0
    if _names(statement) - found and _names(excerpt) - {word.lower() for word in _WORD.findall(statement)}:
        return 0.0
    share = sum(word in found for word in wanted) / len(wanted)
    return share if share >= _LEAST_SHARED else 0.0


def _numbers(text: str) -> set[str]:
    """The numbers, dates and times, each whole, without the signs that set thousands apart."""
    return {_THOUSANDS.sub("", number) for number in _NUMBER.findall(text)}


def _names(text: str) -> set[str]:
    """The words with a capital, but the first of the text, which has one in any case."""
    return {word.lower() for word in _WORD.findall(text)[1:] if word[0].isupper()}


def _telling(text: str) -> set[str]:
    """The words that carry a text's meaning; all of them if none seems to."""
    words = _WORD.findall(text)
    telling = {
        word.lower()
        for place, word in enumerate(words)
        if len(word) >= _LEAST_LETTERS
        or word.isdigit()
        or not word.isascii()
        or (place and word[0].isupper())
    }
    return telling or {word.lower() for word in words}


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a document's text are, without white space around them.

    Those that are longer than an excerpt may be come in pieces that overlap by half.
    """
    borders = [0, *(match.end() for match in _TEXT_END.finditer(text)), len(text)]
    for start, end in pairwise(borders):
        for piece in range(start, max(end - _LONGEST_EXCERPT // 2, start + 1), _LONGEST_EXCERPT // 2):
            inner = text[piece : min(piece + _LONGEST_EXCERPT, end)]
            if inner.strip():
                first = piece + len(inner) - len(inner.lstrip())
                yield first, first + len(inner.strip())


def _source(chunk: Chunk, first: int, place: tuple[int, int]) -> Source:
    """The source at a place of the chunk's text from `first` on; of two files, the one with more of it."""
    start, end = first + place[0], first + place[1]
    part = max(chunk.parts, key=lambda part: min(part.end, end) - max(part.start, start))
    start, end = max(start, part.start), min(end, part.end)
    excerpt = chunk.text[start - chunk.start : end - chunk.start]
    return Source(part.source, part.page, start - part.offset, end - part.offset, excerpt)


def located(statements: Iterable[Statement], chunks: Iterable[Chunk]) -> tuple[Statement, ...]:
    """The statements, those without a source looked for in all of a document."""
    found = list(statements)
    best = [1.0 if it.source else 0.0 for it in found]
    for chunk in chunks:
        if min(best, default=1.0) == 1.0:
            break
        for place, it in enumerate(found):
            if best[place] < 1.0 and (source := find(it.text, chunk)):
                share = support(it.text, source.excerpt) or 1.0
                if share > best[place]:
                    best[place], found[place] = share, replace(it, source=source)
    return tuple(found)
