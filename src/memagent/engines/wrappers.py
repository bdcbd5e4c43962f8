"""Engines around an engine: a judge beside it, the chain of its calls, what was lost, limits on its cost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from memagent.engines.forwarding import Forwarded, Forwards
from memagent.errors import CallLimitError, EngineError, SettingsError, SpendingLimitError
from memagent.settings import ReadSettings
from memagent.types import Completion, Engine, Message, Model, Sampling, Spent, Usage

Again = Callable[[Usage | None], bool]
"""Whether to try again after a failure that used this (None: nothing); if so, it counts as spent."""


@runtime_checkable
class Retries(Protocol):
    """An engine that tries again if a reply was paid for but cannot be used."""

    async def complete_while(
        self, messages: tuple[Message, ...], sampling: Sampling, again: Again
    ) -> Completion:
        """As `Engine.complete`, but trying again after such a reply only if `again` allows it."""


class Wrapper:
    """Passes calls on to `engine`, and what it `forwards`; a subclass says what else happens to them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def model(self) -> Model:
        """The model of the wrapped engine."""
        return self.engine.model

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with the wrapped engine."""
        return await self.engine.complete(messages, sampling)

    def forward(self, body: Mapping[str, Any]) -> AbstractAsyncContextManager[Forwarded]:
        """See `Forwards.forward`; only for an engine that `forwards`."""
        return cast(Forwards, self.engine).forward(body)

    async def aclose(self) -> None:
        """Leave the wrapped engine open: whoever opened it closes it."""


def forwards(engine: Engine) -> bool:
    """Whether an engine can pass requests through, however it is wrapped."""
    while isinstance(engine, Wrapper):
        engine = engine.engine
    return isinstance(engine, Forwards)


class Judged(Wrapper):
    """Asks another engine, the judge, for verdicts, and the wrapped one for all else.

    The judge is opened once, for the first verdict; `judges` is what its model will say. What it reads is not
    counted as spent: it runs on this machine.
    """

    def __init__(self, engine: Engine, judges: str, open_judge: Callable[[], Awaitable[Engine]]) -> None:
        super().__init__(engine)
        self.judges, self.open_judge = judges, open_judge
        self._judge: asyncio.Future[Engine] | None = None

    @property
    def model(self) -> Model:
        """The model of the wrapped engine, with the judge's verdicts."""
        return replace(self.engine.model, judges=self.judges)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with the judge or the wrapped engine."""
        if not sampling.verdict:
            return await self.engine.complete(messages, sampling)
        if self._judge is None:
            self._judge = asyncio.ensure_future(self.open_judge())
        judge = await asyncio.shield(self._judge)  # who is cancelled leaves it to the others
        return replace(await judge.complete(messages, sampling), usage=Usage())


class CriticalPath(Wrapper):
    """Measures the longest chain of calls that had to wait for each other.

    Each call of a chain began after the one before it had ended. So sequential calls all count; of
    concurrent calls, only one does.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.longest = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with the wrapped engine. A call that fails does not count."""
        length = self.longest + 1  # it extends the longest chain that has ended
        completion = await self.engine.complete(messages, sampling)
        self.longest = max(self.longest, length)
        return completion


class Losses(Wrapper):
    """Reports replies that were paid for but could not be used to `pay`."""

    def __init__(self, engine: Engine, pay: Callable[[Sequence[Usage]], None]) -> None:
        super().__init__(engine)
        self._pay = pay

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with the wrapped engine."""
        try:
            completion = await self.engine.complete(messages, sampling)
        except EngineError as error:
            self._pay(error.paid)
            raise
        self._pay(completion.unusable)
        return completion


