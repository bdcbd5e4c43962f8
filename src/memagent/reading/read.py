"""One read, put together: a document, an engine, a workflow and a journal.

`Read` is the one that every caller uses: iterate it for the conversations as they finish, then
ask it for its `result`. `read` and `aread` are that in one call.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from memagent import __version__
from memagent.documents.chunking import split
from memagent.documents.opening import Document, open_document
from memagent.documents.tokens import TokenEstimate
from memagent.engines import open_engine
from memagent.engines.limit import CallLimit
from memagent.errors import SettingsError
from memagent.prompts import Prompts, load_prompts
from memagent.reading.journal import Journal
from memagent.reading.replies import without_thought
from memagent.reading.workflows import WORKFLOWS, Budgets, Reader
from memagent.settings import Settings, load_settings
from memagent.types import (
    Chunk,
    Conversation,
    Engine,
    Sampling,
    TokenCounter,
    Trajectory,
    model_of,
)

EMPTY_ANSWER = "The document is empty."

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Document
"""A path (file, directory, glob or "-"), several of them, or an opened document."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a read came to. Token counts are the engine's, those of the document the tokenizer's.

    `chunks` and `document_tokens` count what was read, which is less than the document if
    `stopped_early`; `calls` counts conversations, those of a resumed journal included; `seconds`
    is the time since this process began the read.
    """

    answer: str
    memory: str
    problem: str
    workflow: str
    model: str
    chunks: int
    document_tokens: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    trace: str | None
    stopped_early: bool
    sources: tuple[str, ...]


class Read:
    """One read of one document for one problem.

    `trace` is where the journal goes (none is kept without it); with `resume` an existing one is
    gone on with. Raises `SettingsError` for a problem, template or budget that does not fit.
    """

    def __init__(
        self,
        problem: str,
        document: Document,
        engine: Engine,
        settings: Settings,
        trace: Path | None = None,
        resume: bool = False,
    ) -> None:
        if not problem.strip():
            raise SettingsError("the problem is empty: ask a question")
        self.document = document
        self.settings = settings
        self.chunks = self.document_tokens = self.calls = self.cut = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.memory, self.answer = "", ""
        self.stopped_early = False
        self._workflow = WORKFLOWS[settings.workflow]
        prompts = load_prompts(settings.templates) if settings.templates else self._workflow.prompts
        budgets = fitted_budgets(settings, engine, prompts)
        self._reader = Reader(
            problem=problem,
            engine=CallLimit(engine, settings.max_calls) if settings.max_calls else engine,
            prompts=prompts,
            budgets=budgets,
            sampling=Sampling(0, settings.temperature, settings.top_p, settings.seed),
            count_tokens=counter_of(engine),
            early_exit=settings.early_exit,
        )
        self._journal: Journal | None = None
        if trace is not None:
            self._journal = Journal(trace, self._header(), self._reader.engine, resume)
            self._reader.engine = self._journal
        self._bytes_read = 0
        self._encodings = {source.name: source.encoding or "utf-8" for source in document.sources}
        self._started = time.perf_counter()

    @property
    def fraction(self) -> float | None:
        """About how much of the document was cut into chunks so far, 0 to 1; None if it cannot be told."""
        return min(1.0, self._bytes_read / size) if (size := self.document.text_bytes) else None

    @property
    def budgets(self) -> Budgets:
        """The budgets in force, after they were fitted to the model's window."""
        return self._reader.budgets

    async def __aiter__(self) -> AsyncGenerator[Conversation, None]:
        """The conversations, each as soon as it is finished and recorded. Raises `EngineError`."""
        plan = split(self.document, self.budgets.chunk_tokens, self._reader.count_tokens)
        chunks = self._counted(plan)
        first = next((chunk for chunk in chunks if chunk.text.strip()), None)
        try:
            if first is None:
                self.answer = EMPTY_ANSWER
            else:
                async with aclosing(self._workflow.run(self._reader, chain((first,), chunks))) as steps:
                    async for conversation in steps:
                        self._take(conversation)
                        yield conversation
            self.stopped_early = next(plan, None) is not None
            if self._journal:
                self._journal.finish(self.answer)
        finally:
            if self._journal:
                await self._journal.aclose()

    @property
    def result(self) -> Result:
        """What the read has come to so far; complete once the conversations have ended."""
        return Result(
            answer=self.answer,
            memory=self.memory,
            problem=self._reader.problem,
            workflow=self.settings.workflow,
            model=model_of(self._reader.engine).name,
            chunks=self.chunks,
            document_tokens=self.document_tokens,
            calls=self.calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            seconds=round(time.perf_counter() - self._started, 3),
            trace=str(self._journal.path) if self._journal else None,
            stopped_early=self.stopped_early,
            sources=tuple(
                source.name for source in self.document.sources if source.name in self.document.replaced
            ),
        )

    def _counted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            self.chunks += 1
            self.document_tokens += chunk.tokens
            self._bytes_read += len(chunk.text.encode(self._encodings[chunk.source], "replace"))
            yield chunk

    def _take(self, conversation: Conversation) -> None:
        if self._journal:
            self._journal.append(conversation)
        self.calls += 1
        self.cut += conversation.completion.finish_reason == "length"
        self.prompt_tokens += conversation.completion.usage.prompt_tokens
        self.completion_tokens += conversation.completion.usage.completion_tokens
        self.memory = conversation.memory
        if conversation.kind == "answer":
            self.answer = without_thought(conversation.completion.text)

    def _header(self) -> dict[str, Any]:
        """Everything that the conversations depend on: a journal is resumed only if it is the same."""
        model = model_of(self._reader.engine)
        return {
            "version": __version__,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "problem": self._reader.problem,
            "document": {
                "sha256": self.document.fingerprint,
                "sources": [source.name for source in self.document.sources],
            },
            "chunk_plan": {"chunk_tokens": self.budgets.chunk_tokens, "tokenizer": model.tokenizer},
            "budgets": asdict(self.budgets),
            "prompts": self._reader.prompts.fingerprint,
            "model": model.name,
            "workflow": self.settings.workflow,
            "early_exit": self.settings.early_exit,
            "sampling": {
                "temperature": self.settings.temperature,
                "top_p": self.settings.top_p,
                "seed": self.settings.seed,
            },
        }


