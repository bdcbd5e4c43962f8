"""The progress, cost and result of a read, as values for every caller to show."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memagent.documents.opening import Document
from memagent.reading.sources import Statement
from memagent.settings import ReadSettings
from memagent.types import NOTHING_SPENT, Chunk, Completion, Conversation, Spent, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a read so far.

    `chunks` and `document_tokens` count the chunks whose turn has come; `fraction` is about how much of the
    document they are, from 0 to 1, or None if unknown; `passed_over` counts those of them that the model was
    not shown (`screen`). `spent` counts all conversations, and the tokens of replies that could not be used;
    `recalled` counts the conversations that came from a resumed journal, `unused` those whose reply was
    discarded (`lookahead`, or on record without a use), `cut` those that ended at their token budget,
    `refused` passages of replies that the document does not hold, `given_up` passages that the memory had no
    room for.
    `critical_path` is the longest chain of calls, each of which began after the one before had ended.
    `seconds` is the time since this process began the read. `statements` are those of the memory with
    their sources, if the settings ask for them.

    Some workflows read chunks again: `passes` counts the passes over the document, and in the latest one,
    `reread` of `to_reread` chunks have had their turn. `seconds_left` then refers to that pass.
    """

    chunks: int = 0
    document_tokens: int = 0
    passed_over: int = 0
    fraction: float | None = None
    passes: int = 1
    reread: int = 0
    to_reread: int = 0
    spent: Spent = NOTHING_SPENT
    recalled: int = 0
    unused: int = 0
    cut: int = 0
    refused: int = 0
    given_up: int = 0
    critical_path: int = 0
    seconds: float = 0.0
    seconds_left: float | None = None
    tokens_per_second: float = 0.0
    memory: str = ""
    statements: tuple[Statement, ...] = ()
    done: bool = False

    @property
    def fraction_of_pass(self) -> float | None:
        """How much of the current pass is done, from 0 to 1; None if unknown."""
        if self.passes == 1:
            return self.fraction
        return self.reread / self.to_reread if self.to_reread else 1.0

    @property
    def chunks_in_all(self) -> int | None:
        """About how many chunks the document has; more than have been read, until all are."""
        if not self.fraction:
            return None
        return max(self.chunks + (self.fraction < 1), round(self.chunks / self.fraction))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a read. The counts are those of `Progress`.

    `found` is false if nothing was noted, or what was noted does not answer the problem; `answer` then says
    so. It is `doubtful` if what it was made from has little of what the problem says, or the document lacks a
    name of it. `chunks` and `document_tokens` are less than the document's if the read `stopped_early`.
    `sources` names the files that were read. `statements` are those of the answer with their sources, if the
    settings ask for them (`cite`) or the workflow keeps sources itself. `table` is what an answer was counted
    from, and how, as JSON, if code counted it.
    """

    answer: str
    memory: str
    problem: str
    workflow: str
    model: str
    chunks: int
    document_tokens: int
    spent: Spent
    cut: int
    seconds: float
    trace: str | None
    stopped_early: bool
    sources: tuple[str, ...]
    statements: tuple[Statement, ...] = ()
    refused: int = 0
    critical_path: int = 0
    passed_over: int = 0
    unused: int = 0
    found: bool = True
    doubtful: bool = False
    given_up: int = 0
    table: Mapping[str, Any] | None = None


class Meter:
    """Keeps the `Progress` of a read, from its chunks and its conversations.

    Chunks may be handed out before their turn; each counts only once a conversation over it has ended.
    """

    def __init__(self, settings: ReadSettings, document: Document, progress: Progress) -> None:
        self.progress = progress
        self._settings, self._document = settings, document
        self._encodings = {source.name: source.encoding for source in document.sources if source.encoding}
        self._handed: deque[tuple[Chunk, bool]] = deque()  # whose turn has not come
        self._bytes_read = self._fresh_tokens = self._reread_recalled = 0
        self._fraction_recalled = self._pass_since = 0.0
        self.start()

    def start(self) -> None:
        """The read begins now."""
        self._started = time.perf_counter()

    def begin_pass(self, chunks: int) -> None:
        """A further pass begins, over this many chunks."""
        self.turn()
        now = self.progress
        self.progress = replace(now, passes=now.passes + 1, reread=0, to_reread=chunks)
        self._pass_since, self._reread_recalled = self._seconds, 0

    def hand_out(self, chunk: Chunk, again: bool) -> None:
        """A chunk is handed out, perhaps `again`."""
        self._handed.append((chunk, again))

    def turn(self, index: int | None = None) -> None:
        """The turn of this chunk has come; without an index, that of all that were handed out."""
        while self._handed and (index is None or self._handed[0][0].index <= index):
            chunk, again = self._handed.popleft()
            if again:
                self.progress = replace(self.progress, reread=self.progress.reread + 1)
            else:
                self._count(chunk)

    def pass_over(self, chunk: Chunk) -> None:
        """A chunk was passed over in its turn."""
        self._count(chunk)
        self.progress = replace(self.progress, passed_over=self.progress.passed_over + 1)

    def take(
        self, conversation: Conversation, recalled: int, critical_path: int, statements: tuple[Statement, ...]
    ) -> None:
        """A conversation was finished; `recalled` replies came from the journal so far."""
        completion, unused = conversation.completion, conversation.unused
        calls = 1 if conversation.messages else 0  # code has counted an answer without any
        now, seconds = self._pay(completion.usage, calls), self._seconds
        if recalled > now.recalled:
            self._fraction_recalled, self._reread_recalled = now.fraction or 0.0, now.reread
        else:
            self._fresh_tokens += completion.usage.tokens
        done = conversation.kind == "answer"
        self.progress = replace(
            now,
            recalled=recalled,
            unused=now.unused + unused,
            cut=now.cut + (completion.finish_reason == "length" and not unused),
            refused=now.refused + (0 if unused else conversation.refused),
            given_up=now.given_up + (0 if unused else conversation.given_up),
            critical_path=critical_path,
            seconds=seconds,
            seconds_left=0.0 if done else self._seconds_left(seconds),
            tokens_per_second=self._fresh_tokens / seconds if seconds else 0.0,
            memory=conversation.memory,
            statements=statements,
            done=done,
        )

    def take_unusable(self, usages: Iterable[Usage]) -> None:
        """Replies were paid for that could not be used."""
        spent = sum((self._settings.price(usage, calls=0) for usage in usages), self.progress.spent)
        self.progress = replace(self.progress, spent=spent)

    def take_unused(self, completion: Completion) -> None:
        """A reply on record was not needed again, but was paid for."""
        self.take_unusable(completion.unusable)
        now = self._pay(completion.usage)
        self.progress = replace(now, recalled=now.recalled + 1, unused=now.unused + 1)

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _pay(self, usage: Usage, calls: int = 1) -> Progress:
        """The progress with one more call."""
        return replace(self.progress, spent=self.progress.spent + self._settings.price(usage, calls))

    def _count(self, chunk: Chunk) -> None:
        now, size = self.progress, self._document.text_bytes
        self._bytes_read += sum(
            len(chunk.text_of(part).encode(self._encodings.get(part.source, "utf-8"), "replace"))
            for part in chunk.parts
        )
        self.progress = replace(
            now,
            chunks=now.chunks + 1,
            document_tokens=now.document_tokens + chunk.tokens,
            fraction=min(1.0, self._bytes_read / size) if size else None,
        )

    def _seconds_left(self, seconds: float) -> float | None:
        """The time that this pass still needs, at its rate in this process so far."""
        now = self.progress
        if now.passes > 1:
            read = now.reread - self._reread_recalled
            left = now.to_reread - now.reread
            return (seconds - self._pass_since) / read * left if read > 0 else None
        fraction = now.fraction or 0.0
        share = fraction - self._fraction_recalled
        return seconds / share * (1 - fraction) if share > 0 else None
