"""Where statements come from in a whole document: the place that says each, or else its nearest passages.

The nearest passages say it in other words, if at all: they share its telling words, each of which counts by
how rare it is in the document, and have all of its names and numbers that the problem did not bring up. How
often they are the right ones was measured: see docs/sources.md. A heading is no passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memagent.documents.chunking import split
from memagent.documents.opening import Document
from memagent.documents.tokens import estimate_tokens
from memagent.reading.locating import count_words, paragraphs
from memagent.reading.ranking import Rarity, stems, telling, weight
from memagent.reading.sentences import HEADING, between, sentences
from memagent.reading.sources import Source, Statement, find, source_at
from memagent.types import Chunk

MIN_COVERED = 0.6
"""The least share, 0 to 1 by weight, of a statement's telling words that its nearest passages have."""

_MAX_PASSAGES = 2
_MIN_ADDED = 0.15  # the least share that a further passage adds
_MIN_SHARED = 2  # words: one alone may occur anywhere
_MAX_LENGTH = 1000  # characters: what has no sentences for longer has words of everything
_MAX_KEPT = 64  # passages considered at the end, the best by then: memory does not grow with the document


@dataclass(frozen=True, slots=True)
class _Passage:
    """A sentence of the document with the words that it shares with a statement."""

    shared: frozenset[str]
    paragraph: tuple[int, int]
    source: Source

    def belongs_with(self, other: _Passage) -> bool:
        """Whether the two may speak of the same: they share a word of the statement, or a paragraph."""
        return self.paragraph == other.paragraph or bool(self.shared & other.shared)


@dataclass(slots=True)
class _Search:
    """The search for the passages nearest to a statement: its telling words, and those that may not lack."""

    weights: Mapping[str, float]
    needed: frozenset[str]
    passages: list[_Passage] = field(default_factory=list)

    def consider(self, passage: _Passage) -> None:
        """Take in a passage, and give up the worst if there are many."""
        self.passages.append(passage)
        if len(self.passages) >= 2 * _MAX_KEPT:
            self.passages = self._ranked()[:_MAX_KEPT]

    def nearest(self, least: float = MIN_COVERED) -> tuple[Source, ...]:
        """The nearest passages, in the document's order; none if they have too little of the statement."""
        whole, chosen, covered = self._weigh(self.weights), list[_Passage](), frozenset[str]()
        for _ in range(_MAX_PASSAGES):
            fit = [it for it in self._ranked() if not chosen or it.belongs_with(chosen[0])]
            best = max(fit, key=lambda it: self._weigh(it.shared - covered), default=None)
            if best is None or self._weigh(best.shared - covered) < _MIN_ADDED * whole:
                break
            chosen.append(best)
            covered |= best.shared
        enough = len(covered) >= _MIN_SHARED and self._weigh(covered) >= least * whole
        if not enough or self.needed - covered:
            return ()
        return tuple(sorted((it.source for it in chosen), key=lambda it: it.at or 0))

    def _ranked(self) -> list[_Passage]:
        return sorted(self.passages, key=lambda it: self._weigh(it.shared), reverse=True)

    def _weigh(self, words: Iterable[str]) -> float:
        return sum(self.weights[it] for it in sorted(words))


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
    found, rarity = list(statements), Rarity()
    for chunk in split(document.blocks(), chunk_tokens, estimate_tokens):
        if all(it.source for it in found):
            return tuple(found)
        count_words(chunk, rarity)
        for place, it in enumerate(found):
            if it.source is None:
                found[place] = replace(it, source=find(it.text, chunk))
    searches = {
        place: _Search(_weights(it.text, rarity), _names(it.text) - telling(problem))
        for place, it in enumerate(found)
        if it.source is None
    }
    if searches:
        for chunk in split(document.blocks(), chunk_tokens, estimate_tokens):
            _look_through(chunk, list(searches.values()))
    for place, search in searches.items():
        found[place] = replace(found[place], nearest=search.nearest(least))
    return tuple(found)


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


def _weights(statement: str, rarity: Rarity) -> dict[str, float]:
    """The weights of a statement's telling words; one that the document lacks is as rare as the rarest."""
    return {it: weight(rarity.texts, max(rarity.holding(it), 1)) for it in telling(statement)}


def _names(statement: str) -> frozenset[str]:
    """The stems of a statement's names and numbers; a first word has a capital anyway, but a name goes on."""
    words = re.findall(r"\w+", statement)
    first = len(words) > 1 and not words[1][0].isupper()
    named = [it for it in words[first:] if it[0].isupper() and len(it) > 1]
    return telling(" ".join([*named, *(it for it in words if it[0].isdigit())]))
