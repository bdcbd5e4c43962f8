"""The default: the whole document in one prompt if it fits the window, else notes on its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from memagent.errors import ContextOverflowError
from memagent.prompts import AUTO
from memagent.reading.conversations import Reading
from memagent.reading.locating import count_words, falls_short, locate
from memagent.reading.ranking import Rarity
from memagent.reading.workflows import notes
from memagent.reading.workflows.whole import PROMPTS, count_room, joined
from memagent.types import Chunk, Conversation


async def auto(
    reading: Reading, chunks: AsyncIterator[Chunk], memory: str = ""
) -> AsyncGenerator[Conversation, None]:
    """Answer from the whole document if it fits one prompt, and read it into a memory if it does not.

    It is read into a memory too if one is given, if no answer is wanted, or if chunks are to be screened.
    """
    begun: list[Chunk] = []
    if reading.answers and not memory and not reading.settings.screen:
        begun, fits = await _as_much_as_fits(reading, chunks)
        if fits:
            document, _ = joined(begun)
            doubtful = await asyncio.to_thread(_is_doubtful, reading.problem, begun)
            try:
                yield await _with_words_for_all(reading).answer(document, doubtful=doubtful)
                return
            except ContextOverflowError:
                pass  # the window is smaller than the engine says
    async with aclosing(notes.notes(reading, _chain(begun, chunks), memory)) as conversations:
        async for conversation in conversations:
            yield conversation


def _with_words_for_all(reading: Reading) -> Reading:
    """The reading with `full`'s words for the answer in place of those for passages; not of a user's own."""
    prompts = reading.prompts
    if prompts.answer != AUTO.answer:
        return reading
    return replace(reading, prompts=replace(prompts, answer=PROMPTS.answer))


async def _as_much_as_fits(reading: Reading, chunks: AsyncIterator[Chunk]) -> tuple[list[Chunk], bool]:
    """The chunks up to the first one that does not fit the prompt with those before it; whether all fit."""
    left, begun = await count_room(reading), list[Chunk]()
    async for chunk in chunks:
        begun.append(chunk)
        left -= chunk.tokens
        if left < 0:
            return begun, False
    return begun, True


def _is_doubtful(problem: str, chunks: Sequence[Chunk]) -> bool:
    """Whether no passage of the chunks has much of what the problem says."""
    rarity = Rarity()
    for chunk in chunks:
        count_words(chunk, rarity)
    finds = (locate(problem, problem, it, (it.start, it.end), rarity) for it in chunks)
    return falls_short(problem, [find.text for find in finds if find], rarity)


async def _chain(begun: Sequence[Chunk], rest: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    for chunk in begun:
        yield chunk
    async for chunk in rest:
        yield chunk


WORKFLOW = replace(notes.WORKFLOW, run=auto, prompts=AUTO)
