"""Every task tells which passages of the document its answer follows from; absent answers have none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memagent.errors import SettingsError
from memagent.tasks import TASKS, Corpora, Recipe, examples, load_examples, write_examples
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.scoring import SCORERS
from memagent.types import Example
from tasks.oracles import solve

NEEDLES = tuple(name for name in TASKS if name.startswith("niah_"))
QUESTIONS = ("qa_1", "qa_2", "hqa", "squad", "2wiki", "musique")
REFUSAL = f"The memory {ABSENT_ANSWERS[0]}."


def score(example: Example, prediction: str) -> float:
    return SCORERS[TASKS[example.task].scorer](prediction, example.answers)


def words(text: str) -> int:
    return len(text.split())


def make_examples(task: str, seed: int, length: int = 2600, **more: Any) -> list[Example]:
    recipe = Recipe(length_tokens=length, seed=seed, count_tokens=words, **more)
    return list(examples(task, recipe, 6))


def solved_from_evidence(example: Example) -> float:
    """The score of a reader that sees the evidence alone. A comparison's answer stands in no passage."""
    evidence = "\n".join(example.evidence)
    if example.task in QUESTIONS:
        return 1.0 if example.answers in (("yes",), ("no",)) else score(example, evidence)
    return score(example, solve(replace(example, document=evidence)))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("task", [*NEEDLES, "vt", *QUESTIONS])
def test_the_answers_follow_from_the_evidence_which_stands_in_the_document(task: str, seed: int) -> None:
    scores = []
    for example in make_examples(task, seed):
        assert example.evidence
        position = -1
        for passage in example.evidence:
            position = example.document.find(passage, position + 1)
            assert passage.strip() == passage and position >= 0, "in the document's order"
        assert sum(map(words, example.evidence)) < words(example.document) / 2
        scores.append(solved_from_evidence(example))
    # One answer of 2WikiMultihopQA is the name of a country, of which the passages have the adjective.
    assert sum(scores) >= len(scores) - (task == "2wiki")


@pytest.mark.parametrize("task", ["cwe", "fwe"])
def test_where_the_whole_text_counts_there_is_no_evidence(task: str) -> None:
    assert [example.evidence for example in make_examples(task, 0)] == [()] * 6


def test_only_the_needles_that_are_asked_for_are_evidence() -> None:
    for example in make_examples("niah_multikey_1", 4):
        assert len(example.evidence) == 1 and example.document.count("special magic") == 4
    assert [len(example.evidence) for example in make_examples("niah_multivalue", 4)] == [4] * 6


def corpus(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def question(tmp_path: Path, facts: list[list[Any]]) -> Example:
    """An example with the passages of two people and a place, and these supporting facts."""
    context = [
        ["Ada Lovelace", ["Ada wrote programs.", " She died in London.", " She was 36."]],
        ["London (city)", ["London is a city.", " It is in England."]],
        ["Bob", ["Bob slept."]],
    ]
    row = {"question": "Where?", "answer": "England", "supporting_facts": facts, "context": context}
    path = corpus(tmp_path / "hotpot.jsonl", row)
    (example,) = examples("hqa", Recipe(documents=3, corpora=Corpora((("hotpot", path),))), 1)
    first, second = (example.document.find(text) for text in ("Ada wrote", "London is"))
    return example if first < second else replace(example, evidence=example.evidence[::-1])


def test_evidence_of_hotpotqa_is_its_supporting_sentences_with_the_title_they_do_not_name(
    tmp_path: Path,
) -> None:
    example = question(tmp_path, [["Ada Lovelace", 1], ["London (city)", 0]])
    assert set(example.evidence) == {"Ada Lovelace", "She died in London.", "London is a city."}
    example = question(tmp_path, [["London (city)", 0], ["London (city)", 1]])
    assert example.evidence == ("London is a city.", "It is in England.")


def test_a_supporting_sentence_that_does_not_exist_leaves_the_whole_passage(tmp_path: Path) -> None:
    example = question(tmp_path, [["London (city)", 7]])
    assert example.evidence == ("London (city)\nLondon is a city. It is in England.",)


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [
        ({"text": "Ada", "answer_start": 24}, "Dr. Ada came in May."),
        ({"text": "Ada", "answer_start": 0}, "Ada left."),
        ({"text": "Ada"}, "Ada left."),
        ({"text": "May. Bob", "answer_start": 36}, "Dr. Ada came in May. Bob slept."),
        ({"text": "Eve", "answer_start": 3}, "Ada left. It was late. Dr. Ada came in May. Bob slept."),
    ],
)
def test_evidence_of_squad_is_the_sentence_of_the_answer(
    tmp_path: Path, answer: dict[str, Any], evidence: str
) -> None:
    context = "Ada left. It was late. Dr. Ada came in May. Bob slept."
    rows = [
        {"title": "a", "context": context, "qas": [{"question": "Who?", "answers": [answer]}]},
        {"title": "a", "context": "Nothing.", "qas": []},
    ]
    recipe = Recipe(documents=2, corpora=Corpora((("squad", corpus(tmp_path / "squad.jsonl", *rows)),)))
    (example,) = examples("squad", recipe, 1)
    assert example.evidence == (evidence,)


