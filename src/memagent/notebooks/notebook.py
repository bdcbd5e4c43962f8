"""A lasting memory: add documents to it, ask it questions, look at its history, undo additions.

One process at a time changes a notebook; any number may ask it meanwhile. A version appears in one
transaction once its read is complete. An interrupted read is continued by the next one of the same files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from memagent.documents.files import UnusableError
from memagent.documents.opening import Document
from memagent.errors import SettingsError
from memagent.notebooks.library import Entry, Notebooks, Version
from memagent.notebooks.news import News, Portion, news_of, same_again
from memagent.notebooks.remembered import Remembered, answer_from, check_memory
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.settings import ReadSettings
from memagent.types import ESTIMATE, Conversation, Engine

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class NotebookAnswer:
    """A question to a version of a notebook, and the answer with its cost."""

    notebook: str
    version: int
    question: str
    remembered: Remembered


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
        entry = self.entry
        number = entry.current if number is None else number
        if (version := self._notebooks.version(self._id, number)) is None:
            raise SettingsError(
                f"the notebook {entry.name!r} has no version {number}: see memagent notes log"
            )
        return version

    def versions(self) -> list[Version]:
        """All versions but the empty one, in order, including those that were undone."""
        return self._notebooks.versions(self._id)

    def lineage(self) -> list[Version]:
        """The versions that led to the current one, in order, itself included."""
        return _lineage(self.versions(), self.entry.current)

    def undo(self) -> Version:
        """Go back to the previous version and return it; what was read since counts as new again.

        Raises `SettingsError` if there is none, or while another process changes the notebook.
        """
        with self._claim():
            now = self.version()
            if not now.number:
                raise SettingsError(f"the notebook {self.entry.name!r} is empty: there is nothing to undo")
            self._notebooks.go_to(self._id, now.parent)
            return self.version()

    def delete(self) -> None:
        """Delete it with all its versions. Raises `SettingsError` while another process changes it."""
        with self._claim():
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

        Unless the settings name a workflow, the one that wrote the current version goes on with its memory.
        If another process is changing the notebook, `waiting` is called once and the addition waits; without
        `waiting`, that is an error.
        """
        return Addition(self, document, engine, settings or ReadSettings(), waiting)

    async def ask(
        self, question: str, engine: Engine, settings: ReadSettings | None = None, version: int | None = None
    ) -> NotebookAnswer:
        """Answer a question from the memory of a version, by default the current one: one call.

        Unless the settings name a workflow, it is answered as the workflow that wrote the version does.
        Raises `SettingsError` for an empty memory or question and for an unknown version, and `EngineError`.
        """
        found, entry = await asyncio.to_thread(lambda: (self.version(version), self.entry))
        if not found.memory.strip():
            why = (
                "nothing has been read yet" if not found.number else "nothing that was read was worth keeping"
            )
            raise SettingsError(f"the notebook {entry.name!r} is empty, because {why}: add to it, then ask")
        remembered = await answer_from(
            found.memory,
            question,
            engine,
            _as_written(found, settings or ReadSettings()),
            found.memory_tokens,
            found.statements,
        )
        return NotebookAnswer(entry.name, found.number, question, remembered)

    @contextmanager
    def _claim(self) -> Iterator[None]:
        """Hold the right to change the notebook. Raises `SettingsError` while another process has it."""
        claim = self._notebooks.claim(self._id)
        if claim is None:
            raise self._explain_claim()
        with claim:
            yield

    @asynccontextmanager
    async def _claim_in_turn(self, waiting: Callable[[], None] | None) -> AsyncIterator[None]:
        """As `_claim`, but with `waiting`, call that once and wait."""
        told = False
        while (claim := await asyncio.to_thread(self._notebooks.claim, self._id)) is None:
            if waiting is None:
                raise await asyncio.to_thread(self._explain_claim)
            if not told:
                waiting()
            told = True
            await asyncio.sleep(_POLL_SECONDS)
        with claim:
            yield

    def _explain_claim(self) -> SettingsError:
        return SettingsError(f"another process is changing {self.entry.name!r}: wait for it, or stop it")


