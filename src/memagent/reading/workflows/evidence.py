"""A memory of verbatim excerpts with their places, each checked against the chunk before it is kept.

At each chunk, the model says what to keep of it and which excerpts to promote or drop. It writes none of the
memory itself, so nothing in it is invented, distorted or forged. The answer names the excerpts that it rests
on, so its sources need no search. The idea of a memory of evidence copied from the text is not ours (COEM;
EMBER, arXiv 2606.05894); this form of it is.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from memagent.prompts import SECTIONS, UNCHANGED, Prompts, sections
from memagent.prompts.thoughts import without_thought
from memagent.reading.citations import Citations
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.excerpts import ADD, DROP, PROMOTE, edit, excerpts_of, fit, memory_of
from memagent.reading.replies import MemoryChange
from memagent.reading.workflow import Lookahead, Workflow, in_turn
from memagent.types import Chunk

PROMPTS = Prompts(
    update=f"""\
You read a long document piece by piece. Of what you have read, only excerpts remain, copied from it word \
for word: they are your memory.

If the chunk gives nothing that helps to solve the problem, reply with the one word {UNCHANGED}. Otherwise \
reply with lines of these kinds, and nothing else:

{ADD} "..." keeps a passage of the chunk: copy it word for word, a sentence or two, on one line.
{PROMOTE} E1 marks excerpt E1 as needed most, so that it is given up last when room is short.
{DROP} E1 gives up excerpt E1, because it turned out to be of no use.
"""
    + SECTIONS
    + f"{UNCHANGED}, or lines that begin with {ADD}, {PROMOTE} or {DROP}:\n",
    answer=f"""\
You have read a long document piece by piece. All that remains of it are excerpts, copied from it word for \
word. Answer the problem from them, in as few words as it needs and in their words. Behind each sentence put \
the number of the excerpt that says it in square brackets, such as [E1]. If the excerpts do not hold the \
answer, say so.

{sections(problem="problem", memory="memory")}
The answer:
""",
    empty_memory="(none)",
    workflow="evidence",
    replies="marked",
)
"""The excerpts stand in the memory's place."""


async def evidence(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks, keeping excerpts of them, then answer from the excerpts alone.

    Raises `SettingsError` for a memory that holds anything else.
    """
    excerpts_of(memory)

    def change(chunk: Chunk, reply: str, memory: str, prompts: Prompts) -> MemoryChange:
        text = prompts.restore(without_thought(reply))
        excerpts, refused = edit(excerpts_of(memory), text, chunk)
        fitting = fit(excerpts, reading.fits_memory)
        given_up = len(excerpts) - len(fitting)
        return MemoryChange("replace", memory_of(fitting), refused=refused, given_up=given_up)

    def read(chunk: Chunk, memory: str) -> Conversations:
        return reading.update(chunk, memory, lambda *reply: asyncio.to_thread(change, chunk, *reply))

    async with aclosing(in_turn(reading, chunks, memory, read)) as turns:
        async for updates in turns:
            for update in updates:
                memory = update.memory
                yield update
    async for answer in reading.conclude(memory):
        yield answer


WORKFLOW = Workflow(
    evidence,
    PROMPTS,
    templates=True,
    screens=True,
    keeps_memory=True,
    options=(Lookahead,),
    provenance=Citations,
)
