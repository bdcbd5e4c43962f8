"""`benchmarks/story.py`: twenty questions that the story answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmark_modules import BENCHMARKS
from memagent.tasks import load_examples

pytestmark = pytest.mark.slow


def test_the_story_has_the_answer_to_every_question_on_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, f"{BENCHMARKS}/story.py", str(tmp_path / "story.jsonl")], check=True)
    examples = list(load_examples(tmp_path / "story.jsonl"))
    assert len(examples) == 20
    for example in examples:
        assert all(answer in example.document for answer in example.answers), example.problem
