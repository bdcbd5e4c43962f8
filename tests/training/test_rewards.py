"""What an attempt is worth: exact answers by default, and a penalty for replies near their limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from memagent.errors import SettingsError
from memagent.prompts import load_prompts
from memagent.settings import ReadSettings
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.training.rewards import check_prompts, load_reward, overlong_penalty
from memagent.types import Example, Trained, Trajectory

ROOT = Path(__file__).parents[2]


def worth(answer: str, *answers: str, task: str = "hqa", scorer: str | None = None) -> float:
    example = Example("e", task, "Which city?", "a text", answers, 2)
    return load_reward(scorer=scorer)(example, Trajectory("e", (), answer))


@pytest.mark.parametrize(
    "answer",
    [
        "Paris, London, Rome, Vienna, Berlin, Madrid, Oslo",
        "It was not Vienna.",
        "Vienna or Paris",
        "I do not know",
    ],
)
def test_an_answer_that_says_more_or_something_else_is_worth_nothing(answer: str) -> None:
    assert worth(answer, "Vienna") == 0.0
    assert worth("yes no", "yes") == 0.0


@pytest.mark.parametrize("answer", ["Vienna", "vienna.", "The answer is Vienna.", r"\boxed{Vienna}", "Wien"])
def test_the_answer_is_worth_one(answer: str) -> None:
    assert worth(answer, "Vienna", "Wien") == 1.0


def test_several_values_are_worth_the_f1_of_their_words() -> None:
    values = ("4711", "0815")
    assert worth("0815, 4711", *values, task="niah_multivalue") == 1.0
    # one of two, and both among four: precision 1 and recall 1/2, precision 1/2 and recall 1
    assert worth("4711", *values, task="niah_multivalue") == pytest.approx(2 / 3)
    assert worth("1 4711 2 0815", *values, task="niah_multivalue") == pytest.approx(2 / 3)


def test_a_refusal_is_worth_one_where_the_document_lacks_the_answer() -> None:
    assert worth("The memory does not hold the answer.", *ABSENT_ANSWERS) == 1.0
    assert worth("Vienna", *ABSENT_ANSWERS) == 0.0
    assert worth("The memory does not hold the answer.", "Vienna") == 0.0


def test_a_task_with_an_f_measure_keeps_it() -> None:
    assert worth("red green", "red blue", task="longbench_qasper") == 0.5


def test_a_box_is_rewarded_where_it_is_asked_for() -> None:
    boxed = ReadSettings(workflow="overwrite", templates=str(ROOT / "presets" / "prompts" / "boxed.toml"))
    check_prompts("boxed_match", boxed, Trained())
    check_prompts("exact_match", ReadSettings(), Trained())
    with pytest.raises(SettingsError, match=r"presets/prompts/boxed\.toml"):
        check_prompts("boxed_match", ReadSettings(), Trained())
    (message,) = load_prompts(Path(str(boxed.templates))).fill("answer", problem="Who?", memory="Ada came.")
    assert r"into \boxed{}." in message.content


def test_a_scorer_by_name() -> None:
    assert worth("Vienna or Paris", "Vienna", scorer="substring_match") == 1.0
    assert worth(r"I think it is \boxed{Vienna}", "Vienna", scorer="boxed_match") == 1.0
    assert worth("Vienna", "Vienna", scorer="boxed_match") == 0.0
    with pytest.raises(SettingsError, match=r"no scorer 'exact': use one of .*exact_match"):
        load_reward(scorer="exact")


def test_a_function_of_a_file_that_has_a_dataclass(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Worth:\n    it: float\n"
        "def worth(example, trajectory):\n    return Worth(0.5).it\n"
    )
    assert load_reward(f"{path}:worth")(*[None] * 2) == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('colour')", "failed on the example e (KeyError: 'colour')"),
        ("return 'good'", "failed on the example e (ValueError: could not convert string to float: 'good')"),
        ("return float('nan')", "is nan for the example e: return a finite number"),
        ("return float('-inf')", "is -inf for the example e: return a finite number"),
    ],
)
def test_a_function_that_fails_or_gives_no_number_is_named(body: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def worth(example, trajectory):\n    {body}\n", "utf-8")
    with pytest.raises(SettingsError) as caught:
        load_reward(f"{path}:worth")(Example("e", "hqa", "?", "a", ("b",), 1), Trajectory("e", (), "b"))
    assert str(caught.value) == f"the reward {path}:worth {message}"


@pytest.mark.parametrize(
    ("completion_tokens", "penalty"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (101, -1.0), (1000, -1.0)],
)
def test_the_overlong_penalty_falls_over_the_buffer(completion_tokens: int, penalty: float) -> None:
    assert overlong_penalty(completion_tokens, limit_tokens=100, buffer_tokens=20) == pytest.approx(penalty)


def test_without_a_buffer_nothing_is_overlong() -> None:
    assert overlong_penalty(100, 100, 0) == 0.0
    assert overlong_penalty(500, 100, 0) == 0.0


def test_a_buffer_as_large_as_the_limit_punishes_every_token() -> None:
    assert overlong_penalty(0, 10, 10) == 0.0
    assert overlong_penalty(1, 10, 10) == pytest.approx(-0.1)
    assert overlong_penalty(1, 10, 99) == pytest.approx(-0.1), "a short limit is all buffer, and no more"
