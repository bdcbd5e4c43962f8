"""A whole read in one call: `aread`, and `read` for code that is not async."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from memagent.documents.opening import Document, open_document
from memagent.engines import open_engine
from memagent.errors import SettingsError
from memagent.reading.read import Read
from memagent.settings import Settings, load_settings
from memagent.types import Engine, Trajectory

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
    document = source if isinstance(source, Document) else await asyncio.to_thread(_open, source)
    place = Path(trace) if trace else None
    async with nullcontext(engine) if engine else open_engine(settings.engine) as opened:
        read = Read(problem, document, opened, settings.read, trace=place, resume=resume)
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
    return _wait(
        aread(problem, source, engine=engine, settings=settings, trace=trace, resume=resume, **values)
    )


def _open(paths: Paths) -> Document:
    return open_document(*([paths] if isinstance(paths, str | os.PathLike) else paths))


def _wait(task: Coroutine[Any, Any, Trajectory]) -> Trajectory:
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
