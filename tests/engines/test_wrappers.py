"""What wraps an engine passes on what it does not change, however deep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from function_engine import FunctionEngine
from memagent import Completion, Engine, Message, ReadSettings, Sampling, SpendingLimitError, Usage
from memagent.engines.forwarding import Forwarded
from memagent.engines.wrappers import (
    Again,
    CallLimit,
    CriticalPath,
    Judged,
    Spending,
    SpendingLimit,
    forwards,
)

MESSAGES = (Message("user", "What?"),)


class Stubborn(FunctionEngine):
    """Has a reply that it can use at the fifth try, and forwards."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "yes")
        self.tries = 0

    async def complete_while(
        self, messages: tuple[Message, ...], sampling: Sampling, again: Again
    ) -> Completion:
        for _ in range(5):
            self.tries += 1
            if not again(Usage(20, 10)):
                break
        return await self.complete(messages, sampling)

    @asynccontextmanager
    async def forward(self, body: Mapping[str, Any]) -> AsyncIterator[Forwarded]:
        yield Forwarded(str(body["model"]), _nothing())


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


@pytest.mark.parametrize(("max_tokens", "tries"), [(120, 2), (10_000, 5)])
def test_a_budget_ends_the_tries_of_an_engine(max_tokens: int, tries: int) -> None:
    engine = Stubborn()
    limited = SpendingLimit(engine, Spending(ReadSettings(), max_tokens=max_tokens))
    asyncio.run(limited.complete(MESSAGES, Sampling(10)))
    assert engine.tries == tries


def test_a_wrapped_engine_forwards_if_it_did() -> None:
    wrapped = CriticalPath(CallLimit(Stubborn(), 1))

    async def media_type() -> str:
        async with wrapped.forward({"model": "mine"}) as forwarded:
            return forwarded.media_type

    assert forwards(wrapped) and asyncio.run(media_type()) == "mine"
    assert not forwards(CriticalPath(FunctionEngine(lambda prompt: "yes")))


def test_a_judge_gives_the_verdicts_and_costs_nothing() -> None:
    usage = Usage(20, 1)
    main = FunctionEngine(lambda prompt: Completion("an answer", usage=usage), window_tokens=512)
    judge = FunctionEngine(
        lambda prompt: Completion("Yes", usage=usage, alternatives={"Yes": -0.1}), judges="lora"
    )
    opened: list[Engine] = []

    async def open_judge() -> Engine:
        opened.append(judge)
        await asyncio.sleep(0)
        return judge

    judged = Judged(main, "lora", open_judge)
    answer = asyncio.run(judged.complete(MESSAGES, Sampling(9)))
    assert not opened, "no verdict was asked for"

    async def verdicts() -> list[Completion]:
        first, *others = (
            asyncio.ensure_future(judged.complete(MESSAGES, Sampling(1, verdict=True))) for _ in range(4)
        )
        await asyncio.sleep(0)
        first.cancel()
        return await asyncio.gather(*others)

    verdict, *_ = asyncio.run(verdicts())
    assert len(opened) == 1
    assert (verdict.text, verdict.alternatives, verdict.usage) == ("Yes", {"Yes": -0.1}, Usage())
    assert (answer.text, answer.usage) == ("an answer", usage)
    assert (judged.model.judges, judged.model.window_tokens) == ("lora", 512)
    assert (len(main.prompts), len(judge.prompts)) == (1, 3)


def test_verdicts_of_a_judge_do_not_count_against_a_budget() -> None:
    main = FunctionEngine(lambda prompt: Completion("an answer", usage=Usage(20, 1)))
    judge = FunctionEngine(lambda prompt: Completion("Yes", usage=Usage(20, 1)))

    async def open_judge() -> Engine:
        return judge

    limited = Spending(ReadSettings(), max_tokens=100).limit(Judged(main, "lora", open_judge))
    for _ in range(10):
        asyncio.run(limited.complete(MESSAGES, Sampling(1, verdict=True)))
    asyncio.run(limited.complete(MESSAGES, Sampling(9)))
    asyncio.run(limited.complete(MESSAGES, Sampling(9)))
    with pytest.raises(SpendingLimitError, match="42 tokens have been spent"):
        asyncio.run(limited.complete(MESSAGES, Sampling(9)))
