"""The sources of a memory of excerpts, and of the answers that name them: [E1], [E2, E3]."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from memagent.reading.excerpts import Excerpt, excerpts_of
from memagent.reading.quotes import says
from memagent.reading.sources import Source, Statement, narrow, statements_of
from memagent.types import Chunk, Conversation

_MARK = r"\[E\d{1,9}(?:, ?E\d{1,9})*\]"
_MARKS = re.compile(rf"\s*{_MARK}(?:\s*{_MARK})*")
_MISPLACED = re.compile(rf"([.!?…。！？]+[\"”’»)]*)(\s*{_MARK}(?:\s*{_MARK})*)")


@dataclass(slots=True)
class Citations:
    """The sources of a memory of excerpts, which holds them itself, and of an answer that names them."""

    _excerpts: list[Excerpt] = field(default_factory=list)

    def chunk(self, chunk: Chunk) -> None:
        """A chunk is about to be read; nothing to do, since the memory itself holds the places."""

    def update(self, conversation: Conversation) -> None:
        """The memory was written."""
        self._excerpts = excerpts_of(conversation.memory)

    @property
    def memory(self) -> tuple[Statement, ...]:
        """The excerpts of the memory as it is now."""
        return tuple(Statement(it.source.excerpt, it.source) for it in self._excerpts)

    def answer(self, answer: str) -> tuple[Statement, ...]:
        """The statements of an answer, each with an excerpt that says it; those it names are tried first."""
        found = dict[str, Statement]()
        for text in statements_of(_MISPLACED.sub(r"\2\1", answer)):
            said = self._without_marks(text)
            sources = (*self._find_named(text), *(it.source for it in self._excerpts))
            source = next((it for it in sources if says(it.excerpt, said)), None)
            if said:
                found.setdefault(said, Statement(said, narrow(source, said) if source else None))
        return tuple(found.values()) or tuple(Statement(it.excerpt, it) for it in self._find_named(answer))

    def bare(self, answer: str) -> str:
        """The answer without the numbers of excerpts; the excerpts themselves if it is nothing else."""
        bare = self._without_marks(answer)
        if re.search(r"\w", bare):
            return bare
        return "\n".join(it.excerpt for it in self._find_named(answer)) or answer

    def _find_named(self, text: str) -> list[Source]:
        """The sources that the marks in a text name, each once."""
        places = [place for mark in _MARKS.findall(text) for place in self._places(mark) or ()]
        return [self._excerpts[place].source for place in dict.fromkeys(places)]

    def _without_marks(self, text: str) -> str:
        return _MARKS.sub(lambda it: it.group() if self._places(it.group()) is None else "", text).strip()

    def _places(self, marks: str) -> list[int] | None:
        """The excerpts that marks name; None if one does not exist, or the marks are the document's own."""
        places = [int(it) - 1 for it in re.findall(r"\d+", marks)]
        own = any(marks.strip() in it.source.excerpt for it in self._excerpts)
        return None if own or not all(0 <= it < len(self._excerpts) for it in places) else places