def counter_of(engine: Engine) -> TokenCounter:
    """The model's own tokenizer, or a new estimate where that is not at hand."""
    return model_of(engine).count_tokens or TokenEstimate()


def given_budgets(settings: Settings) -> dict[str, int]:
    """The budgets that the settings set, in tokens, by name."""
    names = Budgets.__dataclass_fields__
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def fitted_budgets(settings: Settings, engine: Engine, prompts: Prompts) -> Budgets:
    """The budgets that the settings ask for, fitted to the model's window. Raises `SettingsError`."""
    given, model = given_budgets(settings), model_of(engine)
    budgets = Budgets(**{**model.budgets, **given})
    window = settings.window_tokens or model.window_tokens
    if window is None:
        return budgets
    return budgets.fit(window, counter_of(engine)(prompts.bare_text), frozenset(given))


async def aread(
    problem: str,
    source: Source,
    *,
    engine: Engine | None = None,
    settings: Settings | None = None,
    trace: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Trajectory:
    """Read a document for a problem and return all conversations with the answer.

    Args:
        problem: a question, or a standing instruction.
        source: a path (file, directory, glob, "-"), several, or an opened `Document`.
        engine: what completes the chats; it is left open. Without it, `settings` decide.
        settings: `load_settings()` (defaults, the user's file, environment) if left out.
        trace: where the journal goes; none is kept without it.
        resume: go on with the journal at `trace`.

    Raises `SettingsError`, `DocumentError` or `EngineError`. The trajectory holds every prompt, so
    it is as large as the document; iterate a `Read` to hold only one conversation at a time.
    """
    settings = settings or load_settings()
    document = _document(source)
    opened = engine or await open_engine(settings)
    try:
        reading = Read(problem, document, opened, settings, Path(trace) if trace else None, resume)
        conversations = tuple([conversation async for conversation in reading])
    finally:
        if engine is None:
            await opened.aclose()
    return Trajectory(example_id="", conversations=conversations, answer=reading.answer)


def read(
    problem: str,
    source: Source,
    *,
    engine: Engine | None = None,
    settings: Settings | None = None,
    trace: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Trajectory:
    """`aread` for code that is not async; it may also be called where a loop is running (notebooks)."""
    return _wait(aread(problem, source, engine=engine, settings=settings, trace=trace, resume=resume))


def _document(source: Source) -> Document:
    if isinstance(source, Document):
        return source
    if isinstance(source, str | os.PathLike):
        return open_document(source)
    return open_document(*source)


def _wait(task: Coroutine[Any, Any, Trajectory]) -> Trajectory:
    future = asyncio.run_coroutine_threadsafe(task, _loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop for all calls of `read`: an engine's connections belong to the loop they began in."""
    os.register_at_fork(after_in_child=_loop.cache_clear)  # a fork has the loop, but not its thread
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memagent", daemon=True).start()
    return loop
