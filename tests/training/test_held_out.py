"""Held-out evaluation reads as training does."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from function_engine import FunctionEngine
from memagent.evaluation.statistics import confidence_interval
from memagent.settings import ReadSettings
from memagent.tasks import write_examples
from memagent.training.reinforcement import HeldOut
from memagent.training.settings import DataSettings, EvaluationSettings, TrainingSettings, WarmStartSettings
from memagent.types import Example


def racing(*order: int) -> FunctionEngine:
    """Answers in part, with words that the problem counts, the calls of some problems sooner than others'."""
    answered = {number: asyncio.Event() for number in order}

    async def answer(prompt: str) -> str:
        number = int(re.findall(r"word number (\d)", prompt)[0])
        for before in order[: order.index(number)]:
            await answered[before].wait()
        if "<chunk" not in prompt:
            answered[number].set()
        return "Ada " + "and others " * number

    return FunctionEngine(answer, window_tokens=8192, calls=9)


def answers_ada() -> FunctionEngine:
    return FunctionEngine(lambda _: "Ada", window_tokens=8192)


@pytest.mark.parametrize(("limit", "answer_tokens"), [(None, 1024), (77, 77)])
def test_answers_have_the_room_of_training_whatever_the_task(
    tmp_path: Path, limit: int | None, answer_tokens: int
) -> None:
    examples = [Example("hqa-1", "hqa", "Who came?", "Ada came.", ("Ada",), 2)]
    write_examples(tmp_path / "held.jsonl", examples)
    settings = TrainingSettings(
        read=ReadSettings(workflow="overwrite", chunk_tokens=500, answer_tokens=limit, temperature=1.0),
        evaluation=EvaluationSettings(every=1, examples=(str(tmp_path / "held.jsonl"),)),
    )
    engine = answers_ada()
    scored = asyncio.run(HeldOut(settings, tmp_path / "run", engine).score(0))
    assert (scored["score"], scored["count"]) == (100, 1)
    update, answer = engine.samplings
    assert (update.max_tokens, answer.max_tokens) == (1024, answer_tokens), "hqa alone would have 32"
    assert {sampling.temperature for sampling in engine.samplings} == {0.0}


@pytest.mark.parametrize(("answer", "score"), [("Ada", 100), ("Bob", 0)])
def test_the_interval_of_a_score_at_its_limit_is_as_wide_as_it_is(
    tmp_path: Path, answer: str, score: float
) -> None:
    examples = [Example(str(n), "mine", "Who?", "Ada came.", (answer,), 2) for n in range(16)]
    write_examples(tmp_path / "held.jsonl", examples)
    settings = TrainingSettings(
        read=ReadSettings(workflow="overwrite", chunk_tokens=500),
        evaluation=EvaluationSettings(every=1, examples=(str(tmp_path / "held.jsonl"),)),
    )
    scored = asyncio.run(HeldOut(settings, tmp_path / "run", answers_ada()).score(0))
    low, high = confidence_interval([score / 100] * 16)
    assert scored["score"] == score and scored["half_width"] == pytest.approx(100 * (high - low))


def test_the_score_does_not_depend_on_which_answer_comes_first(tmp_path: Path) -> None:
    examples = [Example(str(n), "mine", f"Who is word number {n}?", "Ada.", ("Ada",), 2) for n in (1, 2, 5)]
    write_examples(tmp_path / "held.jsonl", examples)
    settings = TrainingSettings(
        data=DataSettings(scorer="f1"),
        read=ReadSettings(workflow="overwrite", chunk_tokens=500),
        evaluation=EvaluationSettings(every=1, examples=(str(tmp_path / "held.jsonl"),)),
    )
    held_out = [HeldOut(settings, tmp_path / "run", racing(*order)) for order in ((1, 2, 5), (5, 2, 1))]
    scored = [asyncio.run(evaluator.score(0)) for evaluator in held_out]
    assert 0 < scored[0]["score"] < 100 and scored[0] == scored[1]


FUNCTIONS = """
from memagent.types import Example


def one(number):
    return Example(f"one-{number}", "mine", "Who?", f"Ada saw {number}.", ("Ada",), 3)


def other(number):
    return Example(f"other-{number}", "mine", "Who?", f"Bob saw {number}.", ("Bob",), 3)
"""


def test_the_score_comes_with_the_haystack_of_the_examples(tmp_path: Path) -> None:
    named = ["essays, sha256 1", "", "essays, sha256 1"]
    rows = [
        Example(f"{number}", "t", "Who?", "Ada.", ("Ada",), 1, haystack=haystack)
        for number, haystack in enumerate(named)
    ]
    write_examples(tmp_path / "held.jsonl", rows)
    settings = TrainingSettings(
        evaluation=EvaluationSettings(every=1, examples=(str(tmp_path / "held.jsonl"),))
    )
    held_out = HeldOut(settings, tmp_path / "run", answers_ada())
    asyncio.run(held_out.score(0))
    assert held_out.haystack == "essays, sha256 1"


@pytest.mark.parametrize(
    ("data", "imitated", "message"),
    [
        ("held.jsonl", "", "2 of the 4 held-out"),
        ("some.jsonl.gz", "", "1 of the 4 held-out"),
        ("own.py:one", "", "2 of the 4 held-out"),
        ("own.py:other", "some.jsonl.gz", "1 of the 4 held-out"),
        ("own.py:other", "", ""),
    ],
)
def test_held_out_examples_in_the_training_data_are_reported(
    tmp_path: Path, data: str, imitated: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    for name, first in {"held.jsonl": 0, "some.jsonl.gz": 1}.items():  # ids are the same in both
        documents = [f"Ada came to {number}." for number in range(first, first + 2)]
        rows = [
            Example(str(row), "mine", "Who?", document, ("Ada",), 4) for row, document in enumerate(documents)
        ]
        write_examples(tmp_path / name, rows)
    settings = TrainingSettings(
        data=DataSettings(examples=(str(tmp_path / data),)),
        warm_start=WarmStartSettings(steps=1, examples=(str(tmp_path / imitated),) if imitated else ()),
        evaluation=EvaluationSettings(
            every=1, count=4, examples=(str(tmp_path / "held.jsonl"), f"{tmp_path / 'own.py'}:one")
        ),
    )
    HeldOut(settings, tmp_path / "run", answers_ada()).compare()
    assert [record.getMessage()[:19] for record in caplog.records] == ([message] if message else [])
