"""Which sentences of a chunk a note comes from, and how much they bear on the problem.

A note is the model's; what is kept of it is the document's own words. The words of the note that the chunk
has lead to its sentences: each next one is that which has the most of them that are still missing, by weight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from memagent.reading.ranking import Rarity, stems, telling
from memagent.reading.sources import Source, source_at
from memagent.types import Chunk

MAX_SENTENCES = 3
"""The most sentences that one note leads to."""

_LEAST_SHARE = 0.1  # of what the first sentence weighs, for another one
_LONG = 300  # characters: a longer "sentence" is a list or a table, of which each line counts as one

_ABBREVIATION = r"(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\bMrs\.)"
_SENTENCE_END = re.compile(rf"(?:(?<=[.!?…]){_ABBREVIATION}[\"'”’»)\]]*[ \t]+|(?<=[.!?…])\n|(?<=[。！？]))")
_PARAGRAPH_END = re.compile(r"\n[ \t]*(?:\r?\n[ \t]*)+")
_LINE_END = re.compile(r"\n")

Span = tuple[int, int]
"""Where something begins and ends in a text."""


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
    groups = list(_within_files(text, chunk, span))
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


def coverage(problem: str, text: str, rarity: Rarity) -> float:
    """The share, 0 to 1 by weight, of the problem's telling words that a text has."""
    asked = telling(problem)
    whole = rarity.weigh(asked)
    return rarity.weigh(asked & frozenset(stems(text))) / whole if whole else 0.0


def paragraphs(text: str) -> list[Span]:
    """The paragraphs of a text that are not blank."""
    return list(_between(text, 0, len(text), _PARAGRAPH_END))


def _within_files(text: str, chunk: Chunk, span: Span) -> Iterator[Span]:
    """The paragraphs of a text, which is a chunk's within a span of the document; none is of two files."""
    first, last = span
    files = [it.start for it in chunk.parts if it.start == it.offset and first < it.start < last]
    for start, end in pairwise([first, *files, last]):
        yield from _between(text, start - first, end - first, _PARAGRAPH_END)


def _places(text: str, groups: Iterable[Span], wanted: frozenset[str], rarity: Rarity) -> list[Span]:
    """The sentences that have the wanted words, in order; those next to each other in a group are joined."""
    sentences = [(span, group) for group, it in enumerate(groups) for span in _sentences(text, *it)]
    words = [frozenset(stems(text[start:end])) & wanted for (start, end), _ in sentences]
    left, chosen, first = set(wanted), set[int](), 0.0
    while left and len(chosen) < MAX_SENTENCES:
        gains = [rarity.weigh(it & left) for it in words]
        best = max(range(len(gains)), key=gains.__getitem__)
        if not gains[best] or gains[best] < _LEAST_SHARE * first:
            break
        first = first or gains[best]
        chosen.add(best)
        left -= words[best]
    joined: list[Span] = []
    last = -2
    for place in sorted(chosen):
        span, group = sentences[place]
        if place == last + 1 and group == sentences[last][1]:
            joined[-1] = (joined[-1][0], span[1])
        else:
            joined.append(span)
        last = place
    return joined


def _sentences(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences of a paragraph, or its lines where they have no end."""
    for first, last in _between(text, start, end, _SENTENCE_END):
        if last - first > _LONG:
            yield from _between(text, first, last, _LINE_END)
        else:
            yield first, last


def _between(text: str, start: int, end: int, border: re.Pattern[str]) -> Iterator[Span]:
    """What stands between borders, without the white space around it."""
    ends = [(it.start(), it.end()) for it in border.finditer(text, start, end)]
    for first, last in zip([start, *(it[1] for it in ends)], [*(it[0] for it in ends), end], strict=True):
        piece = text[first:last]
        if bare := piece.strip():
            first += len(piece) - len(piece.lstrip())
            yield first, first + len(bare)
