"""A note on every chunk, the passages that it comes from, and a memory of the best of them.

Small models note well if they are asked for a note, and badly if they may also say that there is nothing to
note, or have to rewrite a memory. So this workflow only asks for notes, chunk by chunk and side by side. Code
does the rest: it finds the note's passages in the chunk (`memagent.reading.locating`), and the memory holds
the best of them within its budget, word for word and with their places. A passage is the better, the more of
the note its chunk supports and the more of the problem's words it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from memagent.concurrency import side_by_side
from memagent.prompts.thoughts import without_thought
from memagent.reading.conversations import MAX_IGNORED, Reading
from memagent.reading.excerpts import Excerpt, excerpts_of, memory_of
from memagent.reading.locating import Passage, coverage, locate, paragraphs
from memagent.reading.ranking import Rarity, stems
from memagent.reading.replies import Verdict
from memagent.types import Chunk, Conversation, Message

_LEAST_COVERED = 0.42
"""Below this share of the problem's words in its best passage, the document may not hold the answer."""

_Taken = tuple[Chunk, list[Conversation]]
_FLOOR = 0.05  # what a passage counts that has no word of the problem: its note found it all the same


async def notes(
    reading: Reading, chunks: AsyncIterator[Chunk], memory: str = ""
) -> AsyncGenerator[Conversation, None]:
    """Note on all chunks side by side, keep the best passages, then answer from them alone.

    Raises `SettingsError` for a memory that holds anything but passages.
    """
    kept = Kept(reading, memory)

    def prompt(shown: str, _: str) -> tuple[Message, ...]:
        return reading.prompts.for_note(reading.problem, shown)

    async def take(chunk: Chunk) -> _Taken:
        updates = reading.update(chunk, "", lambda *_: Verdict("keep"), prompt)
        return chunk, [update async for update in updates]

    in_turn = reading.settings.screen
    taken = _in_turn(take, chunks) if in_turn else side_by_side(take, chunks, reading.model.calls)
    async with aclosing(taken):
        async for chunk, updates in taken:
            await asyncio.to_thread(kept.see, chunk)
            for update in updates:
                yield await asyncio.to_thread(kept.take, update, chunk)
    async for answer in reading.conclude(kept.memory, kept.shown, kept.is_doubtful):
        yield answer


async def _in_turn(
    take: Callable[[Chunk], Awaitable[_Taken]], chunks: AsyncIterator[Chunk]
) -> AsyncGenerator[_Taken, None]:
    """As `side_by_side`, but which chunk is next is decided by the memory of all before it."""
    async for chunk in chunks:
        yield await take(chunk)


class Kept:
    """The passages that are kept, within the memory's budget. Its methods block."""

    def __init__(self, reading: Reading, memory: str) -> None:
        self._reading, self._rarity = reading, Rarity()
        self._passages = [Passage(it.source, 1.0) for it in excerpts_of(memory)]
        self.memory = memory

    @property
    def shown(self) -> str:
        """The passages as the model sees them, in the document's order, with their files if several."""
        sources = [it.source for it in self._passages]
        several = len({it.file for it in sources}) > 1
        return "\n".join(
            f"- {f'{it.file}: ' if several else ''}{' '.join(it.excerpt.split())}" for it in sources
        )

    @property
    def is_doubtful(self) -> bool:
        """Whether even the best passage has little of what the problem names."""
        problem = self._reading.problem
        covered = (coverage(problem, it.source.excerpt, self._rarity) for it in self._passages)
        return max(covered, default=0.0) < _LEAST_COVERED

    def see(self, chunk: Chunk) -> None:
        """Count a chunk's words."""
        for start, end in paragraphs(chunk.text):
            self._rarity.see(stems(chunk.text[start:end]))

    def take(self, update: Conversation, chunk: Chunk) -> Conversation:
        """Keep what the note of an update is worth; returns the update with the memory as it is then."""
        before, prompts = self.memory, self._reading.prompts
        note = prompts.restore(without_thought(update.completion.text))
        span = update.span or (chunk.start, chunk.end)
        held = {it.source.excerpt for it in self._passages}
        found = locate(note, self._reading.problem, chunk, span, self._rarity)
        self._passages += (it for it in found if it.source.excerpt not in held)
        self._fit()
        ignored = note[:MAX_IGNORED] if self.memory == before else ""
        return replace(update, memory=self.memory, ignored=ignored)

    def _fit(self) -> None:
        """Give up the worst passages until the rest is within the budget; of equals, the earlier."""
        self.memory = memory_of(Excerpt(it.source) for it in self._passages)
        while self._passages and not self._reading.fits_memory(self.memory):
            self._passages.remove(min(self._passages, key=self._worth))
            self.memory = memory_of(Excerpt(it.source) for it in self._passages)

    def _worth(self, passage: Passage) -> float:
        covered = coverage(self._reading.problem, passage.source.excerpt, self._rarity)
        return passage.support * (covered + _FLOOR)
