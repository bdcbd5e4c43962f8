"""The events of a read, for those who listen to it, and streams of server-sent events."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from memagent.concurrency import in_thread
from memagent.errors import JournalError, MemAgentError
from memagent.reading.journal import read_journal
from memagent.reading.lines import outcome_of
from memagent.reading.progress import Progress
from memagent.server.errors import ApiError, api_error
from memagent.types import Conversation, flatten


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a read: a `conversation` with its number, its `progress`, or its `end` with the outcome."""

    name: str
    data: Mapping[str, Any] | Progress
    number: int | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)

    def format(self) -> bytes:
        """Format it as clients are sent it."""
        data = describe_progress(self.data) if isinstance(self.data, Progress) else self.data
        return format_event(data, self.name, None if self.number is None else str(self.number))


def describe_progress(progress: Progress) -> dict[str, Any]:
    """Describe the progress of a read as clients are sent it."""
    return {**flatten(progress), "chunks_in_all": progress.chunks_in_all}


async def read_events(journal: Path, after: int) -> AsyncIterator[Event]:
    """Read the conversations in a journal from number `after` + 1 on; none if it has not begun."""
    number = 0
    try:
        async for line in in_thread(read_journal(journal)):
            if isinstance(line, Conversation):
                number += 1
                if number > after:
                    yield Event("conversation", outcome_of(line), number)
    except JournalError:
        return


def read_whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines that a file has now; it may grow meanwhile. Blocks. Raises `OSError`."""
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        for line in file:
            left -= len(line)
            if left < 0 or not line.endswith(b"\n"):
                return
            yield line


def format_event(data: Any, name: str | None = None, id: str | None = None) -> bytes:
    """Format a server-sent event with JSON data."""
    return format_sse_event(data_str=json.dumps(data, ensure_ascii=False), event=name, id=id)


async def respond_with(pieces: AsyncGenerator[bytes, None], kind: str) -> StreamingResponse:
    """Reply with a stream of the pieces. A failure before the first is raised, so that it gets a status."""
    first = await anext(pieces, b"")

    async def send_all() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(send_all(), media_type=kind, headers=headers)


async def stream(
    pieces: AsyncGenerator[bytes, None], idle: Callable[[], bytes], seconds: float
) -> StreamingResponse:
    """Reply with a stream of events, and with what `idle` makes whenever none has come for `seconds`.

    A failure before the reply begins is raised; a later one is reported in the stream.
    """
    return await respond_with(_keep_alive(pieces, idle, seconds), "text/event-stream")


async def _keep_alive(
    pieces: AsyncGenerator[bytes, None], idle: Callable[[], bytes], seconds: float
) -> AsyncGenerator[bytes, None]:
    following, has_begun = asyncio.ensure_future(anext(pieces)), False
    try:
        while True:
            await asyncio.wait({following}, timeout=seconds)
            if following.done():
                yield following.result()
                following = asyncio.ensure_future(anext(pieces))
            else:
                yield idle()
            has_begun = True
    except StopAsyncIteration:
        return
    except (ApiError, MemAgentError) as error:
        if not has_begun:
            raise
        yield format_event(api_error(error).body)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await pieces.aclose()