class CallLimit(Wrapper):
    """Passes the first `calls` calls on; the next one raises `CallLimitError`."""

    def __init__(self, engine: Engine, calls: int) -> None:
        super().__init__(engine)
        self.calls = self.left = calls

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, while calls are left."""
        if self.left == 0:
            calls = (
                "one call of `max_calls` is" if self.calls == 1 else f"{self.calls} calls of `max_calls` are"
            )
            raise CallLimitError(f"the {calls} used up")
        self.left -= 1
        return await self.engine.complete(messages, sampling)


@dataclass(frozen=True, slots=True)
class Spending:
    """The most that a run may spend: prompt and completion tokens together, and money at the user's prices.

    Raises `SettingsError` for a limit that is not above 0, and for a cost limit without prices.
    """

    prices: ReadSettings
    max_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_tokens", self.max_tokens), ("max_cost", self.max_cost)):
            if value is not None and not value > 0:
                raise SettingsError(f"`{name}` is {value}: it must be above 0")
        if self.max_cost is not None and self.prices.cost(Usage()) is None:
            raise SettingsError(
                f"`max_cost` is {self.max_cost:g}, but nothing has a price: "
                "set `prompt_price` and `completion_price`"
            )

    def limit(self, engine: Engine) -> Engine:
        """The engine, wrapped in these limits if any are set. What a judge reads counts against none."""
        if self.max_tokens is None and self.max_cost is None:
            return engine
        if isinstance(engine, Judged):
            return Judged(SpendingLimit(engine.engine, self), engine.judges, engine.open_judge)
        return SpendingLimit(engine, self)

    def find_limit(self, spent: Spent) -> str:
        """Find the limit that this total would exceed; "" for none."""
        if self.max_tokens is not None and spent.tokens > self.max_tokens:
            return f"`max_tokens` {self.max_tokens}"
        if self.max_cost is not None and (spent.cost or 0.0) > self.max_cost:
            return f"`max_cost` {self.max_cost:g}"
        return ""


class SpendingLimit(Wrapper):
    """Passes calls on while the prompt and the longest possible reply fit into what is left.

    A call that does not fit waits for those in flight, which may use less than was set aside for them; if
    none are in flight, it raises `SpendingLimitError`. Prompts are counted by the engine's model, so the
    limit is as exact as its count. If an endpoint reports no usage, all that was set aside counts as spent.
    A reply that cannot be used counts as well; there is another try only if that fits too.
    """

    def __init__(self, engine: Engine, limits: Spending) -> None:
        super().__init__(engine)
        self.limits = limits
        self._spent = Spent()
        self._in_flight: list[Spent] = []  # what is set aside for each call
        self._ended = asyncio.Condition()

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, while there is room."""
        prompt_tokens = await asyncio.to_thread(self.model.most_prompt_tokens, messages)
        most = self.limits.prices.price(Usage(prompt_tokens, sampling.max_tokens))
        async with self._ended:
            while over := self._find_limit(most):
                if not self._in_flight:
                    raise SpendingLimitError(
                        f"{over} leaves no room for a call of up to {most.prompt_tokens:,} + "
                        f"{most.completion_tokens:,} tokens: {self._spent.tokens:,} tokens have been spent"
                    )
                await self._ended.wait()
            self._in_flight.append(most)
        spent: Usage | None = None
        try:
            if isinstance(self.engine, Retries):
                again = partial(self._has_room, most)
                completion = await self.engine.complete_while(messages, sampling, again)
            else:
                completion = await self.engine.complete(messages, sampling)
            spent = completion.usage
        except EngineError as error:
            spent = error.usage
            raise
        finally:
            self._in_flight.remove(most)
            self._spent += self._count(spent, most)
            async with self._ended:
                self._ended.notify_all()
        return completion

    def _has_room(self, most: Spent, usage: Usage | None) -> bool:
        """Whether there is room for another try; if so, what the last one used counts as spent."""
        spent = self._count(usage, most)
        if self._find_limit(spent):
            return False
        self._spent += spent
        return True

    def _find_limit(self, more: Spent) -> str:
        """Find the limit that would be exceeded with `more`, counting what is set aside."""
        return self.limits.find_limit(sum(self._in_flight, self._spent + more))

    def _count(self, usage: Usage | None, most: Spent) -> Spent:
        """What a call has spent: nothing without a reply, and `most` if the engine did not count it."""
        if usage is None:
            return Spent()
        return self.limits.prices.price(usage) if usage.prompt_tokens and not usage.estimated else most
