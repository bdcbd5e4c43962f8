"""What a workflow is, and how it reads chunks in turn, asking ahead while the memory stays as it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from memagent.concurrency import map_concurrent, one_by_one
from memagent.errors import EngineError, MemAgentError
from memagent.prompts import Prompts
from memagent.reading.budgets import Budgets, fit_budgets, heading_tokens
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.sources import Provenance, Sources, Statement
from memagent.settings import Count, Options, Positive, ReadSettings, load_workflows
from memagent.types import Chunk, Conversation, Model

_Item = TypeVar("_Item")
_Taken = TypeVar("_Taken")
_Task = asyncio.Task[list[Conversation]]
ReadChunk = Callable[[Chunk, str], Conversations]
"""Holds the conversations over a chunk, starting from a memory; the last one has the memory that follows."""


class Rounds(Options):
    """How often a document is read."""

    rounds: Count = Field(
        default=0,
        description="maximum passes over the document (0: 1 for auto and select, 3 for parallel)",
    )


class Lookahead(Options):
    """How far `in_turn` asks ahead; the replies that are used are the same."""

    decide: ClassVar[bool] = False
    off: ClassVar[dict[str, Any]] = {"lookahead": 1}
    lookahead: Positive = Field(
        default=1,
        description="how many chunks to ask about at once while the memory stays as it is (gated, evidence)",
    )


class Likeliest(Options):
    """How many chunks may be enough. A read of fewer is resumed with more, and the other way round."""

    decide: ClassVar[bool] = False
    skip: ClassVar[bool] = True
    off: ClassVar[dict[str, Any]] = {"likeliest_chunks": 0}
    likeliest_chunks: Count = Field(
        default=16,
        description="how many chunks, those that share the most words with the question, are judged first, "
        "four before the rest: if one helps clearly enough, no more are read (auto, select; 0: all are)",
    )


Run = Callable[[Reading, Chunks, str], Conversations]
"""How a workflow is called, with the memory to start from; it yields each conversation as it is finished."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A way to read, with the prompts that it was written for.

    It uses engines only through the protocol, may hold conversations side by side, and yields each one when
    it is finished.

    Args:
        run: the async generator of its conversations.
        prompts: its templates.
        templates: whether a user's own prompts may take their place.
        screens: whether it reads chunk by chunk, so that chunks may be passed over by what its memory holds.
        keeps_memory: whether its memory holds all that it knows, so that another read may start from it and
            the answer may be left out.
        selects: whether what an answer is made from depends on the problem, without the model being asked:
            then each question costs its own.
        takes_notes: whether the memory of each of its updates is a note on one chunk, apart from all others.
        counts: whether code counts its answer from rows, so that it adds up.
        options: its own settings.
        memories: how many memories a prompt of it shows, from the settings.
        chunk_tokens: its default chunk size, if not the paper's.
        provenance: makes the `Sources` of a memory that holds its sources itself.
        shown: the text that an answer is made from, made from a memory; without it, the whole memory.
    """

    run: Run
    prompts: Prompts
    templates: bool = False
    screens: bool = False
    keeps_memory: bool = False
    selects: bool = False
    takes_notes: bool = False
    counts: bool = False
    options: tuple[type[Options], ...] = ()
    memories: Callable[[ReadSettings], int] = lambda _settings: 1
    chunk_tokens: int | None = None
    provenance: Callable[[], Sources] | None = None
    shown: Callable[[Reading, str], str] | None = None

    def budgets(self, settings: ReadSettings, model: Model) -> Budgets:
        """The budgets of a read, fitted to the model's window. May block: it counts tokens.

        Raises `SettingsError` for budgets that do not fit.
        """
        return fit_budgets(settings, model, self.prompts, self.memories(settings), self.chunk_tokens)

    def most_memory_tokens(self, settings: ReadSettings, model: Model) -> int:
        """The length of a full memory with all its parts. Like `budgets`, it may block, and raises."""
        memories = self.memories(settings)
        return memories * self.budgets(settings, model).memory_tokens + heading_tokens(memories)

    def sources(self, settings: ReadSettings, statements: Iterable[Statement] = ()) -> Sources | None:
        """What tracks the sources of the memory's statements, if needed; it starts with `statements`."""
        if self.provenance:
            return self.provenance()
        return Provenance(statements) if settings.cite else None

    def options_in_force(self, settings: ReadSettings, model: Model) -> dict[str, Any]:
        """The settings that only this workflow has, with the values in force.

        None stands for as many as the engine takes concurrent calls.
        """
        kinds = [settings.of(kind).model_dump() for kind in self.options if kind.decide]
        values = {name: value for values in kinds for name, value in values.items()}
        return {name: model.calls if value is None else value for name, value in values.items()}


