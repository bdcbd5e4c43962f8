"""One read, put together: a document, a problem, an engine, a workflow and a journal.

Every caller uses `Read`: iterate over it for the conversations as they finish, look at its `progress`, then
take its `result`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from memagent.documents.opening import Document
from memagent.engines.wrappers import CallLimit, CriticalPath, Losses
from memagent.errors import DocumentError, JournalError, SettingsError
from memagent.reading.budgets import Budgets
from memagent.reading.conversations import Purpose, Reading
from memagent.reading.journal import Journal
from memagent.reading.lines import Answer
from memagent.reading.locating import find_sources
from memagent.reading.passes import Passes
from memagent.reading.progress import Meter, Progress, Result
from memagent.reading.ranking import RULE, Screen
from memagent.reading.replies import read_answer
from memagent.reading.sources import Sources, Statement, add_offsets
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.types import Chunk, Conversation, Engine
from memagent.version import __version__

_NOT_OF_IDENTITY = ("version", "created", "document", "given")

NOT_FOUND = "The document does not hold the answer, or the model did not recognise it."
"""The answer if nothing was noted (no model is asked to answer from nothing), or if the model says so."""

NO_ROOM = "What was noted found no room in the memory, so no answer was made."
"""The answer if all that was noted is too long for the memory."""


class Read:
    """One read of one document for one problem. Iterate over it once.

    Args:
        problem: a question, or a standing instruction.
        document: what is read.
        engine: what completes the chats; it stays open.
        settings: how to read.
        trace: where the journal goes (none is kept without it); with `resume`, one journal to continue, or
            several, of which the first that belongs to this read is used.
        memory: the memory to start from.
        statements: those of that memory, with their sources.
        purpose: what the read is for; only one that is to `read` asks the model what an unclear reply means.
        answers: whether the read ends with an answer; otherwise it ends with the memory alone, and its
            journal with the last update.

    Raises `SettingsError` for an empty problem, an unknown workflow or bad templates, and without `answers`
    for a workflow that keeps no memory; all other errors are raised during iteration.
    """

    def __init__(
        self,
        problem: str,
        document: Document,
        engine: Engine,
        settings: ReadSettings | None = None,
        *,
        trace: Path | Sequence[Path] | None = None,
        resume: bool = False,
        memory: str = "",
        statements: Sequence[Statement] = (),
        purpose: Purpose = "read",
        answers: bool = True,
    ) -> None:
        if not problem.strip():
            raise SettingsError("the problem is empty: ask a question")
        self.problem, self.document, self.engine = problem, document, engine
        self.settings = (settings or ReadSettings()).fill_from(engine.model.trained)
        self.workflow, self._workflow = choose_workflow(self.settings, engine.model.trained, answers)
        self.blocks = document.blocks()
        """What was found while the document was read: files left out, undecodable characters."""
        self.answer = ""
        self.has_answer = False
        """Whether the document gave an answer; if not, the answer is `NOT_FOUND` or `NO_ROOM`."""
        self.doubtful = False
        self.noted = False
        """Whether what was noted leads to the answer; a short document is answered from whole instead."""
        self.table: Mapping[str, Any] | None = None
        """What the answer was counted from, and how, as JSON, if code counted it."""
        self.statements: tuple[Statement, ...] = ()
        self.stopped_early = False
        self._provenance = self._workflow.sources(self.settings, statements)
        self._traces = [trace] if isinstance(trace, Path) else list(trace or ())
        self._beginnings: dict[str, int] = {}  # of the files' texts in the document
        self._resume, self._memory, self._purpose, self._answers = resume, memory, purpose, answers
        self._journal: Journal | None = None
        progress = Progress(memory=memory, statements=tuple(statements))
        self._meter = Meter(self.settings, document, progress)

    @property
    def progress(self) -> Progress:
        """How far the read has come."""
        return self._meter.progress

    @property
    def keeps_memory(self) -> bool:
        """Whether the memory holds all that is known; a short document may instead be answered from whole."""
        return self._workflow.keeps_memory

    @property
    def takes_notes(self) -> bool:
        """Whether the memory of each update is a note on one chunk, apart from all others."""
        return self._workflow.takes_notes

    @property
    def counts(self) -> bool:
        """Whether code counts the answer from rows, so that it adds up."""
        return self._workflow.counts

    @property
    def memory(self) -> str:
        """The memory as it is now."""
        return self.progress.memory

    @cached_property
    def budgets(self) -> Budgets:
        """The budgets in force, fitted to the model's window. May block: it counts tokens.

        Raises `SettingsError` for budgets that do not fit.
        """
        return self._workflow.budgets(self.settings, self.engine.model)

    @property
    def trace(self) -> Path | None:
        """The path of the journal; None before the read has begun, or if no journal is kept."""
        return self._journal.path if self._journal else None

    async def identity(self) -> dict[str, Any]:
        """Everything but the document that the conversations depend on, as in the journal's header.

        Raises `SettingsError` for bad budgets or templates, and for too long a problem.
        """
        await self._reading(self.engine)
        header = await asyncio.to_thread(self._header)
        return {name: value for name, value in header.items() if name not in _NOT_OF_IDENTITY}

    async def __aiter__(self) -> AsyncGenerator[Conversation, None]:
        """The conversations, each as soon as it is finished and recorded.

        Raises `DocumentError`, `SettingsError` or `EngineError`.
        """
        self._meter.start()
        engine = CallLimit(self.engine, self.settings.max_calls) if self.settings.max_calls else self.engine
        reading = await self._reading(engine)
        journal = self._journal = await self._open_in_thread(engine)
        if journal and journal.header:  # with its mark: no prompt would match the record otherwise
            reading = await self._reading(engine)
        self._critical_path = CriticalPath(Losses(journal or engine, self._meter.take_unusable))
        reading, last = replace(reading, engine=self._critical_path), None
        try:
            chunks = reading.passes.first()
            if self.settings.screen:
                chunks = reading.passes.screen(Screen(self.problem), lambda: self.memory)
            conversations = self._workflow.run(reading, chunks, self._memory)
            async with aclosing(chunks), aclosing(conversations):
                async for last in conversations:
                    if journal:
                        await journal.append(last)
                    await self._take(last)
                    yield last
            await self._conclude(last, reading)
        finally:
            self.blocks.close()
            if journal:
                journal.close()

    async def _reading(self, engine: Engine) -> Reading:
        """What the conversations have in common. Raises `SettingsError` as `identity` does."""
        budgets, mark = await asyncio.to_thread(lambda: (self.budgets, self.blocks.mark))
        model, meter, exact = engine.model, self._meter, self.settings.chunk_ends == "exact"
        turns, own = model.reads_turn_tokens, self._workflow.prompts
        prompts = own.for_document(mark, guards_turns=turns, asks=self._purpose == "read")
        watch = self._hand_out, meter.begin_pass, meter.pass_over
        passes = Passes(self.blocks, budgets.chunk_tokens, model.count_tokens, *watch, exact=exact)
        reading = Reading(
            self.problem,
            engine,
            prompts,
            budgets,
            passes,
            self.settings,
            answers=self._answers,
            purpose=self._purpose,
        )
        await reading.check_problem()
        return reading

    def _hand_out(self, chunk: Chunk, again: bool) -> None:
        """A chunk is about to be read."""
        self._meter.hand_out(chunk, again)
        for part in chunk.parts:
            self._beginnings.setdefault(part.source, part.offset)
        if self._provenance and chunk.text.strip():
            self._provenance.chunk(chunk)

    async def _take(self, conversation: Conversation) -> None:
        """Count a conversation, and look for the sources of the memory that it has written."""
        self.noted = conversation.kind == "update" or (self.noted and bool(conversation.memory))
        if not conversation.unused:
            self._meter.turn(conversation.chunk_index)
            if self._provenance:
                await asyncio.to_thread(self._provenance.update, conversation)
        statements = add_offsets(self._provenance.memory, self._beginnings) if self._provenance else ()
        recalled = self._journal.recalled if self._journal else 0
        self._meter.take(conversation, recalled, self._critical_path.longest, statements)

    async def _conclude(self, last: Conversation | None, reading: Reading) -> None:
        """Take the answer from the last conversation, find its sources, and record it."""
        self._meter.turn()
        if self._answers:
            answer = read_answer(last, reading.prompts) if last else ""
            lost = self.progress.given_up and not self.memory
            self.answer, self.has_answer = answer or (NO_ROOM if lost else NOT_FOUND), bool(answer)
            self.doubtful = last is not None and last.doubtful
            if last and last.table is not None:
                self.table, self.has_answer = last.table, bool(last.table["rows"])
        try:
            self.stopped_early = await reading.passes.left_out()
        except DocumentError:  # what was not read need not be readable
            self.stopped_early = True
        if self._provenance and self.has_answer and not self.counts:  # else its rows have their places
            self.statements = await asyncio.to_thread(self._cite, self._provenance)
            self.answer = self._provenance.bare(self.answer)
        if journal := self._journal:
            for completion in await asyncio.to_thread(journal.left_over):
                self._meter.take_unused(completion)
            if self._answers:
                cited = self.statements if self._provenance or self.counts else None
                await journal.finish(Answer(self.answer, self.has_answer, cited))

    @property
    def result(self) -> Result:
        """The result so far; complete once the conversations have ended."""
        now = self.progress
        counts = {
            field.name: getattr(now, field.name) for field in fields(Result) if hasattr(now, field.name)
        }
        counts |= {"seconds": round(now.seconds, 3), "statements": self.statements}
        return Result(
            **counts,
            answer=self.answer,
            found=self.has_answer,
            doubtful=self.doubtful,
            table=self.table,
            problem=self.problem,
            workflow=self.workflow,
            model=self.engine.model.name,
            trace=str(self.trace) if self.trace else None,
            stopped_early=self.stopped_early,
            sources=tuple(self.blocks.replaced),
        )

    async def _open_in_thread(self, engine: Engine) -> Journal | None:
        """Open the journal. A read that is cancelled meanwhile ends once whoever continues it can open it."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open, engine))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            while not opening.done():
                with suppress(asyncio.CancelledError):  # it may be cancelled again
                    await asyncio.wait({opening})
            if not (opening.cancelled() or opening.exception()) and (journal := opening.result()):
                journal.close()
            raise

    def _open(self, engine: Engine) -> Journal | None:
        """The journal of this read, new or continued."""
        errors = []
        for trace in self._traces:
            try:
                journal = Journal.open(trace, engine, self._resume)
                try:
                    on_record = journal.header["document"] if journal.header else {}
                    # Another installation, whose marks are others, may have begun the read.
                    self.blocks.mark = on_record["mark"] if on_record else self.document.mark
                    journal.begin(self._header())
                    if on_record:
                        self.blocks.retitle(on_record["titles"])
                except BaseException:
                    journal.close()
                    raise
                return journal
            except JournalError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return None

    def _cite(self, provenance: Sources) -> tuple[Statement, ...]:
        """The statements of the answer with their sources, from the memory or else the whole document."""
        cite = self.settings.cite
        statements = provenance.answer(self.answer) if cite or self.memory else ()
        if cite:  # otherwise the memory itself holds the places
            statements = find_sources(statements, self.problem, self.document, self.budgets.chunk_tokens)
        return add_offsets(statements, self._beginnings)

    def _header(self) -> dict[str, Any]:
        """Everything that the conversations depend on: a journal is resumed only if it is the same."""
        model, settings = self.engine.model, self.settings
        formats = [source.format for source in self.document.sources]  # the names decide how bytes are read
        return {
            "version": __version__,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "given": settings.given(),
            "problem": self.problem,
            "memory": self._memory,
            "document": {
                "sha256": self.document.fingerprint,
                **({"formats": formats} if {*formats} - {"text"} else {}),
                "sources": [source.name for source in self.document.sources],
                "titles": [source.title for source in self.document.sources],
                "mark": self.blocks.mark,
            },
            "tokenizer": model.tokenizer,
            "budgets": self.budgets.in_force,
            "prompts": self._workflow.prompts.fingerprint,
            "model": model.name,
            **({"verdicts": model.judges} if model.judges else {}),
            "workflow": self.workflow,
            **({"takes_notes": True} if self.takes_notes else {}),
            **({"chunk_ends": "exact"} if settings.chunk_ends == "exact" else {}),
            **({"screen": RULE} if settings.screen else {}),
            **self._workflow.options_in_force(settings, model),
            "sampling": {name: getattr(settings, name) for name in ("temperature", "top_p", "seed")},
        }
