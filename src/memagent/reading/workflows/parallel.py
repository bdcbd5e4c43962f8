"""Read all chunks side by side against one memory, in rounds, until a round finds nothing new.

After PI-Mem (arXiv 2608.03048): each chunk yields a note or nothing, the notes go into the memory, and a clue
that was found late sends the reader back to what it leads to. This form is our own: notes stay word for word
while there is room, and a chunk comes before the memory in its prompt, so that later rounds find it in a
prefix cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from memagent.concurrency import side_by_side
from memagent.prompts import ANSWER, MEMORY, MERGE, NOTE, SECTIONS, UNCHANGED, Prompts
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.replies import read_gated, read_note
from memagent.reading.workflow import Workflow
from memagent.reading.workflows.reread import Rounds
from memagent.types import Chunk, Conversation, Message, Part, TokenCounter

PROMPTS = Prompts(
    update=f"""\
The chunks of a long document are read side by side, and notes on them are gathered in one memory. You \
read one of the chunks.

If the chunk gives nothing that helps to solve the problem, or nothing that the memory lacks, reply with the \
one word {UNCHANGED}. Otherwise write the word {MEMORY} on the first line, alone, and below it a note of \
what the chunk adds for the problem, also on what the memory names and the problem leads to; leave out what \
the memory already holds, and copy names, numbers and quotations exactly.
"""
    + SECTIONS
    + f"{UNCHANGED}, or {MEMORY} and the note:\n",
    merge=MERGE,
    answer=ANSWER,
    workflow="parallel",
    replies="marked",
    note=NOTE,
)
"""A note on each chunk, with the shared memory in sight; then an answer from the memory."""

BETWEEN = "\n\n"
"""Separates notes."""


async def parallel(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks in each round with the memory of the round before, then answer from memory alone."""
    gathering, source = Gathering(reading, memory), chunks
    for _ in range(reading.settings.of(Rounds).rounds):
        read = fresh = 0
        async with aclosing(_round(reading, source, gathering)) as conversations:
            async for conversation, is_new in conversations:
                read += conversation.kind == "update" and conversation.chunk_index is not None
                fresh += is_new
                yield conversation
        if not fresh or read == 1:
            break
        source = reading.passes.again()
    async for answer in reading.conclude(gathering.text):
        yield answer


async def _round(
    reading: Reading, chunks: Chunks, gathering: Gathering
) -> AsyncGenerator[tuple[Conversation, bool], None]:
    """The conversations of a round, each with whether it noted something new."""
    shared = gathering.text

    def prompt(shown: str, _note: str) -> tuple[Message, ...]:
        return reading.prompts.for_update(reading.problem, shown, shared)

    async def take(chunk: Chunk) -> list[Conversation]:
        return [update async for update in reading.update(chunk, "", read_note, prompt)]

    async with aclosing(side_by_side(take, chunks, reading.model.calls)) as taken:
        async for updates in taken:
            note = updates[-1].memory if updates else ""
            is_new = bool(note) and not gathering.has(note)
            if is_new:
                for merge in await gathering.add(note):
                    yield merge, False
            for update in updates:
                yield replace(update, memory=gathering.text), is_new and update is updates[-1]
    for merge in await gathering.merge():
        yield merge, False


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

    async def add(self, note: str) -> list[Conversation]:
        """Take a note. Returns the conversations that made room for it."""
        budgets = self._reading.budgets
        if not self._waiting:
            both = BETWEEN.join(filter(None, [self.memory, note]))
            if await self._reading.count_tokens(both) <= budgets.memory_tokens:
                self.memory = both
                return []
        waiting, made = BETWEEN.join([*self._waiting, note]), list[Conversation]()
        if self._waiting and await self._reading.count_tokens(waiting) > budgets.chunk_tokens:
            made = await self.merge()
        self._waiting.append(note)
        return made

    async def merge(self) -> list[Conversation]:
        """Merge the waiting notes into the memory. Returns the conversations that it took."""
        if not self._waiting:
            return []
        reading, before = self._reading, self.text
        notes = await asyncio.to_thread(as_chunk, self._waiting, reading.model.count_tokens)
        prompt = partial(reading.prompts.for_merge, reading.problem)
        updates = [it async for it in reading.update(notes, self.memory, read_gated, prompt)]
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


WORKFLOW = Workflow(parallel, PROMPTS, templates=True, keeps_memory=True, options=Rounds)
