"""The longest chain of calls that had to wait for each other."""

from __future__ import annotations

import asyncio

import pytest

from memagent import Completion, Message, Read, ReadSettings, Sampling, text_document
from memagent.engines.scripted import count_words
from memagent.types import Model

TEXT = "\n\n".join(" ".join(f"w{chunk}x{word}" for word in range(24)) for chunk in range(6))


class InWaves:
    """Completes no call before so many are in flight as the next wave has."""

    def __init__(self, *waves: int) -> None:
        self.model = Model("waves", count_words, "words", calls=max(waves))
        self._waves = list(waves)
        self._waiting: list[asyncio.Future[None]] = []

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if len(self._waiting) == self._waves[0]:
            self._waves.pop(0)
            for waiting in self._waiting:
                waiting.set_result(None)
            self._waiting = []
        await turn
        return Completion("MEMORY\na note" if "MEMORY" in messages[-1].content else "answer")

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    ("workflow", "waves"),
    [
        ("gated", (1,) * 7),
        ("map_reduce", (6, 1)),
        ("map_reduce", (3, 3, 1)),
        ("map_reduce", (1,) * 7),
        ("tree", (2, 2, 2, 1)),
    ],
)
def test_calls_that_wait_for_each_other_are_the_critical_path(workflow: str, waves: tuple[int, ...]) -> None:
    settings = ReadSettings(workflow=workflow, chunk_tokens=30, memory_tokens=40, answer_tokens=40)

    async def read() -> Read:
        made = Read("What?", text_document(TEXT), InWaves(*waves), settings)
        async for _ in made:
            pass
        return made

    result = asyncio.run(read()).result
    assert (result.spent.calls, result.critical_path) == (7, len(waves))
