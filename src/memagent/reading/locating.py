"""Which sentences a note or a statement comes from: those that share most of its words, above all rare ones.

The model writes a note; the memory keeps the document's own words in its stead. A statement of an answer that
the document does not say word for word is given its nearest passages: they share its telling words, and have
all of its names and numbers that the problem does not mention. How often they are the right ones was
measured: see docs/sources.md. A heading is no passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memagent.documents.chunking import split
from memagent.documents.cutting import PARAGRAPH_END
from memagent.documents.opening import Document
from memagent.documents.tokens import estimate_tokens
from memagent.reading.ranking import Rarity, find_names, stems, telling
from memagent.reading.sources import (
    HEADING,
    Source,
    Span,
    Statement,
    between,
    file_spans,
    find,
    sentences,
    source_at,
)
from memagent.reading.windows import windows
from memagent.text import SOFT_HYPHEN
from memagent.types import Chunk, Part

MAX_SENTENCES = 4
"""The most sentences that one note leads to: two, and those that are about as good as the best."""

_AS_GOOD = 0.9  # of the best one's weight: the problem wants several

MIN_NAMED = 0.3
"""The least share, 0 to 1 by weight, of the problem's words that a passage has if the document answers it."""

_MEASURES = frozenset(
    stems(
        """high low long short far near deep wide tall big large small heavy old fast often per hour day week
        month year daily weekly monthly yearly annual"""
    )
)

MIN_COVERED = 0.6
"""The least share, 0 to 1 by weight, of a statement's telling words that its nearest passages have."""

_BETWEEN_PIECES = re.compile(r"[,;]\s+|\b(?:and|or)\b")
_WORD = re.compile(r"\w")
_MAX_PASSAGES = 2
_MIN_ADDED = 0.15  # the least share that a further passage adds
_MIN_SHARED = 2  # words: one alone may occur anywhere
_MAX_LENGTH = 1000  # characters: what has no sentences for longer has words of everything
_MAX_KEPT = 64  # passages considered at the end, the best by then: memory does not grow with the document


@dataclass(frozen=True, slots=True)
class Find:
    """The passages of one chunk that a note led to, in order, word for word.

    `support` is the share, 0 to 1 by weight, of the note's own words that the chunk has.
    """

    sources: tuple[Source, ...]
    support: float = 1.0

    @property
    def text(self) -> str:
        """The passages as one line."""
        return " ".join(word for source in self.sources for word in source.excerpt.split())


def locate(note: str, problem: str, chunk: Chunk, span: Span, rarity: Rarity) -> Find | None:
    """The passages of a chunk, within a span of the whole document, that a note on it comes from.

    None if neither the note nor the problem has a telling word that is there. `rarity` has seen what was
    read, by paragraphs.
    """
    problem_words, note_words = telling(problem), telling(note)
    text = chunk.text[span[0] - chunk.start : span[1] - chunk.start]
    groups = list(paragraphs(text, chunk, span))
    chunk_words = frozenset(word for start, end in groups for word in stems(text[start:end]))
    own_words = note_words - problem_words or note_words
    if not (note_words | problem_words) & chunk_words:
        return None
    support = rarity.weigh(own_words & chunk_words) / (rarity.weigh(own_words) or 1.0)
    spans = _find_spans(text, groups, (note_words | problem_words) & chunk_words, rarity)
    return Find(tuple(source_at(chunk, span[0] + start, span[0] + end) for start, end in spans), support)


def count_words(chunk: Chunk, rarity: Rarity) -> None:
    """Count the words of a chunk, by paragraphs."""
    for start, end in between(chunk.text, 0, len(chunk.text), PARAGRAPH_END):
        rarity.see(stems(chunk.text[start:end]))


def coverage(problem: str, text: str, rarity: Rarity) -> float:
    """The share, 0 to 1 by weight, of the problem's telling words that a text has."""
    return _share(telling(problem), text, rarity)