def test_a_question_that_comes_with_a_passage_twice_can_be_asked_among_few(tmp_path: Path) -> None:
    context = [["Ada", ["Ada."]], *[["Bob", ["Bob."]]] * 3, ["Eve", ["Eve."]]]
    row = {"question": "Who?", "answer": "Ada", "supporting_facts": [["Ada", 0]], "context": context}
    recipe = Recipe(documents=3, corpora=Corpora((("hotpot", corpus(tmp_path / "hotpot.jsonl", row)),)))
    (example,) = examples("hqa", recipe, 1)
    assert sorted(example.document.split("\n")[1::4]) == ["Ada", "Bob", "Eve"]


@pytest.mark.parametrize("task", [*NEEDLES, *QUESTIONS])
def test_an_absent_answer_is_not_in_the_document(task: str) -> None:
    for whole, example in zip(make_examples(task, 3), make_examples(task, 3, absent=1.0), strict=True):
        assert example.problem == whole.problem and example.id == f"{whole.id}-absent"
        assert example.evidence == () and score(example, REFUSAL) == 1
        assert score(example, " ".join(whole.answers)) == 0
        assert max(whole.evidence, key=len) not in example.document
        if whole.answers not in (("yes",), ("no",)):
            assert not any(answer.lower() in example.document.lower() for answer in whole.answers)
            assert score(whole, REFUSAL) == 0
        assert words(example.document) > 0.8 * words(whole.document)


def test_a_share_of_examples_lacks_the_answer_and_the_others_stay_the_same() -> None:
    recipe = Recipe(length_tokens=1000, count_tokens=words)
    whole = list(examples("niah_single_1", recipe, 200))
    mixed = list(examples("niah_single_1", replace(recipe, absent=0.3), 200))
    absent = [example for example in mixed if example.id.endswith("-absent")]
    assert 40 <= len(absent) <= 80 and {example.answers for example in absent} == {ABSENT_ANSWERS[:1]}
    assert {one == other for one, other in zip(whole, mixed, strict=True) if other not in absent} == {True}


@pytest.mark.parametrize("absent", [-0.1, 1.1])
def test_a_share_lies_between_nothing_and_all(absent: float) -> None:
    with pytest.raises(SettingsError, match=f"`absent` is {absent}"):
        Recipe(length_tokens=10, absent=absent)


@pytest.mark.parametrize("task", ["vt", "cwe", "fwe", "longbench_qasper"])
def test_a_task_that_cannot_lack_its_answer_says_so(task: str) -> None:
    with pytest.raises(SettingsError, match=f"{task} has no examples without the answer"):
        examples(task, Recipe(absent=0.5), 1)


def test_evidence_is_kept_in_files_and_stays_unknown_where_a_row_has_none(tmp_path: Path) -> None:
    (example, *_) = make_examples("vt", 0, 200)
    path = tmp_path / "a.jsonl"
    write_examples(path, [example, replace(example, evidence=())])
    assert list(load_examples(path)) == [example, replace(example, evidence=())]
    path.write_text('{"problem": "Who?", "document": "Ada did.", "answers": ["Ada"]}\n')
    assert [example.evidence for example in load_examples(path)] == [()]


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ("Ada did.", "must be a list"),
        ([7], "evidence is 7"),
        ([" "], "evidence is ' '"),
        (["Ada", "Bob did."], "'Bob did.' word for word"),
    ],
)
def test_evidence_that_is_not_of_the_document_is_an_error(
    tmp_path: Path, evidence: object, message: str
) -> None:
    row = {"problem": "Who?", "document": "Ada did.", "answers": ["Ada"], "evidence": evidence}
    with pytest.raises(SettingsError, match=f"row 1: .*{message}"):
        list(load_examples(corpus(tmp_path / "mine.jsonl", row)))
