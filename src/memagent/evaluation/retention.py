"""Whether what an answer needs entered the memory, and whether it was still there at the end.

What is needed are the answers, where they stand in the document literally, or else the example's evidence.
Leaves out what a memory says in other words: a figure of this kind is too low rather than too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from memagent.reading.excerpts import escaped
from memagent.tasks.scoring import substring_match
from memagent.types import Example

NOTES_APART = ("map_reduce",)
"""Workflows whose updates have no memory in common."""

_TOO_COMMON = ("yes", "no")  # words that every document has


@dataclass(slots=True)
class Needed:
    """What must be kept, each item in any of its wordings, and which of it the memories seen so far held."""

    items: Sequence[tuple[str, ...]]
    _ever: set[int] = field(default_factory=set)
    _last: set[int] | None = None

    @classmethod
    def of(cls, example: Example, scorer: str) -> Self:
        """What an example needs: all of its answers, or any of them, as its scorer has it."""
        absent = example.id.endswith("-absent")
        found = tuple(
            answer
            for answer in example.answers
            if answer.lower() not in _TOO_COMMON and answer in example.document and not absent
        )
        if found:
            return cls([(answer,) for answer in found] if scorer == "string_match_all" else [found])
        return cls([tuple({passage: 0, escaped(passage): 0}) for passage in example.evidence])

    def see(self, memory: str) -> None:
        """Look at the next memory of the attempt."""
        self._last = {place for place, it in enumerate(self.items) if substring_match(memory, it)}
        self._ever |= self._last

    @property
    def captured(self) -> bool | None:
        """Whether each item was in a memory at some time; None if there was no memory, or nothing needed."""
        return len(self._ever) == len(self.items) if self.items and self._last is not None else None

    @property
    def retained(self) -> bool | None:
        """Whether the last memory held each item."""
        return len(self._last) == len(self.items) if self.items and self._last is not None else None
