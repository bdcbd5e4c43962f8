"""The default: the whole document in one prompt if it takes at most half the window, or else piece by piece.

Models read less well the fuller their window is, small ones above all: see docs/real-models.md. Verdicts rank
well with a model that was trained to give them; with others, only notes on all chunks have been tried.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from memagent.errors import ContextOverflowError
from memagent.prompts import AUTO, WHOLE
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.finds import keep_passages
from memagent.reading.workflow import Verdicts, chain, delegate
from memagent.types import Chunk


async def auto(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Answer from the whole document if it is short, and read it into a memory if it is not.

    It is read into a memory too if one is given, if no answer is wanted, or if chunks are to be screened.
    """
    first: list[Chunk] = []
    if reading.answers and not memory and not reading.settings.screen:
        first, short = await _take_up_to_half_the_window(reading, chunks)
        if short:
            whole = reading
            if reading.prompts.answer == AUTO.answer:  # not the user's own: `full` asks in words for all
                whole = replace(reading, prompts=replace(reading.prompts, answer=WHOLE))
            try:
                async with aclosing(delegate("full", whole, chain(first, chunks))) as conversations:
                    async for conversation in conversations:
                        yield conversation
                return
            except ContextOverflowError:
                pass  # the window is smaller than the engine says
    name = "select" if reading.model.judges else "notes"
    async with aclosing(delegate(name, reading, chain(first, chunks), memory)) as conversations:
        async for conversation in conversations:
            yield conversation


async def _take_up_to_half_the_window(reading: Reading, chunks: Chunks) -> tuple[list[Chunk], bool]:
    """The chunks up to the one that exceeds half the window; whether those are all chunks."""
    left, first = min(await reading.count_room(), reading.window_tokens // 2), list[Chunk]()
    async for chunk in chunks:
        first.append(chunk)
        left -= chunk.tokens
        if left < 0:
            return first, False
    return first, True


WORKFLOW = keep_passages(auto, AUTO, options=(Verdicts,))
