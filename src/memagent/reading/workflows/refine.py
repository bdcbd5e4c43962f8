"""Refine: an answer from the first chunk, improved by each chunk after it; the last one is the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from memagent.prompts import Prompts
from memagent.reading.conversations import Reading
from memagent.reading.replies import read_rewrite
from memagent.types import Chunk, Conversation

PROMPTS = Prompts(
    update="""\
You are answering a problem from a long document that is shown to you piece by piece.

<chunk>
{chunk}
</chunk>

<problem>
{problem}
</problem>

<answer>
{memory}
</answer>

The answer above is the best so far. If this chunk helps, write a better answer, keeping what is right in \
it; otherwise repeat it as it is. Reply with the answer and nothing else.
""",
    answer="{problem}{memory}",
    empty_memory="(no answer yet)",
)
"""The answer so far stands in the memory's slot, and the last one is the answer."""


async def refine(
    reading: Reading, chunks: AsyncIterator[Chunk], memory: str = ""
) -> AsyncGenerator[Conversation, None]:
    """Read all chunks with the best answer so far in the memory's place."""
    async for chunk in chunks:
        async for update in reading.update(chunk, memory, read_rewrite):
            memory = update.memory
            yield update
