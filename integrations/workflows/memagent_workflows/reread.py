"""A pass over all chunks, then passes over the few that matter for what the memory still lacks.

After MemReread (arXiv 2605.10268) and ReMemR1 (arXiv 2509.23040): a fact that could not be known to matter
when it was read is looked up once the memory shows that it does. This form is our own: the model names what
is missing in one question, BM25 chooses the chunks, and they are read into the same memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from memagent.documents.tokens import shorten
from memagent.prompts import (
    ANSWER,
    ENOUGH,
    MEMORY,
    NOTE,
    OPENING,
    REWRITE,
    SECTIONS,
    UNCHANGED,
    UPDATE,
    Prompts,
    sections,
)
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.ranking import best_chunks
from memagent.reading.replies import read_gap, read_gated
from memagent.reading.workflow import Lookahead, Rounds, Workflow, in_turn
from memagent.types import Conversation, Message

_GAP = f"""\
You have read a long document piece by piece. All that remains of it is your memory. You may look up one \
thing in the document before you answer the problem.

If the memory holds all that the problem asks for, reply with the one word {ENOUGH}. Otherwise reply with \
one short question, and nothing else: what has to be found out first? Use the names that the memory gives.

{sections(problem="problem", memory="memory")}
{ENOUGH}, or the question:
"""

_AGAIN = (
    OPENING
    + REWRITE
    + "\nYou have read the document once. This chunk is read again for the question, which helps to solve "
    "the problem.\n"
    + SECTIONS
    + sections(question="question")
    + f"\n{UNCHANGED}, or {MEMORY} and the new memory:\n"
)

PROMPTS = Prompts(
    update=UPDATE,
    answer=ANSWER,
    workflow="reread",
    replies="marked",
    own={"note": NOTE, "gap": _GAP, "again": _AGAIN},
)
"""The question is kept apart from the problem, which nothing in a document may change."""

_MAX_CHUNKS = 8  # of a further pass; if the document has no more, all are read
_QUESTION_TOKENS = 64


async def reread(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks, then those that matter for each question that the memory leaves open, and answer."""
    asked: set[str] = set()
    turns = in_turn(reading, chunks, memory, partial(reading.update, read_reply=read_gated))
    for left in reversed(range(reading.settings.of(Rounds).rounds or 3)):
        async with aclosing(turns):
            async for updates in turns:
                for update in updates:
                    memory = update.memory
                    yield update
        if not left:
            break
        messages = reading.prompts.fill("gap", problem=reading.problem, memory=memory)
        gap = await reading.aside(messages, memory, reading.budgets.memory_tokens)
        yield gap
        question = await _within_room(reading, read_gap(gap.completion.text, reading.prompts))
        if not question or question in asked:
            break
        asked.add(question)
        turns = await _read_for(reading, question, memory)
    async for answer in reading.conclude(memory):
        yield answer


async def _within_room(reading: Reading, question: str) -> str:
    """The question, cut to what the problem leaves of its budget: the window has no more room."""
    count_tokens = reading.model.count_tokens
    room = reading.budgets.problem_tokens - await reading.count_tokens(reading.problem)
    return await asyncio.to_thread(shorten, question, min(room, _QUESTION_TOKENS), count_tokens)


async def _read_for(reading: Reading, question: str, memory: str) -> AsyncGenerator[list[Conversation], None]:
    """The updates of a pass over the chunks that matter for a question, chunk by chunk."""
    places: list[int] = list(range(await reading.passes.count()))
    if len(places) > _MAX_CHUNKS:
        wanted = f"{reading.problem}\n{question}"
        places = await best_chunks(wanted, reading.passes.looked_through(), _MAX_CHUNKS)

    def prompt(shown: str, memory: str) -> tuple[Message, ...]:
        return reading.prompts.fill(
            "again", problem=reading.problem, chunk=shown, memory=memory, question=question
        )

    read = partial(reading.update, read_reply=read_gated, ask=prompt)
    return in_turn(reading, reading.passes.again(places), memory, read)


WORKFLOW = Workflow(
    reread, PROMPTS, templates=True, screens=True, keeps_memory=True, options=(Rounds, Lookahead)
)