class Addition:
    """Adds what is new in a document to a notebook. Iterate over it once, for the conversations.

    `versions` are those that it made: none if nothing was new, and two if it also finished an interrupted
    read. `known` names the files that had already been read, `skipped` says what was left out and why.
    `unnoted` names the files that left the memory empty: they make no version and still count as new.
    Raises `SettingsError`, `DocumentError` or `EngineError`; what was read by then is kept for the next
    addition of the same files.
    """

    def __init__(
        self,
        notebook: Notebook,
        document: Document,
        engine: Engine,
        settings: ReadSettings,
        waiting: Callable[[], None] | None,
    ) -> None:
        self.read: Read | None = None
        """What is being read now."""
        self.versions: tuple[Version, ...] = ()
        self.known: tuple[str, ...] = ()
        self.unnoted: tuple[str, ...] = ()
        self.skipped = document.skipped
        self._notebook, self._notebooks, self._id = notebook, notebook._notebooks, notebook._id
        self._document, self._engine, self._waiting = document, engine, waiting
        # Everything is read to its end: what counts as read must have been read. Sources are noted now,
        # because the files may be gone by the time somebody asks.
        self._settings = settings.changed(early_exit=False, screen=False, cite=True)

    @property
    def progress(self) -> Progress:
        """How far the current read has come."""
        return self.read.progress if self.read else Progress()

    async def __aiter__(self) -> AsyncGenerator[Conversation, None]:
        """The conversations, each as soon as it is finished."""
        async with self._notebook._claim_in_turn(self._waiting):
            more = True
            while more and not self.unnoted:
                base, news, more = await asyncio.to_thread(self._next)
                if news is None:
                    return
                async with aclosing(self._take(base, news)) as conversations:
                    async for conversation in conversations:
                        yield conversation

    def _next(self) -> tuple[Version, News | None, bool]:
        """The version to build on, what to read, and whether more may follow: interrupted reads go first."""
        entry = self._notebook.entry
        lineage = _lineage(self._notebook.versions(), entry.current)
        base = lineage[-1] if lineage else Version(number=0, parent=0, created=entry.created)
        begun = self._notebooks.find_unfinished(self._id, base.number)
        if begun and (news := same_again(self._document, begun)):
            return base, news, True
        news = news_of(self._document, _portions(lineage))
        just_read = {portion.name for portion in _portions(self.versions)}
        self.known = tuple(name for name in news.known if name not in just_read)
        if not news.portions:
            return base, None, False
        self._notebooks.begin(self._id, base.number, news.portions)
        return base, news, False

    async def _take(self, base: Version, news: News) -> AsyncGenerator[Conversation, None]:
        """Read some news, and make a version from it."""
        about = (await asyncio.to_thread(lambda: self._notebook.entry)).about
        traces = await asyncio.to_thread(self._notebooks.journals, self._id, base.number)
        settings = _as_written(base, self._settings)
        read = self.read = Read(
            about,
            news.document,
            self._engine,
            settings,
            trace=traces,
            resume=True,
            memory=base.memory,
            statements=base.statements,
            answers=False,
        )
        budget_tokens = (await asyncio.to_thread(lambda: read.budgets)).memory_tokens
        model = self._engine.model
        counts_anew = model.name != base.model and model.tokenizer != ESTIMATE
        if budget_tokens < base.memory_tokens or counts_anew:
            await asyncio.to_thread(check_memory, base.memory, settings, model)
        try:
            async with aclosing(aiter(read)) as conversations:
                async for conversation in conversations:
                    yield conversation
        except UnusableError:
            if read.found.replaced or any(source.named for source in news.document.sources):
                raise
            await asyncio.to_thread(self._notebooks.begin, self._id, base.number, ())
            return
        finally:
            self.skipped = tuple(dict.fromkeys((*self.skipped, *read.found.skipped)))
        if not read.memory:
            self.unnoted = tuple(read.found.replaced)
            await asyncio.to_thread(self._notebooks.abandon, self._id, base.number)
            return
        portions = tuple(it for it in news.portions if it.name in read.found.replaced)
        values = _record(read) | {"portions": portions, "memory_tokens": budget_tokens}
        made = await asyncio.to_thread(self._notebooks.commit, self._id, values, base.number)
        self.versions += (made,)


def _as_written(version: Version, settings: ReadSettings) -> ReadSettings:
    """The settings with the workflow that wrote a version, whose memory others may not understand."""
    if settings.workflow or not version.workflow:
        return settings
    return settings.changed(workflow=version.workflow)


def _record(read: Read) -> dict[str, Any]:
    """What a version records of its read."""
    result = read.result
    names = ("memory", "model", "workflow", "chunks", "document_tokens", "spent", "cut")
    return {name: getattr(result, name) for name in names} | {"statements": read.progress.statements}


def _lineage(versions: Sequence[Version], current: int) -> list[Version]:
    by_number = {version.number: version for version in versions}
    found: list[Version] = []
    while current:
        found.append(by_number[current])
        current = found[-1].parent
    return found[::-1]


def _portions(lineage: Sequence[Version]) -> list[Portion]:
    return [portion for version in lineage for portion in version.portions]
