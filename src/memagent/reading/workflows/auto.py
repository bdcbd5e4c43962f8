"""The default: the whole document in one prompt if it takes at most half the window, or else piece by piece.

Models read less well the fuller their window is, small ones above all: see docs/real-models.md. Verdicts rank
well with a model that was trained to give them; with others, notes on all chunks are what was tried.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from memagent.errors import ContextOverflowError
from memagent.prompts import AUTO
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.workflows import notes
from memagent.reading.workflows.select import WORKFLOW as SELECT
from memagent.reading.workflows.select import chain, select
from memagent.reading.workflows.whole import PROMPTS, answer_from, count_room, join_chunks
from memagent.types import Chunk


async def auto(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Answer from the whole document if it is short, and read it into a memory if it is not.

    It is read into a memory too if one is given, if no answer is wanted, or if chunks are to be screened.
    """
    begun: list[Chunk] = []
    if reading.answers and not memory and not reading.settings.screen:
        begun, short = await _take_up_to_half_the_window(reading, chunks)
        if short:
            document, _ = join_chunks(begun)
            whole = reading
            if reading.prompts.answer == AUTO.answer:  # not the user's own: `full` asks in words for all
                whole = replace(reading, prompts=replace(reading.prompts, answer=PROMPTS.answer))
            try:
                yield await answer_from(whole, document)
                return
            except ContextOverflowError:
                pass  # the window is smaller than the engine says
    read = select if reading.model.judges else notes.notes
    async with aclosing(read(reading, chain(begun, chunks), memory)) as conversations:
        async for conversation in conversations:
            yield conversation


async def _take_up_to_half_the_window(reading: Reading, chunks: Chunks) -> tuple[list[Chunk], bool]:
    """The chunks up to the first one that is too much with those before it; whether all were taken."""
    left, begun = min(await count_room(reading), reading.window_tokens // 2), list[Chunk]()
    async for chunk in chunks:
        begun.append(chunk)
        left -= chunk.tokens
        if left < 0:
            return begun, False
    return begun, True


WORKFLOW = replace(SELECT, run=auto, prompts=AUTO)
