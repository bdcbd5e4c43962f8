"""What a read would take at most: its workflow, run with an engine that counts and calls no model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from string import ascii_lowercase
from typing import Self

from memagent.documents.opening import Document
from memagent.documents.tokens import shorten
from memagent.prompts import UNCHANGED
from memagent.reading.progress import Meter, Progress
from memagent.reading.read import Read
from memagent.reading.turns import most_at_once
from memagent.reading.workflows import chosen_workflow
from memagent.settings import ReadSettings
from memagent.types import Completion, Conversation, Message, Model, Sampling, Usage

_LETTERS = [f" {letter}" for letter in ascii_lowercase]  # a token each, for most tokenizers
_IDEOGRAPHS = [chr(0x4E00 + number) for number in range(26)]  # a token each by the estimate


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that some reads take, together; the cost is None without prices."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None

    @classmethod
    def of(cls, read: Progress, count: int = 1) -> Self:
        """The bound for `count` reads that each take as much as `read`."""
        return cls(
            calls=count * read.calls,
            prompt_tokens=count * read.prompt_tokens,
            completion_tokens=count * read.completion_tokens,
            cost=None if read.cost is None else count * read.cost,
        )

    def __add__(self, other: Bound) -> Bound:
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Bound(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=sum(costs) if costs else None,
        )


class _CountingEngine:
    """Answers every prompt with as many tokens as allowed, which is the most expensive case.

    Each reply contradicts itself, so each one over a memory has to be asked about. No two replies are alike,
    so each counts as a new note. `unfilled_tokens` are added to each prompt, for a workflow whose memory
    these replies do not fill.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.unfilled_tokens = 0
        self._letters = _LETTERS if model.count_tokens("".join(_LETTERS)) >= len(_LETTERS) else _IDEOGRAPHS
        self._calls = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        prompt_tokens = await asyncio.to_thread(self.model.most_prompt_tokens, messages)
        self._calls += 1
        reply = await asyncio.to_thread(self._reply, self._calls, sampling.max_tokens)
        return Completion(reply, usage=Usage(prompt_tokens + self.unfilled_tokens, sampling.max_tokens))

    def _reply(self, number: int, tokens: int) -> str:
        """The reply with this number: its digits are letters, the lowest first, filled up with zeros."""
        count_tokens, digits = self.model.count_tokens, f"{UNCHANGED}\n"
        while number:
            number, digit = divmod(number, len(self._letters))
            digits += self._letters[digit]
        return shorten(digits + self._letters[0] * (tokens - count_tokens(digits)), tokens, count_tokens)

    async def aclose(self) -> None:
        """There is nothing to close."""


async def forecast(
    problem: str,
    document: Document,
    model: Model,
    settings: ReadSettings,
    on_call: Callable[[Usage], None] = lambda _usage: None,
) -> tuple[Progress, Progress]:
    """What the read takes with full memory and replies: at the very most, and as a rule.

    The first includes a question about each doubtful reply and, with `lookahead`, as many replies in vain as
    there are others; the second neither. Both leave out calls that fail and those that an endpoint
    refuses as too long. `on_call` is called with the usage of each call of the second.

    Raises what the read raises before its first call: `SettingsError` and `DocumentError`.
    """
    engine = await asyncio.to_thread(_CountingEngine, model)
    _, workflow = chosen_workflow(settings, model.trained)
    read = Read(problem, document, engine, settings.changed(max_calls=None, screen=False, lookahead=1))
    if workflow.provenance:  # its memory holds passages of the document, not replies
        engine.unfilled_tokens = (await asyncio.to_thread(lambda: read.budgets)).memory_tokens
    check = workflow.prompts.check.partition("{")[0]
    usual, in_vain = Meter(settings), Meter(settings)
    ahead = workflow.looks_ahead and most_at_once(settings, model) > 1
    before: Conversation | None = None
    async for conversation in read:
        if ahead and conversation.span:
            in_vain.conversation(conversation)
        told_again = before and conversation.span and _place(conversation) == _place(before)
        merge = conversation.kind == "update" and conversation.span is None
        if not (told_again or (merge and check and conversation.messages[-1].content.startswith(check))):
            usual.conversation(conversation)
            on_call(conversation.completion.usage)
        before = conversation
    most = Bound.of(read.progress) + Bound.of(in_vain.progress)
    return replace(read.progress, **asdict(most)), usual.progress


def _place(update: Conversation) -> tuple[int | None, tuple[int, int] | None]:
    return update.chunk_index, update.span
