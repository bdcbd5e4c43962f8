"""Several memories, all of them shown, of which a chunk rewrites only the least recently updated.

After MHM-LRU (arXiv 2607.01523): what the other memories hold cannot be lost in an update. This form is our
own: as in `gated`, a reply may leave the memory unchanged; that is not an update, so the turn does not pass
on. To people, journals and the model, the memories are one text, each part under its own heading; the next
one to be rewritten is marked, so that a read can start from the text.
"""

from __future__ import annotations

import re
from collections.abc import Set
from contextlib import aclosing
from dataclasses import dataclass, replace

from pydantic import Field

from memagent.errors import SettingsError
from memagent.prompts import ANSWER, MEMORY, NOTE, OPENING, SECTIONS, UNCHANGED, Prompts
from memagent.prompts.thoughts import without_thought
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.replies import MemoryChange, read_gated
from memagent.reading.workflow import Lookahead, Workflow, in_turn
from memagent.settings import Options, Positive
from memagent.types import Chunk, Message

PROMPTS = Prompts(
    update=OPENING
    + f"""\
The memory has several parts. You rewrite the one that is marked next; the others stay as they are.

If the chunk gives nothing that helps to solve the problem, or nothing that the memory lacks, reply with the \
one word {UNCHANGED}. Otherwise write the word {MEMORY} on the first line, alone, and below it the part \
marked next anew, without the other parts: keep what it already holds for the problem, add what the chunk \
gives, and copy names, numbers and quotations exactly.
"""
    + SECTIONS
    + f"{UNCHANGED}, or {MEMORY} and the part marked next anew:\n",
    answer=ANSWER,
    workflow="heads",
    replies="marked",
    own={"note": NOTE},
)
"""The parts of the memory stand together in its place."""

