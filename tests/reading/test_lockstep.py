"""Several reads of one document take turns, so that each chunk is computed once for all of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest

from function_engine import FunctionEngine
from memagent import (
    Completion,
    Conversation,
    Engine,
    EngineError,
    Message,
    Read,
    ReadSettings,
    Sampling,
    text_document,
)
from memagent.reading.lockstep import Seat, Together

DOCUMENT = "\n\n".join(f"Chunk {number} says " + f"word{number} " * 80 for number in range(6))
SETTINGS = ReadSettings(workflow="gated", chunk_tokens=90, memory_tokens=40, answer_tokens=40)
QUESTIONS = ("What is first?", "What is second?", "What is third?", "What is fourth?")


def test_calls_that_a_read_makes_side_by_side_take_their_turn_together() -> None:
    waves: list[int] = []

    async def end_together(_: str) -> str:
        """End a call once no other can begin; keep how many were in flight then."""
        for _ in range(100):
            await asyncio.sleep(0)
        if engine.busy == len(engine.prompts) - sum(waves):
            waves.append(engine.busy)
        return "done"

    engine = FunctionEngine(end_together, calls=8)

    async def both() -> None:
        seats = Together(engine, 2).seats
        texts = [f"{chunk} " * 20 for chunk in ("one", "two", "six", "ten")]
        calls = [seat.complete((Message("user", text + str(number)),), Sampling(8))
                 for number, seat in enumerate(seats) for text in texts]  # fmt: skip
        await asyncio.gather(*calls)

    asyncio.run(both())
    assert waves == [4, 4], "the first of those that begin alike, then the others"


def reply_once(prompt: str) -> str:
    if "<chunk-" not in prompt:
        return "nothing"
    return "MEMORY\nIt says." if "Chunk 0 says" in prompt and "(empty)" in prompt else "UNCHANGED"


def engine_of(reply: Callable[[str], str] = reply_once, calls: int = 1) -> FunctionEngine:
    """An engine that lets others begin a call before it replies."""

    async def complete(prompt: str) -> str:
        await asyncio.sleep(0)
        return reply(prompt)

    return FunctionEngine(complete, calls=calls)


def computed(engine: FunctionEngine) -> int:
    """The characters that a prefix cache of one prompt leaves to compute, where calls follow each other."""
    pairs = pairwise(["", *engine.prompts])
    alike = (takewhile(lambda letters: letters[0] == letters[1], zip(*pair, strict=False)) for pair in pairs)
    return sum(map(len, engine.prompts)) - sum(len(list(prefix)) for prefix in alike)


async def ended(
    seat: Seat, question: str, trace: Path | None = None, resume: bool = False, **settings: Any
) -> tuple[str, list[Conversation]]:
    read = Read(
        question, text_document(DOCUMENT), seat, SETTINGS.replace(**settings), trace=trace, resume=resume
    )
    try:
        return read.answer, [conversation async for conversation in read]
    finally:
        seat.leave()


def together(engine: Engine, *questions: str, **settings: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        seats = Together(engine, len(questions)).seats
        work = (ended(seat, question, **settings) for seat, question in zip(seats, questions, strict=True))
        return await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 60)

    return asyncio.run(all_of_them())


def chunks(engine: FunctionEngine) -> list[str]:
    return [match[1] for prompt in engine.prompts if (match := re.search(r"Chunk (\d+) says", prompt))]


def test_each_chunk_is_computed_once_for_all_questions() -> None:
    one, engine = engine_of(), engine_of()
    together(one, QUESTIONS[0])
    together(engine, *QUESTIONS)
    assert chunks(engine) == [str(number) for number in range(6) for _ in QUESTIONS]
    assert computed(engine) < 2 * computed(one)


def test_the_first_call_ends_before_the_others_begin() -> None:
    engine = engine_of(calls=4)
    together(engine, *QUESTIONS)
    assert engine.busiest == 3, "one warms the cache, three follow side by side"


def test_reads_together_end_as_reads_alone() -> None:
    def note(prompt: str) -> str:
        chunk = re.search(r"Chunk (\d+) says", prompt)
        question = re.search(r"What is (\w+)\?", prompt)
        assert question
        return f"MEMORY\n{question[1]} in {chunk[1]}" if chunk and "MEMORY" in prompt else question[1]

    for workflow in ("gated", "parallel", "rag"):
        alone = [together(engine_of(note), question, workflow=workflow)[0] for question in QUESTIONS]
        for outcome, expected in zip(
            together(engine_of(note), *QUESTIONS, workflow=workflow), alone, strict=True
        ):
            assert [conversation.messages for conversation in outcome[1]] == [
                conversation.messages for conversation in expected[1]
            ]


def test_a_read_that_needs_another_call_is_waited_for() -> None:
    """A question about a reply makes one read fall behind; the others stay with the chunk."""

    def doubt(prompt: str) -> str:
        if "<written-" in prompt:
            return "UNCHANGED"
        if "What is first?" in prompt and "<chunk-" in prompt:
            return "MEMORY\n" + "abcdefgh"[len(chunks(engine)) // 4] * 9
        return reply_once(prompt)

    engine = engine_of(doubt)
    together(engine, *QUESTIONS)
    assert sum("<written-" in prompt for prompt in engine.prompts) > 2
    assert chunks(engine) == sorted(chunks(engine))


@pytest.mark.parametrize(
    ("calls", "likeliest", "order"),
    [
        (1, "14", "140012233455"),
        (1, "04", "040112233455"),
        (4, "14", "140123023455"),
    ],
)
def test_reads_that_begin_with_other_chunks_share_the_rest(calls: int, likeliest: str, order: str) -> None:
    def judge(prompt: str) -> Completion | str:
        return Completion("No", "stop", alternatives={"Yes": -3.0, "No": -0.05})

    engine = FunctionEngine(judge, engine_of(), judges="trained", calls=calls)
    questions = [f"Which chunk says word{number}?" for number in likeliest]
    ended = together(engine, *questions, workflow="select", likeliest_chunks=1, memory_tokens=200)
    assert [len(conversations) for _, conversations in ended] == [6, 6]
    assert "".join(chunks(engine)) == order


def test_the_failure_of_one_does_not_stop_the_others() -> None:
    def fail(prompt: str) -> None:
        if "What is second?" in prompt and "Chunk 2" in prompt:
            raise EngineError("out of order")

    outcomes = together(FunctionEngine(fail, engine_of()), *QUESTIONS)
    assert isinstance(outcomes[1], EngineError)
    assert [len(outcome[1]) for outcome in (outcomes[0], *outcomes[2:])] == [7, 7, 7]


def test_a_cancelled_read_does_not_stop_the_others() -> None:
    engine = engine_of()

    async def all_of_them() -> list[Any]:
        seats = Together(engine, 3).seats
        first, *others = [asyncio.ensure_future(ended(*pair)) for pair in zip(seats, QUESTIONS, strict=False)]
        while len(engine.prompts) < 4:  # noqa: ASYNC110 - it is being read
            await asyncio.sleep(0)
        first.cancel()
        return await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 60)

    cancelled, *rest = asyncio.run(all_of_them())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [len(outcome[1]) for outcome in rest] == [7, 7]


def test_recorded_replies_are_not_waited_for(tmp_path: Path) -> None:
    engine = engine_of()

    async def some(*numbers: int) -> None:
        seats = Together(engine, len(numbers)).seats
        work = (
            ended(seat, QUESTIONS[number], tmp_path / f"{number}.jsonl", resume=True)
            for seat, number in zip(seats, numbers, strict=True)
        )
        await asyncio.wait_for(asyncio.gather(*work), 60)

    asyncio.run(some(0))
    calls = len(engine.prompts)
    asyncio.run(some(0, 1, 2))
    assert len(engine.prompts) == 3 * calls


@pytest.mark.parametrize("seats", [1, 3])
def test_unused_seats_block_nobody_once_they_are_left(seats: int) -> None:
    async def alone() -> None:
        first, *others = Together(engine_of(), seats).seats
        reading = asyncio.ensure_future(ended(first, QUESTIONS[0]))
        for seat in others:
            seat.leave()
        assert len((await asyncio.wait_for(reading, 60))[1]) == 7

    asyncio.run(alone())
