"""What a read would take at most: its workflow, run with an engine that counts and calls no model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from memagent.documents.opening import Document
from memagent.documents.tokens import shorten
from memagent.reading.excerpts import Excerpt, memory_of
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.reading.sources import Source
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.types import Completion, Message, Model, Sampling, Usage

_DIGITS = [f" {symbol}" for symbol in "#$%&+=@^;!"]  # no words; a token each, for most tokenizers


class _CountingEngine:
    """Answers every prompt with as many tokens as allowed, which is the most expensive case.

    No two replies are alike, so each counts as a new note.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._calls = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        prompt_tokens = await asyncio.to_thread(self.model.most_prompt_tokens, messages)
        self._calls += 1
        reply = await asyncio.to_thread(self._reply, self._calls, sampling.max_tokens)
        return Completion(reply, usage=Usage(prompt_tokens, sampling.max_tokens))

    def _reply(self, number: int, tokens: int) -> str:
        """The reply with this number: its digits, the lowest first, filled up with zeros."""
        digits = "".join(_DIGITS[int(digit)] for digit in reversed(str(number)))
        return shorten(digits + _DIGITS[0] * tokens, tokens, self.model.count_tokens)

    async def aclose(self) -> None:
        """There is nothing to close."""


def begin_forecast(problem: str, document: Document, model: Model, settings: ReadSettings) -> Read:
    """A read that calls no model: its progress says what the read takes at most, as `forecast` says. Blocks.

    Raises `SettingsError` as a read does.
    """
    settings = settings.changed(max_calls=None, screen=False, lookahead=1)
    memory = _memory_at_first(model, settings)
    return Read(problem, document, _CountingEngine(model), settings, memory=memory, asks=False)


async def forecast(
    problem: str,
    document: Document,
    model: Model,
    settings: ReadSettings,
    on_call: Callable[[Usage], None] = lambda _usage: None,
) -> Progress:
    """What the read takes at most, as a rule: with full memory and replies.

    Not counted are calls that fail, those that an endpoint refuses as too long, questions about a reply that
    is no memory, and with `lookahead` what is asked in vain. `on_call` is called with the usage of each call.

    Raises what the read raises before its first call: `SettingsError` and `DocumentError`.
    """
    read = await asyncio.to_thread(begin_forecast, problem, document, model, settings)
    async for conversation in read:
        on_call(conversation.completion.usage)
    return read.progress


def _memory_at_first(model: Model, settings: ReadSettings) -> str:
    """A memory to start from: a full one, if it holds passages of the document, which no reply is."""
    _, workflow = choose_workflow(settings, model.trained)
    if not workflow.provenance:
        return ""
    tokens = workflow.budgets(settings, model).memory_tokens
    return _memory_with(
        shorten(_DIGITS[0] * tokens, tokens, lambda text: model.count_tokens(_memory_with(text)))
    )


def _memory_with(passage: str) -> str:
    return memory_of([Excerpt(Source("", None, 0, len(passage), passage))])
