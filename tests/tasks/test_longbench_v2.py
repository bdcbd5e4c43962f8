"""LongBench v2's rows, in its own layout, and its scorer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memagent.errors import SettingsError
from memagent.evaluation.plan import EvaluationPlan
from memagent.tasks import TASKS, Corpora, Recipe, examples
from memagent.tasks.scoring import score_reply

ROW = {
    "_id": "66f36490821e116aacb2cc22",
    "domain": "Single-Document QA",
    "difficulty": "easy",
    "length": "short",
    "question": "Where is the key? ",
    "choice_A": "In the hall",
    "choice_B": "In the well",
    "choice_C": "On the roof",
    "choice_D": "Nowhere",
    "answer": "B",
    "context": "The key fell into the well.",
}


def make_recipe(path: Path, *rows: dict[str, object], **sizes: int) -> Recipe:
    (path / "data.json").write_text(json.dumps(rows))
    corpora = Corpora((("longbench_v2", path / "data.json"),))
    return Recipe(corpora=corpora, count_tokens=lambda text: len(text.split()), **sizes)


def test_a_row_becomes_a_question_with_its_choices(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, ROW | {"length": "long"}, ROW)
    (example,) = examples("longbench_v2_short", recipe, 1)
    assert example.problem.startswith("Where is the key?\n\n(A) In the hall\n(B) In the well\n")
    assert (example.document, example.answers, example.length_tokens) == (ROW["context"], ("B",), 6)
    assert TASKS["longbench_v2_short"].scorer == "choice"
    with pytest.raises(SettingsError, match="has 1 rows, and number 2"):
        list(examples("longbench_v2_short", recipe, 2))
    with pytest.raises(SettingsError, match="lengths of their own"):
        list(examples("longbench_v2_short", make_recipe(tmp_path, ROW, length_tokens=4096), 1))


def test_it_is_evaluated_at_its_own_lengths(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, ROW)
    plan = EvaluationPlan(workflows=("full",), tasks=("longbench_v2_short",), count=1, corpora=recipe.corpora)
    assert [cell.task for cell in plan.cells] == ["longbench_v2_short"]


@pytest.mark.parametrize("wrong", [{"answer": "E"}, {"answer": ["B"]}, {"length": 12}, {"choice_C": " "}])
def test_a_row_of_another_layout_is_an_error(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="not laid out as LongBench v2"):
        list(examples("longbench_v2_short", make_recipe(tmp_path, ROW | wrong), 1))


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("The correct answer is (B)", 1),
        ("**The correct answer is (B).**", 1),
        ("The correct answer is B.", 1),
        ("The correct answer is A, or rather: The correct answer is (B)", 1),
        ("The correct answer is (A). The correct answer is (B).", 0),
        ("the correct answer is (B)", 0),
        ("B", 0),
        ("", 0),
    ],
)
def test_a_choice_is_scored_as_by_the_makers_of_the_set(reply: str, score: int) -> None:
    assert score_reply("choice", reply, ("B",)) == score
