"""How far a read has come, and what it has cost: one value, which every caller shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memagent.reading.sources import Statement
from memagent.settings import ReadSettings
from memagent.types import Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a read has come to so far.

    `chunks` and `document_tokens` count what was cut from the document; `fraction` is about how much of it
    that is, from 0 to 1, or None if it cannot be known. `calls` counts conversations, `recalled` those of
    them that a resumed journal had, `cut` replies that ended at their token budget, `refused` passages of
    replies that the document does not hold. Token counts are the engine's. `cost` is None without prices.
    `seconds` is the time since this process began the read. `statements` are those of the memory with their
    sources, if the settings ask for them.
    """

    chunks: int = 0
    document_tokens: int = 0
    fraction: float | None = None
    calls: int = 0
    recalled: int = 0
    cut: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    seconds: float = 0.0
    seconds_left: float | None = None
    tokens_per_second: float = 0.0
    memory: str = ""
    statements: tuple[Statement, ...] = ()
    done: bool = False

    @property
    def chunks_in_all(self) -> int | None:
        """About how many chunks the document has."""
        return max(self.chunks, round(self.chunks / self.fraction)) if self.fraction else None


@dataclass(slots=True)
class Meter:
    """Keeps the `Progress` of a read."""

    settings: ReadSettings
    progress: Progress = Progress()
    _fresh_tokens: int = 0
    _fraction_recalled: float = 0.0

    def chunk(self, tokens: int, fraction: float | None) -> None:
        """A chunk was cut; `fraction` of the document is behind it."""
        now = self.progress
        self.progress = replace(
            now, chunks=now.chunks + 1, document_tokens=now.document_tokens + tokens, fraction=fraction
        )

    def conversation(
        self,
        conversation: Conversation,
        recalled: int,
        seconds: float,
        statements: tuple[Statement, ...] = (),
    ) -> None:
        """A conversation was finished; so many replies came from the record so far."""
        usage, now = conversation.completion.usage, self.progress
        if recalled > now.recalled:
            self._fraction_recalled = now.fraction or 0.0
        else:
            self._fresh_tokens += usage.prompt_tokens + usage.completion_tokens
        read = (now.fraction or 0.0) - self._fraction_recalled  # in this process
        left = seconds / read * (1 - (now.fraction or 0.0)) if now.fraction and read > 0 else None
        done = conversation.kind == "answer"
        cost = self.settings.cost(usage)
        self.progress = replace(
            now,
            calls=now.calls + 1,
            recalled=recalled,
            cut=now.cut + (conversation.completion.finish_reason == "length"),
            refused=now.refused + conversation.refused,
            prompt_tokens=now.prompt_tokens + usage.prompt_tokens,
            cached_tokens=now.cached_tokens + usage.cached_tokens,
            completion_tokens=now.completion_tokens + usage.completion_tokens,
            cost=None if cost is None else (now.cost or 0.0) + cost,
            seconds=seconds,
            seconds_left=0.0 if done else left,
            tokens_per_second=self._fresh_tokens / seconds if seconds else 0.0,
            memory=conversation.memory,
            statements=statements,
            done=done,
        )
