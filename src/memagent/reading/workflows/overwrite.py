"""The paper's workflow (MemAgent, arXiv 2507.02259): every update rewrites the whole memory."""

from __future__ import annotations

from memagent.prompts import OVERWRITE
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.replies import read_overwrite
from memagent.reading.workflow import Workflow


async def overwrite(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks, rewriting the memory at each, then answer from the memory alone."""
    async for chunk in chunks:
        async for update in reading.update(chunk, memory, read_overwrite):
            memory = update.memory
            yield update
    async for answer in reading.conclude(memory):
        yield answer


WORKFLOW = Workflow(overwrite, OVERWRITE, templates=True, screens=True, keeps_memory=True)
