"""Notes that are gathered into one memory: word for word while there is room, else merged by the model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from memagent.reading.conversations import Reading
from memagent.reading.replies import read_gated
from memagent.types import Chunk, Conversation, Message, Part, TokenCounter

BETWEEN = "\n\n"
"""Separates notes."""


class Gathering:
    """A memory into which notes are gathered, one after the other.

    A note is kept word for word as long as memory and note fit the memory's budget. Later notes wait; once
    they would exceed a chunk, or at the end, a conversation merges them. So those that wait never exceed a
    chunk.
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
        """Whether the memory or the waiting notes already have all lines of a note."""
        lines = {line.strip() for line in self.text.splitlines()}
        return all(line.strip() in lines for line in note.splitlines())

    async def add(self, note: str) -> list[Conversation]:
        """Add a note. Returns the conversations that made room for it."""
        budgets = self._reading.budgets
        if not self._waiting:
            both = BETWEEN.join(filter(None, [self.memory, note]))
            if await self._reading.count_tokens(both) <= budgets.memory_tokens:
                self.memory = both
                return []
        waiting, merges = BETWEEN.join([*self._waiting, note]), list[Conversation]()
        if self._waiting and await self._reading.count_tokens(waiting) > budgets.chunk_tokens:
            merges = await self.merge()
        self._waiting.append(note)
        return merges

    async def merge(self) -> list[Conversation]:
        """Merge the waiting notes into the memory. Returns the conversations that it took."""
        if not self._waiting:
            return []
        reading, before = self._reading, self.text
        notes = await asyncio.to_thread(as_chunk, self._waiting, reading.model.count_tokens)

        def prompt(text: str, memory: str) -> tuple[Message, ...]:
            return reading.prompts.fill("merge", problem=reading.problem, chunk=text, memory=memory)

        updates = [update async for update in reading.update(notes, self.memory, read_gated, prompt)]
        if not updates[-1].memory:  # a model that leaves an empty memory unchanged must not lose the notes
            updates[-1] = await reading.with_memory(updates[-1], notes.text)
        self.memory = updates[-1].memory
        self._waiting = []
        memories = [*[before] * (len(updates) - 1), self.memory]
        return [
            replace(update, memory=memory, chunk_index=None, span=None, source=None)
            for update, memory in zip(updates, memories, strict=True)
        ]


def as_chunk(notes: Sequence[str], count_tokens: TokenCounter, index: int = 0) -> Chunk:
    """Notes as a chunk of their own."""
    text = BETWEEN.join(notes)
    return Chunk(index, text, 0, len(text), count_tokens(text), (Part("notes", 0, len(text)),))


def group_notes(notes: Sequence[str], group_tokens: int, count_tokens: TokenCounter) -> list[list[str]]:
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