_HEADING = re.compile(r"^\[part (\d{1,9}) of (\d{1,9})(, next)?\][ \t]*$", re.MULTILINE)
_LIKE_ONE = r"·*\s*part\s*\d+\s*of\s*\d+[^\n\]]*\]"
_FORGED = re.compile(rf"^([ \t]*)\[(?={_LIKE_ONE})", re.IGNORECASE | re.MULTILINE)
_MARKED = re.compile(rf"^([ \t]*)\[·(?={_LIKE_ONE})", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Heads:
    """The parts of a memory, and the place of the one that is rewritten next."""

    parts: tuple[str, ...]
    next: int = 0

    @classmethod
    def of(cls, memory: str, count: int) -> Heads:
        """The parts of a memory, filled up to `count`; a text without parts becomes the first of them.

        Raises `SettingsError` for a memory with more parts.
        """
        before, divided = _divide(memory)
        total = len(divided)
        numbers = [(str(number), str(total)) for number in range(1, total + 1)]
        if before or not divided or [heading.group(1, 2) for heading, _ in divided] != numbers:
            return cls((memory, *[""] * (count - 1)), 1 % count if memory else 0)
        if total > count:
            raise SettingsError(f"the memory has {total} parts, heads is {count}: set `heads` to {total}")
        marked = next((index for index, (heading, _) in enumerate(divided) if heading[3]), 0)
        parts = (*(text for _, text in divided), *[""] * (count - total))
        return cls(parts, marked if total == count else total)  # new parts go first

    def rewrite(self, part: str) -> Heads:
        """With the next part rewritten, which makes it the most recently updated."""
        parts = (*self.parts[: self.next], part, *self.parts[self.next + 1 :])
        return Heads(parts, (self.next + 1) % len(parts))

    def text(self, empty: str = "") -> str:
        """All parts as one text, or an empty string if all are empty; `empty` stands in each empty part."""
        return self._join(empty) if any(self.parts) else ""

    def shown(self, part: str, empty: str) -> str:
        """The text that the model sees with `part` in the place of the next one."""
        return replace(self, parts=self.rewrite(part).parts)._join(empty)

    def _join(self, empty: str) -> str:
        headings = (
            f"[part {number} of {len(self.parts)}{', next' if number == self.next + 1 else ''}]"
            for number in range(1, len(self.parts) + 1)
        )
        texts = (_FORGED.sub(r"\1[·", part) or empty for part in self.parts)
        return "\n\n".join(f"{heading}\n{text}" for heading, text in zip(headings, texts, strict=True))


def _divide(text: str, own: Set[str] | None = None) -> tuple[str, list[tuple[re.Match[str], str]]]:
    """The text before all headings, and each with the text below it; with `own`, all others are text."""
    headings = [match for match in _HEADING.finditer(text) if own is None or match[0].rstrip() in own]
    ends = [*(heading.start() for heading in headings), len(text)]
    texts = [_unmark(text[heading.end() : end]) for heading, end in zip(headings, ends[1:], strict=True)]
    return _unmark(text[: ends[0]]), list(zip(headings, texts, strict=True))


def _unmark(text: str) -> str:
    return _MARKED.sub(r"\1[", text.strip("\n"))


def own_part(reply: str, now: Heads, prompts: Prompts, shown: str = "") -> str:
    """What a reply says of the part to be rewritten, even if the model wrote the other parts as well.

    Other parts are left out only if they are unchanged, so that nothing new is lost. A heading is left out
    unless it may be a quotation: of a part, or of `shown`, the problem and the chunk.
    """
    quotable, count = "\n".join((shown, *now.parts)), len(now.parts)
    headings = (
        f"[part {number} of {count}{mark}]" for number in range(1, count + 1) for mark in ("", ", next")
    )
    own = {heading for heading in headings if heading not in quotable}
    others = {part.strip() for index, part in enumerate(now.parts) if index != now.next}
    others.add(prompts.empty_memory)  # as the model was shown the empty ones
    before, divided = _divide(reply, own)
    texts = (text.strip() for text in (before, *(text for _, text in divided)))
    return "\n".join(text for text in texts if text and prompts.restore(text) not in others)


async def heads(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Read all chunks, rewriting at each the least recently updated part, then answer from all parts."""
    count, empty = reading.settings.of(HeadsOptions).heads, reading.prompts.empty_memory

    async def read(chunk: Chunk, memory: str) -> Conversations:
        now = Heads.of(memory, count)
        before = now.parts[now.next]

        def read_reply(reply: str, part: str, prompts: Prompts) -> MemoryChange:
            text = without_thought(reply)
            own = own_part(text, now, prompts, f"{reading.problem}\n{chunk.shown}")
            change = read_gated(own, part, prompts)
            if change.action == "note" and any(item and item in prompts.restore(text) for item in now.parts):
                return MemoryChange("keep")  # it only says again what another part says
            return change

        def prompt(shown: str, part: str) -> tuple[Message, ...]:
            return reading.prompts.fill(
                "update", problem=reading.problem, chunk=shown, memory=now.shown(part, empty)
            )

        async for update in reading.update(chunk, before, read_reply, prompt):
            after = now if update.memory == before else now.rewrite(update.memory)
            yield replace(update, memory=after.text())

    memory = Heads.of(memory, count).text()
    async with aclosing(in_turn(reading, chunks, memory, read)) as turns:
        async for updates in turns:
            for update in updates:
                memory = update.memory
                yield update
    async for answer in reading.conclude(memory, Heads.of(memory, count).text(empty)):
        yield answer


class HeadsOptions(Options):
    """The memories of `heads`."""

    heads: Positive = Field(
        default=4, description="how many memories the heads workflow keeps, each of memory_tokens"
    )


WORKFLOW = Workflow(
    heads,
    PROMPTS,
    templates=True,
    screens=True,
    keeps_memory=True,
    options=(HeadsOptions, Lookahead),
    memories=lambda settings: settings.of(HeadsOptions).heads,
)