def falls_short(problem: str, passages: Iterable[str], rarity: Rarity, least: float = MIN_NAMED) -> bool:
    """Whether no passage has the `least` share of the problem's words, or the document lacks its names.

    Words that only measure (how *long*, per *month*) say nothing about that. How often it is right was
    measured: see benchmarks/gate.py.
    """
    problem_words = telling(problem) - _MEASURES
    covered = max((_share(problem_words, passage, rarity) for passage in passages), default=0.0)
    names = find_names(problem.partition(" ")[2])  # the first word of a sentence is no name
    known = sum(rarity.holding(name) > 0 for name in names) / len(names) if names else 1.0
    return bool(problem_words) and covered * known < least


def hardly_names(text: str, problem: str, least: float = MIN_NAMED) -> bool:
    """Whether no passage of a text has much of what a problem says, as in `falls_short`. Blocks."""
    span = 0, len(text)
    whole, rarity = Chunk(0, text, *span, tokens=0, parts=(Part("", *span),)), Rarity()
    count_words(whole, rarity)
    find = locate(problem, problem, whole, span, rarity)
    return falls_short(problem, [find.text] if find else [], rarity, least)


def _share(words: frozenset[str], text: str, rarity: Rarity) -> float:
    """The share, 0 to 1 by weight, of some words that a text has; 0 of none."""
    whole = rarity.weigh(words)
    return rarity.weigh(words & frozenset(stems(text))) / whole if whole else 0.0


def paragraphs(text: str, chunk: Chunk, span: Span) -> Iterator[Span]:
    """The paragraphs of a text, which is a chunk's within a span of the document; none is of two files."""
    for start, end in file_spans(chunk, span):
        yield from between(text, start - span[0], end - span[0], PARAGRAPH_END)


def _find_spans(text: str, groups: Iterable[Span], words: frozenset[str], rarity: Rarity) -> list[Span]:
    """The sentences that have most of these words, in order; neighbours in a group are joined.

    Text without sentences gives windows instead.
    """
    word_weights = {word: rarity.weigh([word]) for word in words}
    candidates = [
        (span, group)
        for group, paragraph in enumerate(groups)
        for sentence in sentences(text, *paragraph)
        for span in windows(text, sentence, word_weights, MAX_SENTENCES)
    ]
    weights = [rarity.weigh(words.intersection(stems(text[start:end]))) for (start, end), _ in candidates]
    ranked = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)[:MAX_SENTENCES]
    as_good = [index for index in ranked if weights[index] >= _AS_GOOD * weights[ranked[0]]]
    chosen = [index for index in {*ranked[:2], *as_good} if weights[index]]
    joined: list[Span] = []
    last = -2
    for index in sorted(chosen):
        span, group = candidates[index]
        if (
            index == last + 1
            and group == candidates[last][1]
            and not _WORD.search(text, joined[-1][1], span[0])
        ):
            joined[-1] = (joined[-1][0], span[1])
        else:
            joined.append(span)
        last = index
    return joined


@dataclass(frozen=True, slots=True)
class _Passage:
    """A sentence of the document with the words that it shares with a statement."""

    shared: frozenset[str]
    paragraph: tuple[int, int]
    source: Source


@dataclass(slots=True)
class _Search:
    """The search for the passages nearest to a statement: its telling words, some of which are `needed`."""

    weights: Mapping[str, float]
    needed: frozenset[str]
    passages: list[_Passage] = field(default_factory=list)

    def consider(self, passage: _Passage) -> None:
        """Add a passage, and drop the worst if there are many."""
        self.passages.append(passage)
        if len(self.passages) >= 2 * _MAX_KEPT:
            self.passages = self._rank()[:_MAX_KEPT]

    def nearest(self, least: float = MIN_COVERED) -> tuple[Source, ...]:
        """The nearest passages, in the document's order; none if they have too little of the statement."""
        whole, chosen, covered = self._weigh(self.weights), list[_Passage](), frozenset[str]()
        for _ in range(_MAX_PASSAGES):
            fit = [  # those that may speak of the same as the first
                passage
                for passage in self._rank()
                if not chosen or passage.paragraph == chosen[0].paragraph or passage.shared & chosen[0].shared
            ]
            best = max(fit, key=lambda passage: self._weigh(passage.shared - covered), default=None)
            if best is None or self._weigh(best.shared - covered) < _MIN_ADDED * whole:
                break
            chosen.append(best)
            covered |= best.shared
        enough = len(covered) >= _MIN_SHARED and self._weigh(covered) >= least * whole
        if not enough or self.needed - covered:
            return ()
        return tuple(sorted((passage.source for passage in chosen), key=lambda source: source.at or 0))

    def _rank(self) -> list[_Passage]:
        return sorted(self.passages, key=lambda passage: self._weigh(passage.shared), reverse=True)

    def _weigh(self, words: Iterable[str]) -> float:
        return sum(self.weights[word] for word in sorted(words))


