"""Chunks in their order, asked about ahead of their turn while the memory stays as it is.

A reply depends on the chunks before it only through the memory. As long as the memory does not change, the
replies to the next chunks may be asked for before their turn: they are those that one chunk after another
would get. A reply that changes it leaves those asked ahead unused, and their chunks are asked about again,
with the new memory. It is speculative execution, as in a processor or in speculative decoding (arXiv
2211.17192).

How far ahead begins at nothing after each change, and grows by one with each chunk that changes nothing. So
no more chunks are asked about in vain than leave the memory alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace

from memagent.errors import EngineError, MemAgentError
from memagent.reading.conversations import Reading
from memagent.settings import ReadSettings
from memagent.types import Chunk, Conversation, Model

_Task = asyncio.Task[list[Conversation]]
ReadChunk = Callable[[Chunk, str], AsyncIterator[Conversation]]
"""Holds the conversations over a chunk, starting from a memory; the last one has the memory that follows."""


async def in_turn(
    reading: Reading, chunks: AsyncIterator[Chunk], memory: str, read_chunk: ReadChunk
) -> AsyncGenerator[list[Conversation], None]:
    """Yield the conversations over each chunk in its turn; none of a blank one.

    Conversations in vain are marked as `unused`, and come before those of the turn in which they have ended.
    Raises what `chunks` and `read_chunk` raise, in the chunk's turn.
    """
    most = most_at_once(reading.settings, reading.model)
    asked: deque[tuple[Chunk, _Task]] = deque()
    again: deque[Chunk] = deque()
    in_vain: list[_Task] = []
    width, failure = 1, None
    try:
        while True:
            try:
                while len(asked) < width and (chunk := await _next(again, chunks)):
                    asked.append((chunk, asyncio.create_task(_all(read_chunk(chunk, memory)))))
            except MemAgentError as error:  # its turn comes after those that were asked about before
                failure = error
            if not asked:
                break
            updates = await asked.popleft()[1]
            late = [task for task in in_vain if not task.done()][-most:]
            unused = await _unused([task for task in in_vain if task not in late], memory)
            in_vain = late
            if unused or updates:
                yield unused + updates
            if not updates or updates[-1].memory == memory:
                width = min(width + 1, most)
                continue
            memory, width = updates[-1].memory, 1
            in_vain += [task for _, task in asked]
            again.extendleft(chunk for chunk, _ in reversed(asked))
            asked.clear()
        if unused := await _unused(in_vain, memory):
            yield unused
        if failure:
            raise failure
    finally:
        running = [*in_vain, *(task for _, task in asked)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def most_at_once(settings: ReadSettings, model: Model) -> int:
    """How many chunks may be asked about at once: one, if each decides which chunk is read next."""
    if settings.screen or settings.early_exit:
        return 1
    return min(settings.lookahead, model.calls)


async def _next(again: deque[Chunk], chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return again.popleft() if again else await anext(chunks, None)


async def _all(conversations: AsyncIterator[Conversation]) -> list[Conversation]:
    return [conversation async for conversation in conversations]


async def _unused(tasks: list[_Task], memory: str) -> list[Conversation]:
    """The conversations of calls in vain; one that failed is made again in its turn."""
    made: list[Conversation] = []
    for task in tasks:
        try:
            made += [replace(it, memory=memory, unused=True) for it in await task]
        except EngineError:
            continue
    return made
