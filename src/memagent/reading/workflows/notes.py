"""A note on every chunk, the passages that it comes from, and a memory of the best of them.

Small models note well if they are asked for a note, and badly if they may also say that there is nothing to
note, or have to rewrite a memory. So this workflow only asks for notes, chunk by chunk and side by side. Code
does the rest: it finds the note's passages in the chunk (`memagent.reading.locating`), and the memory holds
the best of them within its budget, word for word and with their places. A passage ranks higher the more of
the note its chunk supports and the more of the problem's words it has.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

from memagent.prompts import NOTES
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.finds import Finds, keep_passages
from memagent.reading.locating import count_words
from memagent.reading.replies import MemoryChange
from memagent.reading.workflow import take_each
from memagent.types import Chunk, Conversation, Message

NOTE_TOKENS = 48
"""The longest note."""

_Noted = tuple[Chunk, list[Conversation]]


async def notes(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Note on all chunks side by side, keep the best passages, then answer from them alone.

    Raises `SettingsError` for a memory that holds anything but passages.
    """
    finds = Finds(reading, memory)
    room = min(NOTE_TOKENS, reading.budgets.memory_tokens)
    noting = replace(reading, budgets=replace(reading.budgets, memory_tokens=room))

    def prompt(text: str, _: str) -> tuple[Message, ...]:
        return reading.prompts.fill("note", problem=reading.problem, chunk=text)

    async def take(chunk: Chunk) -> _Noted:
        updates = noting.update(chunk, "", lambda *_: MemoryChange("keep"), prompt)
        return chunk, [update async for update in updates]

    async with aclosing(take_each(reading, take, chunks)) as batches:
        async for chunk, updates in batches:
            await asyncio.to_thread(count_words, chunk, finds.rarity)
            for update in updates:
                yield await asyncio.to_thread(finds.take, update, chunk)
    async for answer in reading.conclude(finds.memory, finds.shown, finds.is_doubtful):
        yield answer


WORKFLOW = keep_passages(notes, NOTES)
