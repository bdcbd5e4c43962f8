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
        return tuple(Statement(excerpt.source.excerpt, excerpt.source) for excerpt in self._excerpts)

    def answer(self, answer: str) -> tuple[Statement, ...]:
        """The statements of an answer, each with an excerpt that says it; those it names are tried first."""
        statements = dict[str, Statement]()
        for text in statements_of(_MISPLACED.sub(r"\2\1", answer)):
            statement = self._without_marks(text)
            sources = (*self._find_named(text), *(excerpt.source for excerpt in self._excerpts))
            source = next((source for source in sources if says(source.excerpt, statement)), None)
            if statement:
                statements.setdefault(
                    statement, Statement(statement, narrow(source, statement) if source else None)
                )
        return tuple(statements.values()) or tuple(
            Statement(source.excerpt, source) for source in self._find_named(answer)
        )

    def bare(self, answer: str) -> str:
        """The answer without the numbers of excerpts; the excerpts themselves if it is nothing else."""
        bare = self._without_marks(answer)
        if re.search(r"\w", bare):
            return bare
        return "\n".join(source.excerpt for source in self._find_named(answer)) or answer

    def _find_named(self, text: str) -> list[Source]:
        """The sources that the marks in a text name, each once."""
        indices = [index for mark in _MARKS.findall(text) for index in self._find_indices(mark) or ()]
        return [self._excerpts[index].source for index in dict.fromkeys(indices)]

    def _without_marks(self, text: str) -> str:
        return _MARKS.sub(
            lambda match: match.group() if self._find_indices(match.group()) is None else "", text
        ).strip()

    def _find_indices(self, marks: str) -> list[int] | None:
        """The indices of the excerpts that marks name; None if one is missing or the document has them."""
        indices = [int(number) - 1 for number in re.findall(r"\d+", marks)]
        own = any(marks.strip() in excerpt.source.excerpt for excerpt in self._excerpts)
        return None if own or not all(0 <= index < len(self._excerpts) for index in indices) else indices
