"""A memory of verbatim excerpts with their places, each checked against the chunk before it is kept.

At each chunk, the model says what to keep of it and which excerpts to promote or drop. It writes none of the
memory itself, so nothing in it is invented, distorted or forged. The answer names the excerpts that it rests
on, so its sources need no search. The idea of a memory of evidence copied from the text is not ours (COEM;
EMBER, arXiv 2606.05894); this form of it is.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import dataclass, field

from memagent.prompts import SECTIONS, UNCHANGED, Prompts, sections
from memagent.prompts.thoughts import without_thought
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.excerpts import ADD, DROP, PROMOTE, Excerpt, edit, excerpts_of, fit, memory_of
from memagent.reading.quotes import says
from memagent.reading.replies import Verdict
from memagent.reading.sources import Source, Statement, narrow, statements_of
from memagent.reading.workflow import Workflow, in_turn
from memagent.types import Chunk, Conversation

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

_MARK = r"\[E\d{1,9}(?:, ?E\d{1,9})*\]"
_MARKS = re.compile(rf"\s*{_MARK}(?:\s*{_MARK})*")
_MISPLACED = re.compile(rf"([.!?…。！？]+[\"”’»)]*)(\s*{_MARK}(?:\s*{_MARK})*)")


async def evidence(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks, keeping excerpts of them, then answer from the excerpts alone.

    Raises `SettingsError` for a memory that holds anything else.
    """
    excerpts_of(memory)

    def read(chunk: Chunk, memory: str) -> Conversations:
        async def read_reply(reply: str, memory: str, prompts: Prompts) -> Verdict:
            text = prompts.restore(without_thought(reply))
            return await asyncio.to_thread(verdict, text, memory)

        def verdict(reply: str, memory: str) -> Verdict:
            excerpts, refused = edit(excerpts_of(memory), reply, chunk)
            fitting = fit(excerpts, reading.fits_memory)
            given_up = len(excerpts) - len(fitting)
            return Verdict("replace", memory_of(fitting), refused=refused, given_up=given_up)

        return reading.update(chunk, memory, read_reply)

    async with aclosing(in_turn(reading, chunks, memory, read)) as turns:
        async for updates in turns:
            for update in updates:
                memory = update.memory
                yield update
    async for answer in reading.conclude(memory):
        yield answer


@dataclass(slots=True)
class Citations:
    """The sources of a memory of excerpts, which holds them itself, and of an answer that names them."""

    _excerpts: list[Excerpt] = field(default_factory=list)

    def chunk(self, chunk: Chunk) -> None:
        """A chunk is about to be read; nothing to do, since the memory itself holds the places."""

    def update(self, conversation: Conversation) -> None:
        """The memory was written."""
        self._excerpts = excerpts_of(conversation.memory)

    @property
    def memory(self) -> tuple[Statement, ...]:
        """The excerpts of the memory as it is now."""
        return tuple(Statement(it.source.excerpt, it.source) for it in self._excerpts)

    def answer(self, answer: str) -> tuple[Statement, ...]:
        """The statements of an answer, each with an excerpt that says it; those it names are tried first."""
        found = dict[str, Statement]()
        for text in statements_of(_MISPLACED.sub(r"\2\1", answer)):
            said = self._without_marks(text)
            sources = (*self._find_named(text), *(it.source for it in self._excerpts))
            source = next((it for it in sources if says(it.excerpt, said)), None)
            if said:
                found.setdefault(said, Statement(said, narrow(source, said) if source else None))
        return tuple(found.values()) or tuple(Statement(it.excerpt, it) for it in self._find_named(answer))

    def bare(self, answer: str) -> str:
        """The answer without the numbers of excerpts; the excerpts themselves if it is nothing else."""
        bare = self._without_marks(answer)
        if re.search(r"\w", bare):
            return bare
        return "\n".join(it.excerpt for it in self._find_named(answer)) or answer

    def _find_named(self, text: str) -> list[Source]:
        """The sources that the marks in a text name, each once."""
        places = [place for mark in _MARKS.findall(text) for place in self._places(mark) or ()]
        return [self._excerpts[place].source for place in dict.fromkeys(places)]

    def _without_marks(self, text: str) -> str:
        return _MARKS.sub(lambda it: it.group() if self._places(it.group()) is None else "", text).strip()

    def _places(self, marks: str) -> list[int] | None:
        """The excerpts that marks name; None if one does not exist, or the marks are the document's own."""
        places = [int(it) - 1 for it in re.findall(r"\d+", marks)]
        own = any(marks.strip() in it.source.excerpt for it in self._excerpts)
        return None if own or not all(0 <= it < len(self._excerpts) for it in places) else places


WORKFLOW = Workflow(evidence, PROMPTS, templates=True, screens=True, keeps_memory=True, provenance=Citations)
