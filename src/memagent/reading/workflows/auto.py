"""The default: the whole document in one prompt if it takes at most half the window, or else piece by piece.

Models read less well the fuller their window is, small ones above all: see docs/real-models.md. Verdicts rank
well with a model that was trained to give them; with others, only notes on all chunks have been tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from memagent.errors import ContextOverflowError
from memagent.prompts import AUTO, WHOLE
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.finds import keep_passages
from memagent.reading.locating import hardly_names
from memagent.reading.workflow import Likeliest, Rounds, chain, delegate
from memagent.types import Chunk


async def auto(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Answer from the whole document if it is short, and read it into a memory if it is not.

    It is read into a memory too if one is given, if no answer is wanted, or if chunks are to be screened.
    """
    first: list[Chunk] = []
    if not memory and await _is_short(reading):
        first = [chunk async for chunk in chunks]
        async with aclosing(_read_short(reading, first)) as conversations:
            try:
                async for conversation in conversations:
                    yield conversation
                return
            except ContextOverflowError:
                pass  # the window is smaller than the engine says
    name = "select" if reading.model.judges else "notes"
    async with aclosing(delegate(name, reading, chain(first, chunks), memory)) as conversations:
        async for conversation in conversations:
            yield conversation


async def _is_short(reading: Reading) -> bool:
    """Whether an answer is wanted, and the whole document takes at most half the window."""
    if not reading.answers or reading.settings.screen:
        return False
    room_tokens = min(await reading.count_room(), reading.window_tokens // 2)
    return await reading.passes.is_within(room_tokens)


async def _read_short(reading: Reading, chunks: Sequence[Chunk]) -> Conversations:
    """Answer from the whole document.

    If it has little of what the problem says, it may be in other words: a model that was trained to judge is
    asked whether a chunk helps, and only if none does may the answer be that it is not there.
    """
    text = "".join(chunk.text for chunk in chunks)
    judges = bool(reading.model.judges)
    if judges and await asyncio.to_thread(hardly_names, text, reading.problem):
        helps = False
        reading = replace(reading, settings=reading.settings.replace(likeliest_chunks=0))
        async with aclosing(delegate("select", reading, chain(chunks))) as conversations:
            async for conversation in conversations:
                yield conversation
                helps = bool(conversation.memory)
        if helps:
            return
    if reading.prompts.answer == AUTO.answer:  # not the user's own: `full` asks in words for all
        reading = replace(reading, prompts=replace(reading.prompts, answer=WHOLE))
    async with aclosing(delegate("full", reading, chain(chunks))) as conversations:
        async for conversation in conversations:
            yield conversation


WORKFLOW = keep_passages(auto, AUTO, options=(Rounds, Likeliest))
