"""The examples of the default reader's recipe, made from small sources."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.tasks import load_examples
from memagent.tasks.corpora import SAMPLE
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import Example

RECIPE = Path(__file__).parent.parent / "recipes" / "smollm2"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    sentences = (f"On day {number} the ship {number} sailed on." for number in range(700))
    (folder / "book.txt").write_text(" ".join(sentences))
    paragraphs = []
    for number in range(8):
        text = f"The town lies by a river. Its mayor is called Person{number}. Many come to see it."
        asked = {"question": f"Who is mayor number {number}?", "is_impossible": False,
                 "answers": [{"text": f"Person{number}", "answer_start": text.index("Person")}]}  # fmt: skip
        paragraphs.append({"title": "Towns", "context": text * 8, "qas": [asked]})
    (folder / "squad.jsonl").write_text("\n".join(map(json.dumps, paragraphs)))
    return folder


def made(sources: Path, out: Path, *options: str) -> list[Example]:
    command = [sys.executable, str(RECIPE / "data.py"), "--books", str(sources / "book.txt"), "--squad",
               str(sources / "squad.jsonl"), "--hotpot", str(SAMPLE / "hotpot.jsonl.gz"), "--skip", "0",
               "--count", "20", "--out", str(out), *options]  # fmt: skip
    subprocess.run(command, check=True)
    return list(load_examples(out))


def test_needles_and_questions_tell_their_evidence(sources: Path, tmp_path: Path) -> None:
    found = made(sources, tmp_path / "examples.jsonl", "--kinds", "needles", "wikipedia")
    assert len(found) == 3 * (20 + 5)
    assert {it.task for it in found} == {"niah_single_1", "niah_multivalue", "squad"}
    for it in found:
        absent = set(it.answers) <= set(ABSENT_ANSWERS)
        assert absent == (not it.evidence)
        assert all(text in it.document for text in it.evidence)
        together = " ".join(it.evidence)
        assert absent or any(answer in together for answer in it.answers)
    documents = [it.document for it in found]
    assert all(len(set(documents[start : start + 3])) == 1 for start in range(0, len(found), 3))
    absent = [it for it in found if not it.evidence]
    assert len(absent) == len(found) / 3


def test_the_same_seed_makes_the_same_file(sources: Path, tmp_path: Path) -> None:
    one, other, third = (
        made(sources, tmp_path / f"{number}.jsonl", "--kinds", "needles", "--seed", seed)
        for number, seed in enumerate("001")
    )
    assert one == other != third


def test_the_split_of_the_questions_is_stored(sources: Path, tmp_path: Path) -> None:
    made(sources, tmp_path / "examples.jsonl", "--kinds", "needles", "--skip", "3")
    assert (tmp_path / "hotpot_train.jsonl.gz").is_file()