async def chain(first: Sequence[Chunk], rest: Chunks | None = None) -> Chunks:
    """The first chunks, which were read ahead, and then the rest."""
    for chunk in first:
        yield chunk
    if rest is not None:
        async for chunk in rest:
            yield chunk


def delegate(name: str, reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """The conversations of another workflow, for one that leaves the reading to it; no module imports it."""
    run: Run = load_workflows()[name].run
    return run(reading, chunks, memory)


def take_each(
    reading: Reading, take: Callable[[_Item], Awaitable[_Taken]], items: AsyncIterable[_Item]
) -> AsyncGenerator[_Taken, None]:
    """Take all items, as many side by side as the engine takes calls, and yield the results in order.

    They are taken one by one if chunks are screened: what is known by then decides which chunk is next.
    """
    if reading.settings.screen:
        return one_by_one(take, items)
    return map_concurrent(take, items, reading.model.calls)


async def in_turn(
    reading: Reading, chunks: Chunks, memory: str, read_chunk: ReadChunk, may_stop: bool = False
) -> AsyncGenerator[list[Conversation], None]:
    """Yield the conversations over each chunk in its turn; none of a blank one.

    A reply depends on the chunks before it only through the memory. As long as that does not change, the next
    chunks are asked about before their turn: the replies are those that one chunk after another would get.
    When one changes it, the replies asked ahead go unused, and their chunks are asked about again. This is
    speculative execution, as in a processor or in speculative decoding (arXiv 2211.17192). The look-ahead
    restarts at nothing after each change and grows by one with each chunk that changes nothing, so wasted
    calls never outnumber the chunks that leave the memory unchanged. Nothing is asked ahead if each chunk
    decides which one is read next or, with `may_stop`, whether one is.

    Wasted conversations are marked as `unused`, and come before those of the turn in which they have ended.
    Raises what `chunks` and `read_chunk` raise, in the chunk's turn.
    """
    ahead = 1 if reading.settings.screen or may_stop else reading.settings.of(Lookahead).lookahead
    most = min(ahead, reading.model.calls)
    pending: deque[tuple[Chunk, _Task]] = deque()
    again: deque[Chunk] = deque()
    wasted: list[_Task] = []
    width, failure = 1, None
    try:
        while True:
            try:
                while len(pending) < width:
                    chunk = again.popleft() if again else await anext(chunks, None)
                    if chunk is None:
                        break
                    pending.append((chunk, asyncio.create_task(_all(read_chunk(chunk, memory)))))
            except MemAgentError as error:  # its turn comes after those that were asked about before
                failure = error
            if not pending:
                break
            updates = await pending.popleft()[1]
            late = [task for task in wasted if not task.done()][-most:]
            unused = await _await_unused([task for task in wasted if task not in late], memory)
            wasted = late
            if unused or updates:
                yield unused + updates
            if not updates or updates[-1].memory == memory:
                width = min(width + 1, most)
                continue
            memory, width = updates[-1].memory, 1
            wasted += [task for _, task in pending]
            again.extendleft(chunk for chunk, _ in reversed(pending))
            pending.clear()
        if unused := await _await_unused(wasted, memory):
            yield unused
        if failure:
            raise failure
    finally:
        running = [*wasted, *(task for _, task in pending)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _all(conversations: Conversations) -> list[Conversation]:
    return [conversation async for conversation in conversations]


async def _await_unused(tasks: list[_Task], memory: str) -> list[Conversation]:
    """The conversations of wasted calls; a call that failed is made again in its turn."""
    conversations: list[Conversation] = []
    for task in tasks:
        try:
            conversations += [
                replace(conversation, memory=memory, unused=True) for conversation in await task
            ]
        except EngineError:
            continue
    return conversations
