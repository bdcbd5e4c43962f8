"""How telling words are, and which texts matter for a question: BM25 in one pass that stores no text.

Words are compared by their stems (English endings only); in scripts without spaces, pairs of characters are.
"""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import lru_cache

from memagent.reading.quotes import placed_words, words
from memagent.text import SOFT_HYPHEN
from memagent.types import Chunk

_ENDING = re.compile(r"(?<=[a-z]{3})(?:ies|y|ing|ed|es|e|s)$")
_SATURATION, _LENGTH_WEIGHT = 1.5, 0.75  # the usual k1 and b
_SLOTS = 1 << 18  # a megabyte, however many words a document has

RULE = 3
"""The number of the rule of `Screen`, recorded in a journal: another rule would pass over other chunks."""

_SHARE = 0.3
"""The least weight of a chunk, as a share of the problem's heaviest word. See benchmarks/screening.py."""


def stems(text: str) -> list[str]:
    """The stems of a text's words."""
    return [_ENDING.sub("", word) for word in words(text)]


def placed_stems(text: str) -> Iterator[tuple[str, int, int]]:
    """The same stems, each with where its word begins and ends in the text."""
    return ((_ENDING.sub("", word), start, end) for word, start, end in placed_words(text))


COMMON = frozenset(
    stems(
        """a an the of in on at to for from by with and or but if is are was were be been being do does did
        have has had what which who whom whose when where why how that this these those it its he she
        they them his her their there here not no as about into than then so such can could will would
        shall should may might must all any each both also only other more most some many much very you
        i me my your our us up out over under between during after before"""
    )
)
"""Words that say nothing about what is asked."""


class Rarity:
    """In how many of the texts seen so far a word occurs, and so how telling it is."""

    def __init__(self) -> None:
        self.texts = 0
        self._holding = array("I", bytes(4 * _SLOTS))  # by a word's slot

    def see(self, words: Iterable[str]) -> None:
        """Count a text by its words."""
        self.texts += 1
        for slot in set(map(_slot, words)):
            self._holding[slot] += 1

    def holding(self, word: str) -> int:
        """How many of the texts have a word."""
        return self._holding[_slot(word)]

    def weigh(self, words: Iterable[str]) -> float:
        """The weight of these words together: BM25's, so the rarer each is, the higher.

        A word that no text has is as rare as the rarest; in few texts it would outweigh all others.
        """
        return sum(weight(self.texts, max(self.holding(word), 1)) for word in sorted(words))


def telling(text: str) -> frozenset[str]:
    """The stems of a text's words, without those that say nothing about what is asked."""
    return frozenset(stems(text)) - COMMON


@lru_cache(maxsize=64)
def find_names(text: str) -> frozenset[str]:
    """The stems of the names and numbers in a text: of all words not beginning in lower case."""
    words = (word for word in re.findall(r"\w+", text.replace(SOFT_HYPHEN, "")) if not word[0].islower())
    return frozenset(stem for word in words if len(word) > 1 for stem in stems(word)) - COMMON


def _slot(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "replace")) % _SLOTS


async def best_chunks(question: str, chunks: AsyncIterator[Chunk], most: int) -> list[int]:
    """The indices of the `most` chunks most relevant to a question, best first; the first win ties."""
    question_stems = set(stems(question))
    tallies = [await asyncio.to_thread(_tally, chunk.shown, question_stems) async for chunk in chunks]
    return _rank(tallies)[:most]


def best_passages(question: str, passages: Iterable[str], most: int) -> list[int]:
    """The indices of the `most` passages most relevant to a question, best first; the first win ties."""
    question_stems = set(stems(question))
    return _rank([_tally(passage, question_stems) for passage in passages])[:most]


def weight(chunks: int, holding: int) -> float:
    """BM25's weight of a word that `holding` of the chunks have: the rarer, the higher."""
    return math.log(1 + (chunks - holding + 0.5) / (holding + 0.5))


def _tally(text: str, question_stems: set[str]) -> tuple[int, Counter[str]]:
    text_stems = stems(text)
    return len(text_stems), Counter(word for word in text_stems if word in question_stems)


def _rank(tallies: list[tuple[int, Counter[str]]]) -> list[int]:
    """The indices of texts by BM25, best first, from their lengths and counts of the question's words."""
    mean = sum(length for length, _ in tallies) / max(len(tallies), 1) or 1.0
    holding = Counter(word for _, counts in tallies for word in counts)
    weights = {word: weight(len(tallies), n) for word, n in holding.items()}
    scores = [
        sum(
            weights[word] * n * (_SATURATION + 1)
            / (n + _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * length / mean))
            for word, n in sorted(counts.items())
        )
        for length, counts in tallies
    ]  # fmt: skip
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))


class Screen:
    """Tells whether chunks may conceivably relate to a problem. Call `look` for each first, then `relates`.

    A chunk is weighed by the words that it shares with the problem, and by the names and numbers that it
    shares with the memory: what has been learned so far may lead to what the problem does not name. If no
    word of the problem distinguishes chunks, all relate to it.
    """

    def __init__(self, problem: str) -> None:
        self._problem = telling(problem)
        self._rarity = Rarity()

    def look(self, text: str) -> None:
        """Count a chunk and its words."""
        self._rarity.see(stems(text))

    def relates(self, text: str, memory: str) -> bool:
        """Whether a chunk relates to the problem, or to names in the memory."""
        weigh, known = self._rarity.weigh, filter(self._rarity.holding, self._problem)
        shared = (self._problem | find_names(memory)) & set(stems(text))
        return weigh(shared) >= _SHARE * max((weigh([word]) for word in known), default=0.0)
