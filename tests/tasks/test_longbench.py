"""LongBench rows, in its own layout and in one file of all subsets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memagent.errors import SettingsError
from memagent.tasks import TASKS, Corpora, Recipe, examples

QASPER = {
    "input": "How many?",
    "context": "There are 5. " * 40,
    "answers": ["5", "five"],
    "dataset": "qasper",
}
REPORT = {
    "id": "g-0",
    "dataset": "gov_report",
    "context": "Money was spent.",
    "question": "",
    "answers": ["It was."],
}


def recipe(path: Path) -> Recipe:
    return Recipe(corpora=Corpora((("longbench", path),)), count_tokens=lambda text: len(text.split()))


def test_a_row_keeps_its_document_and_answers(tmp_path: Path) -> None:
    (tmp_path / "qasper.jsonl").write_text(json.dumps(QASPER) + "\n")
    (example,) = examples("longbench_qasper", recipe(tmp_path), 1)
    assert example.problem.startswith("How many?\n\n")
    assert (example.document, example.answers) == (QASPER["context"], ("5", "five"))
    assert example.length_tokens == 120 and example.id == "longbench_qasper-0"
    with pytest.raises(SettingsError, match=r"no qmsum\.jsonl"):
        list(examples("longbench_qmsum", recipe(tmp_path), 1))
    with pytest.raises(SettingsError, match=r"qasper\.jsonl has no row of qmsum"):
        list(examples("longbench_qmsum", recipe(tmp_path / "qasper.jsonl"), 1))


def test_a_row_is_the_same_example_whoever_counts_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "qasper.jsonl").write_text(json.dumps(QASPER) + "\n")
    words = recipe(tmp_path)
    ours = [replace(words, count_tokens=len, seed=1), words]
    assert len({example.id for variant in ours for example in examples("longbench_qasper", variant, 1)}) == 1


def test_a_summary_s_problem_is_an_instruction_and_its_scorer_rouge(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text(json.dumps(QASPER) + "\n" + json.dumps(REPORT) + "\n")
    (example,) = examples("longbench_gov_report", recipe(path), 1)
    assert "Summarise" in example.problem and example.document == "Money was spent."
    assert TASKS["longbench_gov_report"].scorer == "rouge_l" and TASKS["longbench_qasper"].scorer == "f1"
    with pytest.raises(SettingsError, match="has 1 rows, and number 2"):
        list(examples("longbench_gov_report", recipe(path), 2))


@pytest.mark.parametrize(
    ("subset", "words"),
    [
        ("qasper", ('tell, answer "unanswerable".', '"yes", "no" or "unanswerable"', "explain nothing")),
        ("narrativeqa", ("single phrase",)),
        ("musique", ("nothing but the answer",)),
        ("qmsum", ("transcript", "sentences")),
        ("multi_news", ("Summarise", "one page")),
    ],
)
def test_a_problem_asks_for_what_longbench_asks_for(
    tmp_path: Path, subset: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "all.jsonl").write_text(json.dumps(QASPER | {"dataset": subset}) + "\n")
    (example,) = examples(f"longbench_{subset}", recipe(tmp_path / "all.jsonl"), 1)
    assert example.problem.startswith("How many?") and all(word in example.problem for word in words)


def test_a_length_cannot_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text(json.dumps(QASPER) + "\n")
    for size in ({"length_tokens": 4096}, {"documents": 50}):
        with pytest.raises(SettingsError, match="lengths of their own"):
            list(examples("longbench_qasper", Recipe(corpora=recipe(path).corpora, **size), 1))


@pytest.mark.parametrize(
    "wrong", [{"answers": []}, {"answers": "Paris"}, {"answers": [5]}, {"context": ["a"]}]
)
def test_a_row_of_another_layout_is_an_error(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text(json.dumps(QASPER | wrong) + "\n")
    with pytest.raises(SettingsError, match="a row lacks a context, a text, or answers, a list of texts"):
        list(examples("longbench_qasper", recipe(path), 1))
