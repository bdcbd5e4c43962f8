"""The longest chain of calls that had to wait for each other."""

from __future__ import annotations

import asyncio

import pytest

from function_engine import FunctionEngine
from memagent import Read, ReadSettings, text_document
from memagent.concurrency import drain

TEXT = "\n\n".join(" ".join(f"w{chunk}x{word}" for word in range(24)) for chunk in range(6))


def in_waves(*waves: int) -> FunctionEngine:
    """An engine that completes no call before so many are in flight as the next wave has."""
    remaining, turns = list(waves), list[asyncio.Event]()

    async def complete(prompt: str) -> str:
        turns.append(turn := asyncio.Event())
        if len(turns) == remaining[0]:
            remaining.pop(0)
            while turns:
                turns.pop().set()
        await turn.wait()
        return "MEMORY\na note" if "MEMORY" in prompt else "answer"

    return FunctionEngine(complete, calls=max(waves))


@pytest.mark.parametrize(
    ("workflow", "waves"),
    [
        ("gated", (1,) * 7),
        ("map_reduce", (6, 1)),
        ("map_reduce", (3, 3, 1)),
        ("map_reduce", (1,) * 7),
    ],
)
def test_calls_that_wait_for_each_other_are_the_critical_path(workflow: str, waves: tuple[int, ...]) -> None:
    settings = ReadSettings(workflow=workflow, chunk_tokens=30, memory_tokens=40, answer_tokens=40)

    async def read() -> Read:
        reading = Read("What?", text_document(TEXT), in_waves(*waves), settings)
        await drain(aiter(reading))
        return reading

    result = asyncio.run(read()).result
    assert (result.spent.calls, result.critical_path) == (7, len(waves))
