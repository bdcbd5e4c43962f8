"""Refine: an answer from the first chunk, improved by each chunk after it; the last one is the answer."""

from __future__ import annotations

from memagent.prompts import MEMORY, NOTE, UNCHANGED, Prompts, sections
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.replies import read_gated
from memagent.reading.workflow import Workflow

PROMPTS = Prompts(
    update=f"""\
You are answering a problem from a long document that is shown to you piece by piece.

{sections(chunk="chunk", problem="problem", answer="memory")}
The answer above is the best so far. If this chunk does not help, reply with the one word {UNCHANGED}. \
Otherwise write the word {MEMORY} on the first line, alone, and below it a better answer, keeping what is \
right in the one above.
""",
    answer="{problem}{memory}",
    empty_memory="(no answer yet)",
    replies="marked",
    own={"note": NOTE},
)
"""The answer so far stands in the memory's slot, and the last one is the answer."""


async def refine(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks with the best answer so far in the memory's place."""
    async for chunk in chunks:
        async for update in reading.update(chunk, memory, read_gated):
            memory = update.memory
            yield update


WORKFLOW = Workflow(refine, PROMPTS, screens=True)
