"""Several reads of one document take turns, so that each chunk is computed once for all of them."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

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
from memagent.engines.scripted import count_words
from memagent.reading.lockstep import Seat, Together
from memagent.types import Model

DOCUMENT = "\n\n".join(f"Chunk {number} says " + f"word{number} " * 80 for number in range(6))
SETTINGS = ReadSettings(workflow="gated", chunk_tokens=90, memory_tokens=40, answer_tokens=40)
QUESTIONS = ("What is first?", "What is second?", "What is third?", "What is fourth?")


class Waves:
    """Ends a call once no other can begin; keeps how many were in flight then."""

    def __init__(self) -> None:
        self.model = Model("waves", count_words, "words", calls=8)
        self.waves: list[int] = []
        self._in_flight = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        self._in_flight += 1
        await asyncio.sleep(0.02)
        if self._in_flight:
            self.waves.append(self._in_flight)
            self._in_flight = 0
        return Completion("done")

    async def aclose(self) -> None: ...


def test_calls_that_a_read_makes_side_by_side_take_their_turn_together() -> None:
    engine = Waves()

    async def both() -> None:
        seats = Together(engine, 2).seats
        texts = [f"{chunk} " * 20 for chunk in ("one", "two", "six", "ten")]
        calls = [seat.complete((Message("user", text + str(place)),), Sampling(8))
                 for place, seat in enumerate(seats) for text in texts]  # fmt: skip
        await asyncio.gather(*calls)

    asyncio.run(both())
    assert engine.waves == [4, 4], "the first of those that begin alike, then the others"


class Caching:
    """A server with a prefix cache of one prompt; counts the characters that it computes."""

    def __init__(self, calls: int = 1) -> None:
        self.model = Model("caching", count_words, "words", calls=calls)
        self.prompts: list[str] = []
        self.computed = self.busy = self.most = 0
        self.warm = ""

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        prompt = messages[-1].content
        self.prompts.append(prompt)
        same = next(
            (n for n, pair in enumerate(zip(prompt, self.warm, strict=False)) if pair[0] != pair[1]), 0
        )
        self.computed += len(prompt) - same
        self.busy += 1
        self.most = max(self.most, self.busy)
        await asyncio.sleep(0)
        self.busy, self.warm = self.busy - 1, prompt
        return Completion(self.reply(prompt))

    def reply(self, prompt: str) -> str:
        if "<chunk-" not in prompt:
            return "nothing"
        return "MEMORY\nIt says." if "Chunk 0 says" in prompt and "(empty)" in prompt else "UNCHANGED"

    async def aclose(self) -> None: ...


async def ended(
    seat: Seat, question: str, trace: Path | None = None, resume: bool = False, **settings: Any
) -> tuple[str, list[Conversation]]:
    read = Read(
        question, text_document(DOCUMENT), seat, SETTINGS.changed(**settings), trace=trace, resume=resume
    )
    seat.progress = partial(getattr, read, "progress")
    try:
        return read.answer, [it async for it in read]
    finally:
        seat.leave()


def together(engine: Engine, *questions: str, **settings: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        seats = Together(engine, len(questions)).seats
        work = (ended(seat, question, **settings) for seat, question in zip(seats, questions, strict=True))
        return await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 60)

    return asyncio.run(all_of_them())


def chunks(engine: Caching) -> list[str]:
    return [found[1] for it in engine.prompts if (found := re.search(r"Chunk (\d+) says", it))]


def test_each_chunk_is_computed_once_for_all_questions() -> None:
    one, engine = Caching(), Caching()
    together(one, QUESTIONS[0])
    together(engine, *QUESTIONS)
    assert chunks(engine) == [str(number) for number in range(6) for _ in QUESTIONS]
    assert engine.computed < 2 * one.computed


def test_the_first_call_ends_before_the_others_begin() -> None:
    engine = Caching(calls=4)
    together(engine, *QUESTIONS)
    assert engine.most == 3, "one warms the cache, three follow side by side"


def test_reads_come_to_what_they_come_to_alone() -> None:
    class Noting(Caching):
        def reply(self, prompt: str) -> str:
            chunk = re.search(r"Chunk (\d+) says", prompt)
            question = re.search(r"What is (\w+)\?", prompt)
            assert question
            return f"MEMORY\n{question[1]} in {chunk[1]}" if chunk and "MEMORY" in prompt else question[1]

    for workflow in ("gated", "heads", "parallel", "reread", "rag"):
        alone = [together(Noting(), it, workflow=workflow)[0] for it in QUESTIONS]
        for found, expected in zip(together(Noting(), *QUESTIONS, workflow=workflow), alone, strict=True):
            assert [it.messages for it in found[1]] == [it.messages for it in expected[1]]


def test_one_that_needs_another_call_is_waited_for() -> None:
    """A question about a reply makes one read fall behind; the others stay with the chunk."""

    class Doubtful(Caching):
        def reply(self, prompt: str) -> str:
            if "<written-" in prompt:
                return "UNCHANGED"
            if "What is first?" in prompt and "<chunk-" in prompt:
                return "MEMORY\n" + "abcdefgh"[len(chunks(self)) // 4] * 9
            return super().reply(prompt)

    engine = Doubtful()
    together(engine, *QUESTIONS)
    assert sum("<written-" in it for it in engine.prompts) > 2
    assert chunks(engine) == sorted(chunks(engine))


def test_the_failure_of_one_leaves_the_others_going(tmp_path: Path) -> None:
    class Failing(Caching):
        async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
            if "What is second?" in messages[-1].content and "Chunk 2" in messages[-1].content:
                raise EngineError("out of order")
            return await super().complete(messages, sampling)

    engine = Failing()
    found = together(engine, *QUESTIONS)
    assert isinstance(found[1], EngineError)
    assert [len(it[1]) for it in (found[0], *found[2:])] == [7, 7, 7]


def test_a_read_that_is_given_up_leaves_the_others_going() -> None:
    engine = Caching()

    async def all_of_them() -> list[Any]:
        seats = Together(engine, 3).seats
        first, *others = [asyncio.ensure_future(ended(*pair)) for pair in zip(seats, QUESTIONS, strict=False)]
        while len(engine.prompts) < 4:  # noqa: ASYNC110 - it is being read
            await asyncio.sleep(0)
        first.cancel()
        return await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 60)

    cancelled, *rest = asyncio.run(all_of_them())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [len(it[1]) for it in rest] == [7, 7]


def test_what_is_on_record_is_not_waited_for(tmp_path: Path) -> None:
    engine = Caching()

    async def some(*numbers: int) -> None:
        seats = Together(engine, len(numbers)).seats
        work = (
            ended(seat, QUESTIONS[number], tmp_path / f"{number}.jsonl", resume=True)
            for seat, number in zip(seats, numbers, strict=True)
        )
        await asyncio.wait_for(asyncio.gather(*work), 60)

    asyncio.run(some(0))
    paid = len(engine.prompts)
    asyncio.run(some(0, 1, 2))
    assert len(engine.prompts) == 3 * paid


@pytest.mark.parametrize("seats", [1, 3])
def test_seats_that_nobody_takes_hold_nobody_up_once_they_are_left(seats: int) -> None:
    async def alone() -> None:
        first, *others = Together(Caching(), seats).seats
        reading = asyncio.ensure_future(ended(first, QUESTIONS[0]))
        for seat in others:
            seat.leave()
        assert len((await asyncio.wait_for(reading, 60))[1]) == 7

    asyncio.run(alone())
