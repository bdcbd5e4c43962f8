"""Which sentences of a chunk a note comes from, and how much they bear on the problem.

A note is the model's; what is kept of it is the document's own words: the sentences of the chunk that share
most with the note and the problem, by how rare each word is in the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from memagent.reading.ranking import Rarity, named, stems, telling
from memagent.reading.sentences import PARAGRAPH_END, Span, between, sentences
from memagent.reading.sources import Source, source_at
from memagent.types import Chunk

MAX_SENTENCES = 4
"""The most sentences that one note leads to: two, and those that are about as good as the best."""

_AS_GOOD = 0.9  # of the best one's weight: the problem wants several
_MIN_COVERED = 0.3  # of the problem's words by its best passage, else the document may not hold the answer


@dataclass(frozen=True, slots=True)
class Find:
    """What a note led to: passages of one chunk, in order, word for word.

    `support` is the share, 0 to 1 by weight, of the note's own words that the chunk has.
    """

    sources: tuple[Source, ...]
    support: float = 1.0

    @property
    def text(self) -> str:
        """The passages as one line."""
        return " ".join(in_one_line(it.excerpt) for it in self.sources)


def locate(note: str, problem: str, chunk: Chunk, span: Span, rarity: Rarity) -> Find | None:
    """The passages of a chunk, within a span of the whole document, that a note on it comes from.

    None if neither the note nor the problem has a telling word that is there. `rarity` has seen what was
    read, by paragraphs.
    """
    asked, noted = telling(problem), telling(note)
    text = chunk.text[span[0] - chunk.start : span[1] - chunk.start]
    groups = list(paragraphs(text, chunk, span))
    there = frozenset(word for start, end in groups for word in stems(text[start:end]))
    own = noted - asked or noted
    if not (noted | asked) & there:
        return None
    support = rarity.weigh(own & there) / (rarity.weigh(own) or 1.0)
    places = _places(text, groups, (noted | asked) & there, rarity)
    return Find(tuple(source_at(chunk, span[0] + start, span[0] + end) for start, end in places), support)


def in_one_line(text: str) -> str:
    """A text with single spaces in place of all white space."""
    return " ".join(text.split())


def count_words(chunk: Chunk, rarity: Rarity) -> None:
    """Count the words of a chunk, by paragraphs."""
    for start, end in between(chunk.text, 0, len(chunk.text), PARAGRAPH_END):
        rarity.see(stems(chunk.text[start:end]))


def coverage(problem: str, text: str, rarity: Rarity) -> float:
    """The share, 0 to 1 by weight, of the problem's telling words that a text has."""
    asked = telling(problem)
    whole = rarity.weigh(asked)
    return rarity.weigh(asked & frozenset(stems(text))) / whole if whole else 0.0


def falls_short(problem: str, passages: Iterable[str], rarity: Rarity) -> bool:
    """Whether even the best passage has little of what the problem says, or the document lacks its names."""
    covered = max((coverage(problem, it, rarity) for it in passages), default=0.0)
    names = named(problem.partition(" ")[2])  # the first word of a sentence is no name
    known = sum(rarity.holding(it) > 0 for it in names) / len(names) if names else 1.0
    return covered * known < _MIN_COVERED


def paragraphs(text: str, chunk: Chunk, span: Span) -> Iterator[Span]:
    """The paragraphs of a text, which is a chunk's within a span of the document; none is of two files."""
    first, last = span
    files = [it.start for it in chunk.parts if it.start == it.offset and first < it.start < last]
    for start, end in pairwise([first, *files, last]):
        yield from between(text, start - first, end - first, PARAGRAPH_END)


def _places(text: str, groups: Iterable[Span], wanted: frozenset[str], rarity: Rarity) -> list[Span]:
    """The sentences that have most of the wanted words, in order; neighbours in a group are joined."""
    found = [(span, group) for group, it in enumerate(groups) for span in sentences(text, *it)]
    weights = [rarity.weigh(wanted.intersection(stems(text[start:end]))) for (start, end), _ in found]
    ranked = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)[:MAX_SENTENCES]
    as_good = [place for place in ranked if weights[place] >= _AS_GOOD * weights[ranked[0]]]
    chosen = [place for place in {*ranked[:2], *as_good} if weights[place]]
    joined: list[Span] = []
    last = -2
    for place in sorted(chosen):
        span, group = found[place]
        if place == last + 1 and group == found[last][1]:
            joined[-1] = (joined[-1][0], span[1])
        else:
            joined.append(span)
        last = place
    return joined
