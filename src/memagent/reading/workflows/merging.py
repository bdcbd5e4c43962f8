"""Merge notes: in groups of the size of a chunk, and into a memory of fixed size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from memagent.concurrency import side_by_side
from memagent.reading.conversations import Reading
from memagent.reading.replies import read_gated
from memagent.types import Chunk, Conversation, Part, TokenCounter

BETWEEN = "\n\n"
"""Separates notes."""


class Gathering:
    """A memory into which notes are gathered, one after the other.

    A note is kept word for word as long as memory and note fit the memory's budget. Later notes wait; once
    they would exceed a chunk, or at the end, a conversation merges them. What waits never exceeds a chunk.
    """

    def __init__(self, reading: Reading, memory: str = "") -> None:
        self.memory = memory
        """The memory, within its budget once `merge` has ended."""
        self._reading = reading
        self._waiting: list[str] = []

    @property
    def text(self) -> str:
        """The memory, and below it the notes waiting to be merged."""
        return BETWEEN.join(filter(None, [self.memory, *self._waiting]))

    def has(self, note: str) -> bool:
        """Whether all lines of a note are there already."""
        lines = {line.strip() for line in self.text.splitlines()}
        return all(line.strip() in lines for line in note.splitlines())

    async def add(self, note: str) -> AsyncGenerator[Conversation, None]:
        """Take a note. Yields the conversations that make room for it."""
        budgets = self._reading.budgets
        if not self._waiting:
            both = BETWEEN.join(filter(None, [self.memory, note]))
            if await self._reading.count_tokens(both) <= budgets.memory_tokens:
                self.memory = both
                return
        waiting = BETWEEN.join([*self._waiting, note])
        if self._waiting and await self._reading.count_tokens(waiting) > budgets.chunk_tokens:
            async for conversation in self.merge():
                yield conversation
        self._waiting.append(note)

    async def merge(self) -> AsyncGenerator[Conversation, None]:
        """Merge the waiting notes into the memory."""
        if not self._waiting:
            return
        reading, before = self._reading, self.text
        notes = await asyncio.to_thread(as_chunk, self._waiting, reading.model.count_tokens)
        prompt = partial(reading.prompts.for_merge, reading.problem)
        updates = [it async for it in reading.update(notes, self.memory, read_gated, prompt)]
        if not updates[-1].memory:  # a model that leaves an empty memory unchanged must not lose the notes
            updates[-1] = await reading.with_memory(updates[-1], notes.text)
        self.memory = updates[-1].memory
        self._waiting = []
        for update in updates:
            memory = self.memory if update is updates[-1] else before
            yield replace(update, memory=memory, chunk_index=None, span=None, source=None)


async def merge_all(reading: Reading, memories: list[str]) -> AsyncGenerator[Conversation, None]:
    """Merge memories in groups, side by side, until one is left; changes `memories` in place."""
    count_tokens, group_tokens = reading.model.count_tokens, reading.budgets.chunk_tokens
    while len(memories) > 1:
        groups = await asyncio.to_thread(grouped, memories, group_tokens, count_tokens)
        done: list[str] = []
        work = partial(_gather, reading)
        async with aclosing(side_by_side(work, groups, reading.model.calls)) as gathered:
            async for memory, conversations in gathered:
                done.append(memory)
                rest = [text for group in groups[len(done) :] for text in group]
                for conversation in conversations:
                    yield replace(conversation, memory=BETWEEN.join([*done, *rest]))
        memories[:] = done


async def _gather(reading: Reading, memories: Sequence[str]) -> tuple[str, list[Conversation]]:
    """Several memories merged into one, and the conversations that it took."""
    gathering = Gathering(reading)
    made = [it for memory in memories async for it in gathering.add(memory)]
    made += [it async for it in gathering.merge()]
    return gathering.memory, made


def grouped(notes: Sequence[str], group_tokens: int, count_tokens: TokenCounter) -> list[list[str]]:
    """Notes in groups of at most `group_tokens` tokens, but of at least two notes if there are two."""
    groups: list[list[str]] = []
    start = 0
    while start < len(notes):
        end = min(start + 2, len(notes))
        while end < len(notes) and count_tokens(BETWEEN.join(notes[start : end + 1])) <= group_tokens:
            end += 1
        groups.append(list(notes[start:end]))
        start = end
    return groups


def as_chunk(notes: Sequence[str], count_tokens: TokenCounter, index: int = 0) -> Chunk:
    """Notes as a chunk of their own."""
    text = BETWEEN.join(notes)
    return Chunk(index, text, 0, len(text), count_tokens(text), (Part("notes", 0, len(text)),))
