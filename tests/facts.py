"""The server's reader of facts without HTTP: an engine in this process."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from memagent import (
    Completion,
    Conversation,
    Document,
    Engine,
    Message,
    Model,
    Read,
    ReadSettings,
    Result,
    Sampling,
    Usage,
)
from memagent.documents.opening import text_document
from memagent.documents.tokens import estimate_tokens
from memagent.errors import ContextOverflowError, EngineError
from memagent.reading.workflows import workflows
from server import Reply, complete, count_tokens, read_facts

PROBLEM = "What are all the facts?"
READING = tuple(name for name, workflow in workflows().items() if not workflow.counts)
"""The workflows that answer any question: those that count take replies of another kind."""
SETTINGS = ReadSettings(workflow="gated", chunk_tokens=120, memory_tokens=300, answer_tokens=300)


class FactsEngine:
    """Replies as the server does; keeps its prompts, and counts what it replied to and what it refused.

    It refuses a prompt longer than `window` tokens, and fails after `calls` completions.
    """

    def __init__(
        self, reply: Reply = read_facts, window: int | None = None, calls: int | None = None
    ) -> None:
        self.reply = reply
        self.window = window
        self.calls = calls
        self.prompts: list[str] = []
        self.paid = self.refused = 0
        self.model = Model("FactsEngine", estimate_tokens)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete as the server's model does."""
        self.prompts.append(messages[-1].content)
        tokens = count_tokens(self.prompts[-1])
        if self.window is not None and tokens > self.window:
            self.refused += 1
            raise ContextOverflowError(f"{tokens} tokens, the window has {self.window}")
        if self.paid == self.calls:
            raise EngineError("out of order")
        self.paid += 1
        chat = [{"role": message.role, "content": message.content} for message in messages]
        body = {"model": "facts", "messages": chat, "max_tokens": sampling.max_tokens}
        completion = complete(body, self.reply(chat))
        choice, usage = completion["choices"][0], completion["usage"]
        return Completion(
            choice["message"]["content"],
            choice["finish_reason"],
            usage=Usage(usage["prompt_tokens"], usage["completion_tokens"]),
        )

    async def aclose(self) -> None:
        """Nothing to release."""


def run(
    engine: Engine,
    document: Document | str,
    settings: ReadSettings = SETTINGS,
    trace: Path | None = None,
    *,
    resume: bool = False,
    problem: str = PROBLEM,
) -> tuple[Result, list[Conversation]]:
    """Read to the end. The times are set to 0, so that two reads can be compared."""
    document = text_document(document) if isinstance(document, str) else document
    reading = Read(problem, document, engine, settings, trace=trace, resume=resume)

    async def collect() -> list[Conversation]:
        return [replace(conversation, seconds=0.0) async for conversation in reading]

    conversations = asyncio.run(collect())
    return replace(reading.result, seconds=0.0), conversations


def section(prompt: str, tag: str) -> str:
    """What a prompt shows between the tags of this name; "" if it has none."""
    match = re.search(rf"<({tag}-\w+)>\n(.*?)\n</\1>", prompt, re.DOTALL)
    return match.group(2) if match else ""
