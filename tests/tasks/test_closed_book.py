"""Questions that a model knows by heart are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from memagent.errors import EngineError
from memagent.tasks.closed_book import ClosedBook, unknown
from memagent.tasks.scoring import f1
from memagent.types import Completion, Example, Message, Sampling


class Memory:
    """A model that says by turns what it was given for a question; an error is raised."""

    def __init__(self, replies: dict[str, list[str]]) -> None:
        self.replies = replies
        self.calls: list[tuple[str, Sampling]] = []

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        (message,) = messages
        await asyncio.sleep(0)
        self.calls.append((message.content, sampling))
        reply = self.replies[message.content].pop(0)
        if reply == "fail":
            raise EngineError("out of order")
        return Completion(reply)

    async def aclose(self) -> None:
        """Nothing to release."""


def kept(replies: dict[str, list[str]], quiz: ClosedBook) -> tuple[list[str], Memory]:
    engine = Memory(replies)
    made = [Example(name, "hqa", name, "Ada is in the document.", ("Ada", "A. L."), 5) for name in replies]

    async def run() -> list[str]:
        return [example.id async for example in unknown(made, engine, quiz)]

    return asyncio.run(run()), engine


@pytest.mark.parametrize("concurrency", [1, 2, 16])
def test_a_question_is_dropped_if_any_attempt_answers_it(concurrency: int) -> None:
    replies = {
        "first": [r"\boxed{Ada}"],
        "second": ["Bob", "It was A. L., I think"],
        "neither": ["Bob", "Eve"],
        "third": ["Bob", "Eve", "Ada"],
    }
    names, engine = kept(replies, ClosedBook(concurrency=concurrency))
    assert names == ["neither", "third"]
    assert len(engine.calls) == 1 + 2 + 2 + 2
    assert all("document" not in asked for asked, _ in engine.calls)


def test_attempts_scorer_bound_and_seed_can_be_set() -> None:
    quiz = ClosedBook(attempts=3, scorer=f1, known=0.5, sampling=Sampling(9, 1.0, seed=7))
    names, engine = kept({"half": ["Bob", "Ada Lovelace"], "none": ["x", "y", "z"]}, quiz)
    assert names == ["none"]
    seeds: Sequence[int | None] = [sampling.seed for asked, sampling in engine.calls if asked == "none"]
    assert seeds == [7, 8, 9]


def test_a_failed_call_is_not_taken_for_an_unknown_question() -> None:
    with pytest.raises(EngineError, match="out of order"):
        kept({"first": ["fail"]}, ClosedBook())
