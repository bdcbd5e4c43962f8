"""The best finds so far, within the memory's budget, and those of them that an answer is made from.

A find ranks higher the more of the note its chunk supports and the more of the problem's words it has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from memagent.prompts.thoughts import without_thought
from memagent.reading.budgets import NOTED_TOKENS
from memagent.reading.citations import Citations
from memagent.reading.conversations import MAX_IGNORED, Reading
from memagent.reading.excerpts import Excerpt, excerpts_of, memory_of
from memagent.reading.locating import Find, coverage, falls_short, locate
from memagent.reading.ranking import Rarity
from memagent.reading.replies import is_declined
from memagent.reading.workflow import Workflow
from memagent.types import Chunk, Conversation

MAX_SHOWN = 4
"""How many finds the answer is made from, plus any that are as good: with more, small models err."""

_AS_GOOD = 0.7  # of the best one's worth: the question wants many

_SUPPORT_FLOOR = 0.3  # a note may put in other words what the chunk says
_COVERAGE_FLOOR = 0.02  # as may a chunk what the problem asks for


def shown_of(reading: Reading, memory: str) -> str:
    """What the answer is made from if the memory comes from an earlier read. Blocks."""
    return Finds(reading, memory).shown


keep_passages = partial(
    Workflow,
    templates=True,
    screens=True,
    keeps_memory=True,
    chunk_tokens=NOTED_TOKENS,
    provenance=Citations,
    shown=shown_of,
)
"""Makes a workflow whose memory is passages of small chunks, word for word: `auto` goes on as the others."""


class Finds:
    """The finds of a read, within the memory's budget. Its methods block."""

    def __init__(self, reading: Reading, memory: str) -> None:
        self._reading, self.rarity = reading, Rarity()
        self._finds = [Find((excerpt.source,)) for excerpt in excerpts_of(memory)]
        self.memory = memory

    @property
    def shown(self) -> str:
        """The best finds, as the answer is made from them: in the document's order, with their files."""
        worths = [self._worth(find) for find in self._finds]
        ranked = sorted(worths, reverse=True)[:MAX_SHOWN]
        least = min(ranked[-1], _AS_GOOD * ranked[0]) if ranked else 0.0
        best = [find for find, worth in zip(self._finds, worths, strict=True) if worth >= least]
        several = len({source.file for find in best for source in find.sources}) > 1
        lines = [find.text for find in best]
        if several:
            sources = [source for find in best for source in find.sources]
            lines = [f"{source.file}: {' '.join(source.excerpt.split())}" for source in sources]
        return "\n".join(f"- {line}" for line in lines)

    @property
    def is_doubtful(self) -> bool:
        """Whether the finds have too little of what the problem says."""
        return falls_short(self._reading.problem, [find.text for find in self._finds], self.rarity)

    def take(self, update: Conversation, chunk: Chunk) -> Conversation:
        """Keep the passages that an update's note leads to; returns the update with the new memory."""
        before, prompts = self.memory, self._reading.prompts
        reply = prompts.restore(without_thought(update.completion.text))
        note = "" if is_declined(reply) else reply
        span = update.span or (chunk.start, chunk.end)
        find = locate(note, self._reading.problem, chunk, span, self.rarity)
        given_up = 0
        if find and find.text not in {other.text for other in self._finds}:
            self._finds.append(find)
            given_up = self._fit()
        ignored = reply[:MAX_IGNORED] if self.memory == before else ""
        return replace(update, memory=self.memory, ignored=ignored, given_up=given_up)

    def _fit(self) -> int:
        """Drop the worst finds until the rest is within the budget; of equals, the earliest.

        Returns how many passages were dropped.
        """
        given_up = 0
        while self._finds:
            self.memory = memory_of(Excerpt(source) for find in self._finds for source in find.sources)
            if self._reading.fits_memory(self.memory):
                return given_up
            worst = min(self._finds, key=self._worth)
            self._finds.remove(worst)
            given_up += len(worst.sources)
        self.memory = ""
        return given_up

    def _worth(self, find: Find) -> float:
        covered = coverage(self._reading.problem, find.text, self.rarity)
        return (find.support + _SUPPORT_FLOOR) * (covered + _COVERAGE_FLOOR)
