"""Overwrite with two gates: an update may leave the memory as it is, and may say that it is enough.

An unchanged memory is kept verbatim and costs a few tokens, so what was found early survives any
number of chunks that have nothing to add. With `Reader.early_exit`, reading stops once the model
has said that the memory is enough (gates as in GRU-Mem; the form here is our own).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from memagent.reading.conversations import Reader
from memagent.reading.replies import read_gated
from memagent.types import Chunk, Conversation


async def gated(reader: Reader, chunks: Iterable[Chunk]) -> AsyncGenerator[Conversation, None]:
    """Read chunks until they end or the memory is enough, then answer from the memory alone."""
    memory, enough = "", False
    for chunk in chunks:
        async for update in reader.update(chunk, memory, read_gated):
            memory, enough = update.memory, enough or update.enough
            yield update
        if enough and reader.early_exit:
            break
    yield await reader.answer(memory)
