"""What a workflow is: a way to read, its prompts, its own settings, and what callers have to know."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from memagent.prompts import Prompts
from memagent.reading.budgets import Budgets, fit_budgets, heading_tokens
from memagent.reading.conversations import Reading
from memagent.reading.sources import Provenance, Sources, Statement
from memagent.settings import Options, ReadSettings
from memagent.types import Chunk, Conversation, Model


class Run(Protocol):
    """How a workflow is called."""

    def __call__(
        self, reading: Reading, chunks: AsyncIterator[Chunk], memory: str = ""
    ) -> AsyncGenerator[Conversation, None]:
        """The conversations, each as soon as it is finished."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A way to read, with the prompts that it was written for.

    It uses engines only through the protocol, may hold conversations side by side, and yields each one when
    it is finished.

    Args:
        run: the async generator of its conversations.
        prompts: its templates.
        templates: whether a user's own prompts may take their place.
        screens: whether it reads chunk by chunk, so that chunks may be passed over by what its memory holds.
        looks_ahead: whether a reply may leave its memory alone, so that chunks may be asked about ahead.
        keeps_memory: whether all that it knows is in its memory, so that another read may start from it and
            the answer may be left out.
        takes_notes: whether the memory of each of its updates is a note on one chunk, apart from all others.
        options: the settings that only it has.
        memories: how many memories a prompt of it shows, from the settings.
        chunk_tokens: its usual size of a chunk, if not the paper's.
        provenance: makes the `Sources` of a memory that holds its sources itself.
        shown: what of a memory an answer is made from, if not all of it as it is.
    """

    run: Run
    prompts: Prompts
    templates: bool = False
    screens: bool = False
    looks_ahead: bool = False
    keeps_memory: bool = False
    takes_notes: bool = False
    options: type[Options] | None = None
    memories: Callable[[ReadSettings], int] = lambda _settings: 1
    chunk_tokens: int | None = None
    provenance: Callable[[], Sources] | None = None
    shown: Callable[[Reading, str], str] | None = None

    def budgets(self, settings: ReadSettings, model: Model) -> Budgets:
        """The budgets of a read, fitted to the model's window. May block: it counts tokens.

        Raises `SettingsError` for budgets that do not fit.
        """
        return fit_budgets(settings, model, self.prompts, self.memories(settings), self.chunk_tokens)

    def most_memory_tokens(self, settings: ReadSettings, model: Model) -> int:
        """How long a memory can be, with all its parts. As `budgets`, it may block, and raises."""
        memories = self.memories(settings)
        return memories * self.budgets(settings, model).memory_tokens + heading_tokens(memories)

    def sources(self, settings: ReadSettings, statements: Iterable[Statement] = ()) -> Sources | None:
        """What tracks where the memory's statements come from, if it is to be told; it starts from these."""
        if self.provenance:
            return self.provenance()
        return Provenance(statements) if settings.cite else None

    def options_in_force(self, settings: ReadSettings, model: Model) -> dict[str, Any]:
        """The settings that only this workflow has, with the values in force.

        None stands for as many as the engine takes concurrent calls.
        """
        values = settings.of(self.options).model_dump() if self.options else {}
        return {name: model.calls if value is None else value for name, value in values.items()}
