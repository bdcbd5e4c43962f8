"""An engine made of a function, to stand for a model that does something of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from memagent import Completion, Engine, Message, Model, Sampling
from memagent.engines.scripted import count_words


class FunctionEngine:
    """Replies what a function makes of the last message: a text or a completion; the function may be async.

    Where it returns None, the engine `behind` completes the chat. `known` are fields of the model in place of
    those of the engine behind, or of one whose tokens are words. `prompts` and `samplings` keep the calls in
    the order in which they began; `busy` is how many there are now, `busiest` how many there were at most.
    """

    def __init__(self, reply: Callable[[str], Any], behind: Engine | None = None, **known: Any) -> None:
        self.reply, self.behind = reply, behind
        self.model = replace(behind.model if behind else Model("function", count_words, "words"), **known)
        self.prompts, self.samplings = list[str](), list[Sampling]()
        self.busy = self.busiest = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete as the function says."""
        self.prompts.append(messages[-1].content)
        self.samplings.append(sampling)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            reply = self.reply(messages[-1].content)
            reply = await reply if isawaitable(reply) else reply
            if reply is None and self.behind:
                reply = await self.behind.complete(messages, sampling)
        finally:
            self.busy -= 1
        return reply if isinstance(reply, Completion) else Completion(reply)

    async def aclose(self) -> None:
        """Nothing to release."""


class HeldEngine(FunctionEngine):
    """Passes `free` calls on to the engine behind, and holds later ones until `go` is set."""

    def __init__(self, behind: Engine, free: float = math.inf) -> None:
        super().__init__(self.hold, behind)
        self.free, self.paid = free, 0
        self.held, self.go = asyncio.Event(), asyncio.Event()

    async def hold(self, _: str) -> None:
        if self.paid >= self.free:
            self.held.set()
            await self.go.wait()
        self.paid += 1
