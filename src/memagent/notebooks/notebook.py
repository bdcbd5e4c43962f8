"""A lasting memory: add documents to it, ask it questions, look at its history, undo additions.

One process at a time changes a notebook; any number may ask it meanwhile. A version appears in one
transaction once its read is complete. An interrupted read is continued by the next one of the same files.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from memagent.documents.marks import mark_of
from memagent.documents.opening import Document, text_document
from memagent.errors import SettingsError
from memagent.notebooks.additions import Addition, check_memory, settings_of
from memagent.notebooks.library import Entry, Notebooks, Version
from memagent.prompts.thoughts import without_thought
from memagent.reading.conversations import Reading
from memagent.reading.passes import Passes
from memagent.reading.sources import Statement
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.types import Engine, Spent


@dataclass(frozen=True, slots=True)
class NotebookAnswer:
    """A question to a version of a notebook, and the answer with its cost.

    `statements` are those of the answer with the memory's sources for them, if the settings ask for them
    (`cite`) or the workflow keeps sources itself.
    """

    notebook: str
    version: int
    question: str
    answer: str
    model: str
    spent: Spent
    seconds: float
    statements: tuple[Statement, ...] = ()


class Notebook:
    """One notebook, by its name. Everything but `add` and `ask` blocks.

    Raises `SettingsError` if there is no notebook of that name; `Notebook.new` creates one.
    """

    def __init__(self, name: str, notebooks: Notebooks | None = None) -> None:
        self._notebooks = notebooks or Notebooks()
        self._id = self._notebooks.entry(name).id

    @classmethod
    def new(cls, name: str, about: str, notebooks: Notebooks | None = None) -> Self:
        """Create a notebook that keeps what a standing instruction asks for. Raises `SettingsError`."""
        notebooks = notebooks or Notebooks()
        return cls(notebooks.add(name, about).name, notebooks)

    @property
    def entry(self) -> Entry:
        """Its name, its instruction and the number of its current version."""
        return self._notebooks.entry_of(self._id)

    def version(self, number: int | None = None) -> Version:
        """A version, by default the current one. Raises `SettingsError` if there is none with this number."""
        entry, versions = self.entry, self._notebooks.versions(self._id)
        number = entry.current if number is None else number
        if number not in versions:
            raise SettingsError(
                f"the notebook {entry.name!r} has no version {number}: see memagent notes log"
            )
        return versions[number]

    def versions(self) -> list[Version]:
        """All versions but the empty one, in order, including those that were undone."""
        return list(self._notebooks.versions(self._id).values())[1:]

    def lineage(self) -> list[Version]:
        """The versions that led to the current one, in order, itself included."""
        return self._notebooks.lineage(self._id)

    def undo(self) -> Version:
        """Go back to the previous version and return it; what was read since counts as new again.

        Raises `SettingsError` if there is none, or while another process changes the notebook.
        """
        with self._notebooks.claim(self._id):
            now = self.version()
            if not now.number:
                raise SettingsError(f"the notebook {self.entry.name!r} is empty: there is nothing to undo")
            self._notebooks.go_to(self._id, now.parent)
            return self.version()

    def delete(self) -> None:
        """Delete it with all its versions. Raises `SettingsError` while another process changes it."""
        with self._notebooks.claim(self._id):
            self._notebooks.delete(self._id)

    def add(
        self,
        document: Document,
        engine: Engine,
        settings: ReadSettings | None = None,
        *,
        waiting: Callable[[], None] | None = None,
    ) -> Addition:
        """Read what is new in a document into the notebook: iterate over the result.

        Unless the settings name a workflow, the one that wrote the current version continues with its memory.
        If another process is changing the notebook, `waiting` is called once and the addition waits; without
        `waiting`, that is an error.
        """
        return Addition(self._notebooks, self._id, document, engine, settings or ReadSettings(), waiting)

    async def ask(
        self, question: str, engine: Engine, settings: ReadSettings | None = None, version: int | None = None
    ) -> NotebookAnswer:
        """Answer a question from the memory of a version, by default the current one: one call.

        Unless the settings name a workflow, it is answered as by the workflow that wrote the version. Raises
        `EngineError`, and `SettingsError` for an empty memory or question, or an unknown version.
        """
        current, entry = await asyncio.to_thread(lambda: (self.version(version), self.entry))
        if not current.memory.strip():
            why = "nothing that was read was worth keeping" if current.number else "nothing has been read yet"
            raise SettingsError(f"the notebook {entry.name!r} is empty, because {why}: add to it, then ask")
        if not question.strip():
            raise SettingsError("the problem is empty: ask a question")
        chosen = settings_of(current, settings or ReadSettings()).fill_from(engine.model.trained)
        return await _answer(entry.name, current, question, engine, chosen)


async def _answer(
    notebook: str, version: Version, question: str, engine: Engine, settings: ReadSettings
) -> NotebookAnswer:
    """Answer a question from the memory of a version alone, as the workflow does at its end."""
    memory, model = version.memory, engine.model
    _, workflow = choose_workflow(settings, model.trained)
    digest = hashlib.sha256(memory.encode("utf-8", "replace")).hexdigest()
    mark = await asyncio.to_thread(mark_of, digest)
    prompts = workflow.prompts.for_document(mark, guards_turns=model.reads_turn_tokens)
    budgets = await asyncio.to_thread(workflow.budgets, settings, model)
    nothing = Passes(text_document("").blocks(), budgets.chunk_tokens, model.count_tokens)
    reading = Reading(question, engine, prompts, budgets, nothing, settings)
    await reading.check_problem()
    if budgets.memory_tokens < version.memory_tokens:
        await asyncio.to_thread(check_memory, memory, settings, model)
    shown = await asyncio.to_thread(workflow.shown, reading, memory) if workflow.shown else memory
    conversation = await reading.answer(shown, memory)
    written = conversation.completion
    answer = prompts.restore(without_thought(written.text))
    cited: tuple[Statement, ...] = ()
    if provenance := workflow.sources(settings, version.statements):
        await asyncio.to_thread(provenance.update, conversation)
        cited = await asyncio.to_thread(provenance.answer, answer)
        answer = provenance.bare(answer)
    return NotebookAnswer(
        notebook=notebook,
        version=version.number,
        question=question,
        answer=answer,
        model=model.name,
        spent=sum(
            (settings.price(usage, calls=0) for usage in written.unusable), settings.price(written.usage)
        ),
        seconds=round(conversation.seconds, 3),
        statements=cited,
    )
