"""Whole reads in one call: `aread`, `read` for code that is not async, `forecast`, which asks no model."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from memagent.concurrency import drain
from memagent.documents.opening import Document, open_document
from memagent.documents.tokens import shorten
from memagent.engines import open_engine
from memagent.errors import SettingsError
from memagent.reading.excerpts import Excerpt, memory_of
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.reading.sources import Source
from memagent.reading.verdicts import NO, YES
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings, Settings, load_settings
from memagent.types import Completion, Engine, Message, Model, Sampling, Trajectory, Usage

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path (file, directory, glob or "-"), or several of them."""


async def aread(
    problem: str,
    source: Paths | Document,
    *,
    engine: Engine | None = None,
    settings: Settings | None = None,
    trace: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **values: Any,
) -> Trajectory:
    """Read a document for a problem and return all conversations with the answer.

    Args:
        problem: a question, or a standing instruction.
        source: a path (file, directory, glob, "-"), several, or an opened `Document`.
        engine: what completes the chats; it is left open. Without it, one is opened from `settings`.
        settings: `load_settings()` (defaults, the user's file, environment) if left out.
        trace: where the journal goes; none is kept without it.
        resume: continue the journal at `trace`.
        values: single settings by name, such as `model`, `base_url` or `chunk_tokens`, instead of `settings`.

    Raises `SettingsError`, `DocumentError` or `EngineError`. The trajectory holds every prompt, so
    it is as large as the document; iterate a `Read` to hold only one conversation at a time.
    """
    if settings and values:
        raise SettingsError(f"settings and {', '.join(values)}: give one or the other")
    settings = settings or load_settings(values)
    if not isinstance(source, Document):
        paths = [source] if isinstance(source, str | os.PathLike) else source
        source = await asyncio.to_thread(open_document, *paths)
    path = Path(trace) if trace else None
    async with nullcontext(engine) if engine else open_engine(settings.engine) as opened:
        read = Read(problem, source, opened, settings.read, trace=path, resume=resume)
        conversations = tuple([conversation async for conversation in read])
    return Trajectory(example_id="", conversations=conversations, answer=read.answer, found=read.has_answer)


def read(
    problem: str,
    source: Paths | Document,
    *,
    engine: Engine | None = None,
    settings: Settings | None = None,
    trace: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **values: Any,
) -> Trajectory:
    """`aread` for code that is not async; it may also be called where a loop is running (notebooks)."""
    task = aread(problem, source, engine=engine, settings=settings, trace=trace, resume=resume, **values)
    future = asyncio.run_coroutine_threadsafe(task, _loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop for all calls of `read`: an engine's connections belong to the loop that opened them."""
    os.register_at_fork(after_in_child=_loop.cache_clear)  # a forked child has the loop but not its thread
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="memagent", daemon=True).start()
    return loop


_DIGITS = [f" {symbol}" for symbol in "#$%&+=@^;!"]  # no words; a token each, for most tokenizers


class _CountingEngine:
    """Answers every prompt with as many tokens as allowed, which is the most expensive case.

    No two replies are alike, so each counts as a new note. A model that was trained to give verdicts finds
    that every chunk may help; others are assumed to give no log-probabilities: notes on all chunks cost more.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._calls = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        prompt_tokens = await asyncio.to_thread(self.model.most_prompt_tokens, messages)
        if sampling.verdict and self.model.judges:
            return Completion(YES, usage=Usage(prompt_tokens, 1), alternatives={YES: -0.7, NO: -0.7})
        self._calls += 1
        reply = await asyncio.to_thread(self._reply, self._calls, sampling.max_tokens)
        return Completion(reply, usage=Usage(prompt_tokens, sampling.max_tokens))

    def _reply(self, number: int, tokens: int) -> str:
        """The reply with this number: its digits, the lowest first, filled up with zeros."""
        digits = "".join(_DIGITS[int(digit)] for digit in reversed(str(number)))
        return shorten(digits + _DIGITS[0] * tokens, tokens, self.model.count_tokens)

    async def aclose(self) -> None:
        """There is nothing to close."""


def begin_forecast(problem: str, document: Document, model: Model, settings: ReadSettings) -> Read:
    """A read that calls no model: its progress says what the read takes at most, as `forecast` says. Blocks.

    Raises `SettingsError` as a read does.
    """
    settings = settings.without_shortcuts().replace(max_calls=None, screen=False)
    memory = _memory_at_first(model, settings)
    return Read(problem, document, _CountingEngine(model), settings, memory=memory, purpose="forecast")


async def forecast(problem: str, document: Document, model: Model, settings: ReadSettings) -> Progress:
    """The most that the read takes, as a rule: with full memory and replies.

    Not counted are calls that fail, those that an endpoint refuses as too long, questions about a reply that
    is no memory, and with `lookahead` speculative calls whose reply is discarded.

    Raises what the read raises before its first call: `SettingsError` and `DocumentError`.
    """
    read = await asyncio.to_thread(begin_forecast, problem, document, model, settings)
    await drain(aiter(read))
    return read.progress


def _memory_at_first(model: Model, settings: ReadSettings) -> str:
    """A memory to start from: a full one if memories hold passages, since no reply here can quote any."""
    _, workflow = choose_workflow(settings, model.trained)
    if not workflow.provenance:
        return ""
    tokens = workflow.budgets(settings, model).memory_tokens
    return _memory_with(
        shorten(_DIGITS[0] * tokens, tokens, lambda text: model.count_tokens(_memory_with(text)))
    )


def _memory_with(passage: str) -> str:
    return memory_of([Excerpt(Source("", None, 0, len(passage), passage))])