def find_sources(
    statements: Iterable[Statement],
    problem: str,
    document: Document,
    chunk_tokens: int,
    least: float = MIN_COVERED,
) -> tuple[Statement, ...]:
    """The statements; those without a source get one from the document, or their nearest passages. Blocks.

    Args:
        statements: those of an answer, some of which may have sources already.
        problem: what was asked; a statement may repeat its names.
        document: what is searched, chunk by chunk, and again for the nearest passages.
        chunk_tokens: the size of those chunks.
        least: as `MIN_COVERED`.
    """
    located, rarity = list(statements), Rarity()
    for chunk in split(document.blocks(), chunk_tokens, estimate_tokens):
        if all(statement.source for statement in located):
            return tuple(located)
        count_words(chunk, rarity)
        for index, statement in enumerate(located):
            if statement.source is None:
                located[index] = replace(statement, source=find(statement.text, chunk))
    searches = {
        index: [_search(piece, problem, rarity) for piece in (statement.text, *_pieces(statement.text))]
        for index, statement in enumerate(located)
        if statement.source is None
    }
    if searches:
        for chunk in split(document.blocks(), chunk_tokens, estimate_tokens):
            _look_through(chunk, [search for group in searches.values() for search in group])
    for index, (whole, *pieces) in searches.items():
        nearest = whole.nearest(least) or _of_each([piece.nearest(least) for piece in pieces])
        located[index] = replace(located[index], nearest=nearest)
    return tuple(located)


def _search(text: str, problem: str, rarity: Rarity) -> _Search:
    weights = {word: rarity.weigh([word]) for word in telling(text)}
    return _Search(weights, _names(text) - telling(problem))


def _pieces(statement: str) -> list[str]:
    """The pieces of a statement that lists or joins several things; none if it is of one piece."""
    pieces = [piece for piece in _BETWEEN_PIECES.split(statement) if telling(piece)]
    return pieces if len(pieces) > 1 else []


def _of_each(nearest: Sequence[tuple[Source, ...]]) -> tuple[Source, ...]:
    """The passages of all pieces, in the document's order; none unless each piece has some."""
    sources = dict.fromkeys(source for passages in nearest for source in passages)
    return tuple(sorted(sources, key=lambda source: source.at or 0)) if all(nearest) else ()


def _look_through(chunk: Chunk, searches: Sequence[_Search]) -> None:
    """Let each search consider the sentences of a chunk."""
    text = chunk.text
    for number, paragraph in enumerate(paragraphs(text, chunk, (chunk.start, chunk.end))):
        bodies = between(text, *paragraph, HEADING)
        for start, end in (span for body in bodies for span in sentences(text, *body)):
            if end - start > _MAX_LENGTH:
                continue
            words = frozenset(stems(text[start:end]))
            for search in searches:
                if shared := words & search.weights.keys():
                    source = source_at(chunk, chunk.start + start, chunk.start + end)
                    search.consider(_Passage(shared, (chunk.index, number), source))


def _names(statement: str) -> frozenset[str]:
    """The stems of a statement's names and numbers; a first word has a capital anyway, but a name goes on."""
    words = re.findall(r"\w+", statement.replace(SOFT_HYPHEN, ""))
    first = len(words) > 1 and not words[1][0].isupper()
    named = [word for word in words[first:] if word[0].isupper() and len(word) > 1]
    return telling(" ".join([*named, *(word for word in words if word[0].isdigit())]))
