"""Read all chunks side by side against one memory, in rounds, until a round finds nothing new.

After PI-Mem (arXiv 2608.03048): each chunk yields a note or nothing, the notes go into the memory, and a clue
that was found late sends the reader back to what it leads to. This form is our own: notes stay word for word
while there is room, and a chunk comes before the memory in its prompt, so that later rounds find it in a
prefix cache.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from memagent.concurrency import map_concurrent
from memagent.prompts import ANSWER, MEMORY, MERGE, NOTE, SECTIONS, UNCHANGED, Prompts
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.gathering import Gathering
from memagent.reading.replies import read_note
from memagent.reading.workflow import Rounds, Workflow
from memagent.types import Chunk, Conversation, Message

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
    answer=ANSWER,
    workflow="parallel",
    replies="marked",
    own={"note": NOTE, "merge": MERGE},
)
"""A note on each chunk, with the shared memory in sight; then an answer from the memory."""


async def parallel(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks in each round with the memory of the round before, then answer from memory alone."""
    gathering, source = Gathering(reading, memory), chunks
    for _ in range(reading.settings.of(Rounds).rounds or 3):
        read = fresh = 0
        async with aclosing(_round(reading, source, gathering)) as conversations:
            async for conversation, is_new in conversations:
                read += conversation.chunk_index is not None
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

    def prompt(text: str, _note: str) -> tuple[Message, ...]:
        return reading.prompts.fill("update", problem=reading.problem, chunk=text, memory=shared)

    async def take(chunk: Chunk) -> list[Conversation]:
        return [update async for update in reading.update(chunk, "", read_note, prompt)]

    async with aclosing(map_concurrent(take, chunks, reading.model.calls)) as batches:
        async for updates in batches:
            note = updates[-1].memory if updates else ""
            is_new = bool(note) and not gathering.has(note)
            if is_new:
                for merge in await gathering.add(note):
                    yield merge, False
            for update in updates:
                yield replace(update, memory=gathering.text), is_new and update is updates[-1]
    for merge in await gathering.merge():
        yield merge, False


WORKFLOW = Workflow(parallel, PROMPTS, templates=True, keeps_memory=True, options=(Rounds,))
