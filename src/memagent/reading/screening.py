"""Which chunks may conceivably relate to a problem: the others can be passed over without a model.

A chunk is weighed, with the weights of BM25, by the words that it shares with the problem and by the names
and numbers that it shares with the memory: what has been learned so far may lead to what the problem does not
name. Words are compared by their stems, which works best for English. A chunk that weighs too little is
passed over; if no word of the problem distinguishes chunks, none is.
"""

from __future__ import annotations

from memagent.reading.ranking import Rarity, named, stems, telling

RULE = 2
"""The number of the rule, recorded in a journal: another rule would pass over other chunks."""

_SHARE = 0.3
"""What a chunk must weigh, as a share of the problem's heaviest word. See benchmarks/screening.py."""


class Screen:
    """Tells whether chunks relate to a problem. Call `look` for each chunk first, then `relates`."""

    def __init__(self, problem: str) -> None:
        self._problem = telling(problem)
        self._rarity = Rarity()

    def look(self, text: str) -> None:
        """Count a chunk and its words."""
        self._rarity.see(stems(text))

    def relates(self, text: str, memory: str) -> bool:
        """Whether a chunk relates to the problem, or to what the memory names."""
        most = max(map(self._weight, self._problem), default=0.0)
        words = set(stems(text))
        wanted = self._problem | named(memory)
        return sum(self._weight(word) for word in sorted(wanted & words)) >= _SHARE * most

    def _weight(self, word: str) -> float:
        """The weight of a word for a chunk that has it; 0 if no chunk does."""
        return self._rarity.weigh([word]) if self._rarity.holding(word) else 0.0
