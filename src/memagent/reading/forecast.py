"""What a read would come to at most: its workflow, run against an engine that counts and asks no model."""

from __future__ import annotations

import asyncio

from memagent.documents.opening import Document
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.settings import ReadSettings
from memagent.types import Completion, Message, Model, Sampling, Usage


class _CountingEngine:
    """Answers every prompt with as many tokens as it may have, which is the dearest that can happen."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        texts = [message.content for message in messages]
        prompt = await asyncio.to_thread(lambda: sum(map(self.model.count_tokens, texts)))
        reply = " word" * sampling.max_tokens
        return Completion(reply, usage=Usage(prompt, sampling.max_tokens))

    async def aclose(self) -> None:
        """Nothing is held."""


async def forecast(problem: str, document: Document, model: Model, settings: ReadSettings) -> Progress:
    """What the read comes to at most.

    Raises what the read raises before its first call: `SettingsError` and `DocumentError`.
    """
    read = Read(problem, document, _CountingEngine(model), settings.changed(max_calls=None))
    async for _ in read:
        pass
    return read.progress
