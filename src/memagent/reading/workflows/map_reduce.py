"""Map-reduce: notes on each chunk by itself, side by side, then an answer from all notes.

If the notes are too long for the last prompt, notes are taken on them, in groups, until they fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from contextlib import aclosing
from dataclasses import replace

from memagent.concurrency import map_concurrent
from memagent.errors import ContextOverflowError
from memagent.prompts import CLOSING, MEMORY, NOTE, UNCHANGED, Prompts, sections
from memagent.reading.conversations import Conversations, Reading
from memagent.reading.gathering import BETWEEN, as_chunk, group_notes
from memagent.reading.replies import read_gated
from memagent.reading.workflow import Workflow
from memagent.types import Chunk, Conversation

PROMPTS = Prompts(
    update=f"""\
A long document was cut into chunks, and notes are made on each. This is one of them.

{sections(chunk="chunk", problem="problem", notes="memory")}
If there is nothing in this chunk to add to the notes, reply with the one word {UNCHANGED}. Otherwise write \
the word {MEMORY} on the first line, alone, and below it everything in this chunk that helps to solve the \
problem, after the notes that are already there; copy names, numbers and quotations exactly.
""",
    answer=f"""\
Notes were made on the chunks of a long document, each without sight of the others. These are all of them, \
in order.

{sections(notes="memory", problem="problem")}
"""
    + CLOSING.format(source="notes"),
    empty_memory="(none)",
    replies="marked",
    own={"note": NOTE},
)
"""Notes on each chunk alone, or on the notes if there are too many, then an answer from them."""


async def map_reduce(reading: Reading, chunks: AsyncIterable[Chunk], memory: str = "") -> Conversations:
    """Take notes on each chunk alone, and answer from the notes; a memory counts as the first of them."""
    notes = [memory] if memory else []
    async for conversation in _take_notes(reading, chunks, notes):
        yield conversation
    budgets = reading.budgets
    limit = budgets.needed_tokens() - budgets.problem_tokens - budgets.answer_reply_tokens
    while True:
        while len(notes) > 1 and await reading.count_tokens(BETWEEN.join(notes)) > limit:
            count = reading.model.count_tokens
            groups = await asyncio.to_thread(group_notes, notes, budgets.chunk_tokens, count)
            merged = [
                await asyncio.to_thread(as_chunk, group, count, index) for index, group in enumerate(groups)
            ]
            notes = []
            async for conversation in _take_notes(reading, merged, notes, again=True):
                yield conversation
        if not notes:
            return
        try:
            answer = await reading.answer(BETWEEN.join(notes))
        except ContextOverflowError:
            if len(notes) < 2:
                raise
            limit //= 2
        else:
            yield answer
            return


async def _take_notes(
    reading: Reading, chunks: AsyncIterable[Chunk] | Iterable[Chunk], notes: list[str], again: bool = False
) -> Conversations:
    """Read each chunk with an empty memory, and append the notes on it to `notes`, in order.

    With `again`, the chunks are notes themselves: if nothing is noted on one, it stays, cut to a memory's
    size.
    """

    async def take(chunk: Chunk) -> list[Conversation]:
        updates = [update async for update in reading.update(chunk, "", read_gated)]
        if again and updates and not updates[-1].memory:
            updates[-1] = await reading.with_memory(updates[-1], chunk.text)
        return [
            replace(update, chunk_index=None, span=None, source=None) if again else update
            for update in updates
        ]

    async with aclosing(map_concurrent(take, chunks, reading.model.calls)) as batches:
        async for updates in batches:
            if updates and updates[-1].memory:
                notes.append(updates[-1].memory)
            for update in updates:
                yield update


WORKFLOW = Workflow(map_reduce, PROMPTS, takes_notes=True)
