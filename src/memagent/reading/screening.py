"""Which chunks may conceivably relate to a problem: the others can be passed over without a model.

A chunk is weighed, with the weights of BM25, by the words that it shares with the problem and by the names
and numbers that it shares with the memory: what has been learned so far may lead to what the problem does not
name. Words are compared by their stems, which works best for English. A chunk that weighs too little is
passed over; if no word of the problem distinguishes chunks, none is.
"""

from __future__ import annotations

import re
import zlib
from array import array
from functools import lru_cache

from memagent.reading.ranking import stems, weight

RULE = 2
"""The number of the rule, recorded in a journal: another rule would pass over other chunks."""

_SHARE = 0.3
"""What a chunk must weigh, as a share of the problem's heaviest word. See benchmarks/screening.py."""

_SLOTS = 1 << 18  # a megabyte, however many words a document has
_COMMON = frozenset(
    stems(
        """a an the of in on at to for from by with and or but if is are was were be been being do does did
        have has had what which who whom whose when where why how that this these those it its he she
        they them his her their there here not no as about into than then so such can could will would
        shall should may might must all any each both also only other more most some many much very you
        i me my your our us up out over under between during after before"""
    )
)
"""Words that say nothing about what is asked."""


class Screen:
    """Tells whether chunks relate to a problem. Call `look` for each chunk first, then `relates`."""

    def __init__(self, problem: str) -> None:
        self._problem = frozenset(stems(problem)) - _COMMON
        self._holding = array("I", bytes(4 * _SLOTS))  # by a word's slot: how many chunks have it
        self._chunks = 0

    def look(self, text: str) -> None:
        """Count a chunk and its words."""
        self._chunks += 1
        for slot in {_slot(word) for word in stems(text)}:
            self._holding[slot] += 1

    def relates(self, text: str, memory: str) -> bool:
        """Whether a chunk relates to the problem, or to what the memory names."""
        most = max(map(self._weight, self._problem), default=0.0)
        words = set(stems(text))
        wanted = self._problem | _named(memory)
        return sum(self._weight(word) for word in sorted(wanted & words)) >= _SHARE * most

    def _weight(self, word: str) -> float:
        """The weight of a word for a chunk that has it; 0 if no chunk does."""
        holding = self._holding[_slot(word)]
        return weight(self._chunks, holding) if holding else 0.0


def _slot(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "replace")) % _SLOTS


@lru_cache(maxsize=64)
def _named(memory: str) -> frozenset[str]:
    """The stems of the names and numbers of a memory: of all words not beginning in lower case."""
    words = (word for word in re.findall(r"\w+", memory) if not word[0].islower())
    return frozenset(stem for word in words if len(word) > 1 for stem in stems(word)) - _COMMON
