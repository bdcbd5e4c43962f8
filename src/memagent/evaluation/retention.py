"""Whether what an answer needs entered the memory, and whether it was still there at the end.

An answer needs its own words if the document has them verbatim, or else the example's evidence. Paraphrases
in a memory are not recognised, so such figures are too low rather than too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from memagent.reading.excerpts import escaped
from memagent.tasks.scoring import substring_match
from memagent.types import Example

_TOO_COMMON = ("yes", "no")  # words that every document has


@dataclass(slots=True)
class Needed:
    """What must be kept, each item in any of its wordings, and which items the memories so far have held."""

    items: Sequence[tuple[str, ...]]
    _ever: set[int] = field(default_factory=set)
    _last: set[int] | None = None

    @classmethod
    def of(cls, example: Example, scorer: str) -> Self:
        """What an example needs: all of its answers or any of them, depending on its scorer."""
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
        """Whether every item was in a memory at some time; None without a memory or without items."""
        return len(self._ever) == len(self.items) if self.items and self._last is not None else None

    @property
    def retained(self) -> bool | None:
        """Whether the last memory held every item; None as for `captured`."""
        return len(self._last) == len(self.items) if self.items and self._last is not None else None
