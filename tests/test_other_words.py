"""`benchmarks/other_words.py`: its texts hold the evidence, and words do not lead to it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark_modules import BENCHMARKS, load_benchmark
from memagent.tasks import load_examples

pytestmark = pytest.mark.slow

other_words = load_benchmark("other_words")
QUESTIONS = other_words.load_questions()


def test_the_set_has_no_faults_and_a_third_of_each_kind_on_each_text_is_for_tuning() -> None:
    assert list(other_words.find_faults(QUESTIONS)) == []
    for kind, number in Counter((question.text, question.kind) for question in QUESTIONS).items():
        tuning = [
            question
            for question in QUESTIONS
            if (question.text, question.kind, question.split) == (*kind, "tuning")
        ]
        assert len(tuning) * 3 == number, kind


def test_faults_are_told() -> None:
    lisbon = next(question for question in QUESTIONS if question.question == "Who speaks Portuguese?")
    in_its_words = replace(lisbon, question="Who was born over a chemist's shop in Lisbon?")
    not_there = replace(lisbon, evidence=("She was born in Oporto.",))
    unmarked = replace(lisbon, evidence=())
    messages = [*other_words.find_faults([in_its_words]), *other_words.find_faults([not_there, unmarked])]
    for fault in (
        "its evidence has",
        "show 50% of the evidence",
        "its text does not have once: She was born in Oporto.",
        "it must have answers and evidence",
        "latent: 1 questions",
    ):
        assert any(fault in message for message in messages), (fault, messages)


def test_the_questions_are_examples(tmp_path: Path) -> None:
    command = [sys.executable, f"{BENCHMARKS}/other_words.py", "examples", str(tmp_path / "examples.jsonl")]
    subprocess.run([*command, "--split", "tuning"], check=True)
    examples = list(load_examples(tmp_path / "examples.jsonl"))
    assert len(examples) == sum(question.split == "tuning" for question in QUESTIONS)
    for example in examples:
        absent = example.task == "absent"
        assert bool(example.evidence) != absent
        assert ("no answer" in example.answers) == absent
