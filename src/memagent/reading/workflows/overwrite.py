"""The paper's workflow (MemAgent, arXiv 2507.02259): every update rewrites the memory whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from memagent.reading.conversations import Reader
from memagent.reading.replies import read_rewrite
from memagent.types import Chunk, Conversation


async def overwrite(reader: Reader, chunks: Iterable[Chunk]) -> AsyncGenerator[Conversation, None]:
    """Read all chunks, rewriting the memory at each, then answer from the memory alone."""
    memory = ""
    for chunk in chunks:
        async for update in reader.update(chunk, memory, read_rewrite):
            memory = update.memory
            yield update
    yield await reader.answer(memory)
