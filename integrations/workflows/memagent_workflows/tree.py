"""Read parts of the document side by side, each in order with its own memory, and merge the memories.

The longest chain of calls that wait for each other is one part and a few merges. Conversations come out in a
fixed order, one from each part in turn, whichever is ready first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pydantic import Field

from memagent.concurrency import map_concurrent
from memagent.prompts import ANSWER, MERGE, NOTE, UPDATE, Prompts
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.gathering import BETWEEN, Gathering, group_notes
from memagent.reading.replies import read_gated
from memagent.reading.workflow import Workflow
from memagent.settings import Options, Positive
from memagent.types import Conversation

_Item = TypeVar("_Item")

PROMPTS = Prompts(
    update=UPDATE, answer=ANSWER, workflow="tree", replies="marked", own={"note": NOTE, "merge": MERGE}
)
"""The memory of one part of the document stands in the memory's place."""


class Shards(Options):
    """The parts that a document is read in."""

    shards: Positive | None = Field(
        default=None, description="how many parts tree reads side by side (the engine's concurrency)"
    )


async def tree(
    reading: Reading,
    chunks: Chunks,  # noqa: ARG001 - each part has a pass of its own
    memory: str = "",
) -> Conversations:
    """Read the document in `shards` parts, the first starting from the memory, then merge and answer."""
    count = await reading.passes.count()
    shards = min(reading.settings.of(Shards).shards or reading.model.calls, count)
    borders = [number * count // shards for number in range(shards + 1)]
    memories = [memory, *[""] * (shards - 1)]
    parts = [
        _part(reading, number, range(borders[number], borders[number + 1]), memories[number])
        for number in range(shards)
    ]
    async with aclosing(_interleave(parts)) as updates:
        async for number, update in updates:
            memories[number] = update.memory
            yield replace(update, memory=BETWEEN.join(filter(None, memories)))
    memories = [item for item in memories if item]
    async with aclosing(merge_all(reading, memories)) as merges:
        async for merge in merges:
            yield merge
    async for answer in reading.conclude("".join(memories)):
        yield answer


async def _interleave(sources: Sequence[AsyncGenerator[_Item, None]]) -> AsyncGenerator[_Item, None]:
    """Yield one item of each generator in turn until all have ended; each works ahead on its next item.

    An error is raised in its turn. An error, or closing this generator, cancels whatever is still running.
    """
    running = {index: asyncio.ensure_future(anext(source)) for index, source in enumerate(sources)}
    try:
        while running:
            for index in list(running):
                try:
                    item = await running[index]
                except StopAsyncIteration:
                    del running[index]
                else:
                    running[index] = asyncio.ensure_future(anext(sources[index]))
                    yield item
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
        for source in sources:
            await source.aclose()


async def _part(
    reading: Reading, number: int, places: range, memory: str
) -> AsyncGenerator[tuple[int, Conversation], None]:
    """The updates over one part of the document, each with the part's number."""
    async with aclosing(reading.passes.only(places)) as chunks:
        async for chunk in chunks:
            async for update in reading.update(chunk, memory, read_gated):
                memory = update.memory
                yield number, update


async def merge_all(reading: Reading, memories: list[str]) -> Conversations:
    """Merge memories in groups, side by side, until one is left; changes `memories` in place."""
    count_tokens, group_tokens = reading.model.count_tokens, reading.budgets.chunk_tokens
    while len(memories) > 1:
        groups = await asyncio.to_thread(group_notes, memories, group_tokens, count_tokens)
        done: list[str] = []
        work = partial(_gather, reading)
        async with aclosing(map_concurrent(work, groups, reading.model.calls)) as gathered:
            async for memory, conversations in gathered:
                done.append(memory)
                rest = [text for group in groups[len(done) :] for text in group]
                for conversation in conversations:
                    yield replace(conversation, memory=BETWEEN.join([*done, *rest]))
        memories[:] = done


async def _gather(reading: Reading, memories: Sequence[str]) -> tuple[str, list[Conversation]]:
    """Several memories merged into one, and the conversations that it took."""
    gathering = Gathering(reading)
    conversations = [item for memory in memories for item in await gathering.add(memory)]
    conversations += await gathering.merge()
    return gathering.memory, conversations


WORKFLOW = Workflow(tree, PROMPTS, templates=True, keeps_memory=True, options=(Shards,))
