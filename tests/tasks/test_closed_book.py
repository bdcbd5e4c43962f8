"""Questions that a model knows by heart are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from memagent.documents.tokens import estimate_tokens
from memagent.errors import EngineError
from memagent.tasks import load_examples, write_examples
from memagent.tasks.files import ClosedBook, write_unknown
from memagent.types import Completion, Example, Message, Model, Sampling


class Memory:
    """A model that says by turns what it was given for a question; an error is raised."""

    def __init__(self, replies: dict[str, list[str]], calls: int = 16) -> None:
        self.model = Model("by-heart", estimate_tokens, calls=calls)
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


def filter_examples(
    folder: Path, engine: Memory, asking: ClosedBook, count: int | None = None
) -> tuple[list[str], tuple[int, int]]:
    names = list(engine.replies)
    examples = [Example(name, "hqa", name, "Ada is in the document.", ("Ada", "A. L."), 5) for name in names]
    write_examples(folder / "all.jsonl", examples)
    out = folder / "left.jsonl"
    counts = asyncio.run(write_unknown(folder / "all.jsonl", out, engine, asking, count))
    return [example.id for example in load_examples(out)], counts


@pytest.mark.parametrize("calls", [1, 2, 16])
def test_a_question_is_dropped_if_any_attempt_answers_it(tmp_path: Path, calls: int) -> None:
    replies = {
        "first": [r"\boxed{Ada}"],
        "second": ["Bob", "It was A. L., I think"],
        "neither": ["Bob", "Eve"],
        "third": ["Bob", "Eve", "Ada"],
    }
    engine = Memory(replies, calls)
    assert filter_examples(tmp_path, engine, ClosedBook()) == (["neither", "third"], (2, 4))
    assert len(engine.calls) == 1 + 2 + 2 + 2
    assert all("document" not in question for question, _ in engine.calls)


def test_it_stops_when_enough_are_kept(tmp_path: Path) -> None:
    replies = {"known": ["Ada"], **{f"unknown{number}": ["Bob", "Eve"] for number in range(20)}}
    engine = Memory(replies, calls=2)
    assert filter_examples(tmp_path, engine, ClosedBook(), count=2) == (["unknown0", "unknown1"], (2, 3))
    assert len(engine.calls) < 20


def test_a_scorer_of_the_whole_reply_sees_all_of_it(tmp_path: Path) -> None:
    replies = {"said": ["Ada? No, the answer is Bob."], "not": ["The answer is Bob."]}
    asking = ClosedBook(attempts=1, scorer="string_match_part")
    assert filter_examples(tmp_path, Memory(replies), asking)[0] == ["not"]


def test_what_a_model_considers_before_its_answer_is_not_its_answer(tmp_path: Path) -> None:
    replies = {"no": ["<think>\nAda, or Bob?\n</think>\n\nBob"], "yes": ["<think>\nBob?\n</think>\n\nAda"]}
    for scorer in ("substring_match", "string_match_part"):
        engine = Memory({name: list(own) for name, own in replies.items()})
        assert filter_examples(tmp_path, engine, ClosedBook(attempts=1, scorer=scorer))[0] == ["no"]


def test_attempts_scorer_and_seed_can_be_set(tmp_path: Path) -> None:
    engine = Memory({"said": ["Bob", "ada."], "none": ["x", "Ada Lovelace", "z"]})
    asking = ClosedBook(attempts=3, scorer="exact_match", sampling=Sampling(9, 1.0, seed=7))
    assert filter_examples(tmp_path, engine, asking)[0] == ["none"]
    seeds: Sequence[int | None] = [sampling.seed for question, sampling in engine.calls if question == "none"]
    assert seeds == [7, 8, 9]


def test_a_failed_call_is_not_taken_for_an_unknown_question(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="out of order"):
        filter_examples(tmp_path, Memory({"first": ["fail"]}), ClosedBook())
    assert not (tmp_path / "left.jsonl").exists()
