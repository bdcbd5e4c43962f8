"""One read, put together: a document, a problem, an engine, a workflow and a journal.

Every caller uses `Read`: iterate over it for the conversations as they finish, look at its `progress`, then
take its `result`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from memagent.documents.marks import EARLIER_MARK, earlier_mark_of
from memagent.documents.opening import Document
from memagent.engines.wrappers import CallLimit, Chain
from memagent.errors import DocumentError, JournalError, SettingsError
from memagent.prompts import NOT_THERE, Prompts
from memagent.prompts.thoughts import without_thought
from memagent.reading.budgets import Budgets
from memagent.reading.conversations import Reading
from memagent.reading.journal import Journal
from memagent.reading.lines import Answer
from memagent.reading.lookahead import most_at_once
from memagent.reading.nearest import find_sources
from memagent.reading.passes import Passes
from memagent.reading.progress import ChunkCounter, Meter, Progress
from memagent.reading.screening import RULE, Screen
from memagent.reading.sources import Sources, Statement
from memagent.reading.workflows import choose_workflow, workflows
from memagent.settings import ReadSettings
from memagent.types import Chunk, Conversation, Engine, Spent
from memagent.version import __version__

NOT_FOUND = "The document does not hold the answer, or the model did not recognise it."
"""The answer if nothing was noted (no model is asked to answer from nothing), or if the model says so."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a read.

    `found` is false if nothing was noted, or what was noted does not answer the problem; the answer is then
    `NOT_FOUND`. It is `doubtful` if what it was made from has little of what the problem says.
    The counts are those of `Progress`. `chunks` and `document_tokens` are less than the document's if the
    read `stopped_early`. `sources` names the files that were read. `statements` are those of the answer with
    their sources, if the settings ask for them (`cite`) or the workflow keeps sources itself.
    """

    answer: str
    memory: str
    problem: str
    workflow: str
    model: str
    chunks: int
    document_tokens: int
    spent: Spent
    cut: int
    seconds: float
    trace: str | None
    stopped_early: bool
    sources: tuple[str, ...]
    statements: tuple[Statement, ...] = ()
    refused: int = 0
    critical_path: int = 0
    passed_over: int = 0
    unused: int = 0
    found: bool = True
    doubtful: bool = False


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
        asks: whether to ask the model about a reply that no marker explains; not in training.
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
        asks: bool = True,
        answers: bool = True,
    ) -> None:
        if not problem.strip():
            raise SettingsError("the problem is empty: ask a question")
        self.problem, self.document, self.engine = problem, document, engine
        self.settings = (settings or ReadSettings()).fill_from(engine.model.trained)
        self.workflow, self._workflow = choose_workflow(self.settings, engine.model.trained)
        if not (answers or self._workflow.keeps_memory):
            known = ", ".join(name for name, it in workflows().items() if it.keeps_memory)
            raise SettingsError(f"the workflow {self.workflow} keeps no memory that lives on: use {known}")
        self.found = document.blocks()
        """What was found while the document was read: files left out, undecodable characters."""
        self.answer = ""
        self.has_answer = False
        """Whether the document gave an answer; if not, the answer is `NOT_FOUND`."""
        self.doubtful = False
        """Whether what the answer was made from has little of what the problem says."""
        self.statements: tuple[Statement, ...] = ()
        self.stopped_early = False
        self._provenance = self._workflow.sources(self.settings, statements)
        self._traces = [trace] if isinstance(trace, Path) else list(trace or ())
        self._beginnings: dict[str, int] = {}  # of the files' texts in the document
        self._resume, self._memory, self._asks, self._answers = resume, memory, asks, answers
        self._journal: Journal | None = None
        self._chain = Chain(engine)
        self._meter = Meter(self.settings, Progress(memory=memory, statements=tuple(statements)))
        ahead = self._workflow.looks_ahead and most_at_once(self.settings, engine.model) > 1
        self._counter = ChunkCounter(self._meter, document, ahead)
        self._started = time.perf_counter()

    @property
    def progress(self) -> Progress:
        """How far the read has come."""
        return self._meter.progress

    @property
    def takes_notes(self) -> bool:
        """Whether the memory of each update is a note on one chunk, apart from all others."""
        return self._workflow.takes_notes

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

        Raises `SettingsError` for what no document could be read with: bad budgets or templates, too long a
        problem.
        """
        await self._reading(self.engine)
        header = await asyncio.to_thread(self._header)
        return {name: it for name, it in header.items() if name not in ("version", "created", "document")}

    async def __aiter__(self) -> AsyncGenerator[Conversation, None]:
        """The conversations, each as soon as it is finished and recorded.

        Raises `DocumentError`, `SettingsError` or `EngineError`.
        """
        self._started = time.perf_counter()
        engine = CallLimit(self.engine, self.settings.max_calls) if self.settings.max_calls else self.engine
        reading = await self._reading(engine)
        journal = self._journal = await asyncio.to_thread(self._open, engine)
        if journal and journal.header:  # or no prompt would be found on record
            if titles := journal.header["document"].get("titles"):
                self.found.retitle(titles)
            reading = await self._reading(engine)
        try:
            self._chain = Chain(journal or engine)
            reading = replace(reading, engine=self._chain)
            async with aclosing(self._conversations(reading)) as conversations:
                async for conversation in conversations:
                    if journal:
                        await journal.append(conversation)
                    await self._take(conversation)
                    yield conversation
            if journal:
                for usage in await asyncio.to_thread(journal.left_over):
                    self._meter.left_over(usage)
            if self._provenance and self.has_answer:
                self.statements = await asyncio.to_thread(self._cite, self._provenance, reading)
                self.answer = self._provenance.bare(self.answer)
            if journal and self._answers:
                cited = self.statements if self._provenance else None
                await journal.finish(Answer(self.answer, self.has_answer, cited))
        finally:
            self.found.close()
            if journal:
                journal.close()

    async def _reading(self, engine: Engine) -> Reading:
        """What the conversations have in common. Raises `SettingsError` as `identity` does."""
        budgets, prompts = await asyncio.to_thread(lambda: (self.budgets, self._prompts()))
        count_tokens = engine.model.count_tokens
        told = self._taken, self._pass_begins, self._counter.passed_over
        exact = self.settings.chunk_ends == "exact"
        passes = Passes(self.found, budgets.chunk_tokens, count_tokens, *told, exact=exact)
        reading = Reading(self.problem, engine, prompts, budgets, passes, self.settings, self._answers)
        await reading.check_problem()
        return reading

    async def _conversations(self, reading: Reading) -> AsyncGenerator[Conversation, None]:
        last: Conversation | None = None
        if self.settings.screen:
            chunks = reading.passes.screened(Screen(self.problem), lambda: self.memory)
        else:
            chunks = reading.passes.first()
        run = self._workflow.run(reading, chunks, self._memory)
        async with aclosing(chunks), aclosing(run) as conversations:
            async for last in conversations:
                yield last
        self._counter.turn()
        if self._answers:
            answer = _answer_of(last, reading.prompts)
            self.answer, self.has_answer = answer or NOT_FOUND, bool(answer)
            self.doubtful = last is not None and last.doubtful
        try:
            self.stopped_early = await reading.passes.left_out()
        except DocumentError:  # what was not read need not be readable
            self.stopped_early = True

    @property
    def result(self) -> Result:
        """The result so far; complete once the conversations have ended."""
        now = self.progress
        return Result(
            answer=self.answer,
            found=self.has_answer,
            doubtful=self.doubtful,
            memory=now.memory,
            problem=self.problem,
            workflow=self.workflow,
            model=self.engine.model.name,
            chunks=now.chunks,
            document_tokens=now.document_tokens,
            spent=now.spent,
            cut=now.cut,
            refused=now.refused,
            critical_path=now.critical_path,
            passed_over=now.passed_over,
            unused=now.unused,
            seconds=round(now.seconds, 3),
            trace=str(self.trace) if self.trace else None,
            stopped_early=self.stopped_early,
            sources=tuple(self.found.replaced),
            statements=self.statements,
        )

    def _prompts(self) -> Prompts:
        """The prompts with delimiters that the document cannot know."""
        guards_turns = self.engine.model.reads_turn_tokens
        return self._workflow.prompts.for_document(
            self.found.mark, guards_turns=guards_turns, asks=self._asks
        )

    def _open(self, engine: Engine) -> Journal | None:
        """The journal of this read, new or continued."""
        if not self._traces:
            return None
        usual, errors = self.budgets, []
        for trace in self._traces:
            try:
                journal = Journal.open(trace, engine, self._resume)
                try:
                    self.budgets = usual
                    self._take_mark(journal.header)
                    journal.begin(self._header())
                except BaseException:
                    journal.close()
                    raise
                return journal
            except JournalError as error:
                errors.append(error)
        raise errors[0]

    def _take_mark(self, header: Mapping[str, Any] | None) -> None:
        """Use the mark on record: another installation, or an earlier version, may have begun the read."""
        mark = header.get("document", {}).get("mark") if header else self.document.mark
        self.found.mark = mark or earlier_mark_of(self.document.fingerprint)
        if not mark:  # it was shorter, so there was more room for the budgets
            prompts = replace(self._workflow.prompts, mark=EARLIER_MARK)
            self.budgets = replace(self._workflow, prompts=prompts).budgets(self.settings, self.engine.model)

    def _taken(self, chunk: Chunk, again: bool) -> None:
        """A chunk is about to be read."""
        self._counter.handed(chunk, again)
        for part in chunk.parts:
            self._beginnings.setdefault(part.source, part.offset)
        if self._provenance and chunk.text.strip():
            self._provenance.chunk(chunk)

    def _pass_begins(self, chunks: int) -> None:
        self._meter.pass_begins(chunks, time.perf_counter() - self._started)

    async def _take(self, conversation: Conversation) -> None:
        recalled = self._journal.recalled if self._journal else 0
        if not conversation.unused:
            self._counter.turn(conversation.chunk_index)
        if self._provenance and not conversation.unused:
            await asyncio.to_thread(self._provenance.update, conversation)
        statements = self._place(self._provenance.memory) if self._provenance else ()
        seconds = time.perf_counter() - self._started
        self._meter.conversation(conversation, recalled, seconds, statements, self._chain.longest)

    def _cite(self, provenance: Sources, reading: Reading) -> tuple[Statement, ...]:
        """The statements of the answer with their sources, from the memory or else the whole document."""
        if not self.settings.cite:  # the memory itself holds the places, if there is one
            return self._place(provenance.answer(self.answer)) if self.memory else ()
        said, chunk_tokens = provenance.answer(self.answer), reading.budgets.chunk_tokens
        return self._place(find_sources(said, self.problem, self.document, chunk_tokens))

    def _place(self, statements: Iterable[Statement]) -> tuple[Statement, ...]:
        """The statements, each source with its place in the document: a memory names places in files."""
        placed = []
        for it in statements:
            source = it.source
            if source and source.at is None and (begins := self._beginnings.get(source.file)) is not None:
                it = replace(it, source=replace(source, at=begins + source.start))
            placed.append(it)
        return tuple(placed)

    def _header(self) -> dict[str, Any]:
        """Everything that the conversations depend on: a journal is resumed only if it is the same."""
        model, settings = self.engine.model, self.settings
        values = settings.model_dump()
        return {
            "version": __version__,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "problem": self.problem,
            "memory": self._memory,
            "document": {
                "sha256": self.document.fingerprint,
                "sources": [source.name for source in self.document.sources],
                "titles": [source.title for source in self.document.sources],
                "mark": self.found.mark,
            },
            "tokenizer": model.tokenizer,
            "budgets": self.budgets.in_force,
            "prompts": self._workflow.prompts.fingerprint,
            "model": model.name,
            "workflow": self.workflow,
            **({"chunk_ends": "exact"} if settings.chunk_ends == "exact" else {}),
            "early_exit": settings.early_exit,
            **({"exit_patience": settings.exit_patience} if settings.exit_patience else {}),
            **({"screen": RULE} if settings.screen else {}),
            **self._workflow.options_in_force(settings, model),
            "passages": {"count": values["passages"], "tokens": values["passage_tokens"]},  # as ever, by all
            "sampling": {
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "seed": settings.seed,
            },
        }


def _answer_of(last: Conversation | None, prompts: Prompts) -> str:
    """The answer that the conversations led to: the last one's reply, or its memory if it was an update.

    Empty if there is none, or the model said that the document has none.
    """
    if last is None or last.kind == "update":
        return last.memory if last else ""
    answer = prompts.restore(without_thought(last.completion.text))
    declined = prompts.doubt and answer.lower().startswith(NOT_THERE)
    return "" if declined else answer
