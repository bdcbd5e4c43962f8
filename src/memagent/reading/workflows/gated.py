"""Overwrite with two gates: an update may leave the memory as it is, and may say that it is enough.

An unchanged memory is kept verbatim and costs a few tokens, so what was found early survives any number of
chunks that have nothing to add. With `early_exit`, reading stops once the model has said that the memory
is enough (gates as in GRU-Mem; the form here is our own).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from memagent.reading.conversations import Reading
from memagent.reading.replies import read_gated
from memagent.types import Chunk, Conversation


async def gated(
    reading: Reading, chunks: AsyncIterator[Chunk], memory: str = ""
) -> AsyncGenerator[Conversation, None]:
    """Read chunks until they end or the memory is enough, then answer from the memory alone."""
    enough = False
    async for chunk in chunks:
        async for update in reading.update(chunk, memory, read_gated):
            memory, enough = update.memory, enough or update.enough
            yield update
        if enough and reading.settings.early_exit:
            break
    if reading.answers:
        yield await reading.answer(memory, memory)
