"""The examples of the default reader's recipe, made from small sources."""

from __future__ import annotations

import gzip
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
    searched = (
        {"question": f"who built tower {number}", "answers": [f"BUILDER {number}", "nobody"],
         "text": f"Tower {number} is high.  It was finished by builder {number} long ago, when tower "
                 f"{number} was needed.  For builder {number} it was the last one."}
        for number in range(120)
    )  # fmt: skip
    (folder / "nq.jsonl").write_text("\n".join(map(json.dumps, searched)))
    return folder


def made(sources: Path, out: Path, *options: str) -> list[Example]:
    command = [sys.executable, str(RECIPE / "data.py"), "--books", str(sources / "book.txt"), "--squad",
               str(sources / "squad.jsonl"), "--nq", str(sources / "nq.jsonl"), "--hotpot",
               str(SAMPLE / "hotpot.jsonl.gz"), "--skip", "0", "--count", "40", "--out", str(out),
               *options]  # fmt: skip
    subprocess.run(command, check=True)
    return list(load_examples(out))


def in_lines(text: str) -> bool:
    return max(map(len, text.split("\n"))) <= 80


def test_needles_and_questions_tell_their_evidence(sources: Path, tmp_path: Path) -> None:
    found = made(sources, tmp_path / "examples.jsonl", "--kinds", "needles", "squad", "nq")
    assert {it.task for it in found} == {"niah_single_1", "niah_multivalue", "squad"}
    for it in found:
        absent = set(it.answers) <= set(ABSENT_ANSWERS)
        assert absent == (not it.evidence)
        assert all(text in it.document for text in it.evidence)
        together = " ".join(" ".join(it.evidence).split())
        assert absent or any(answer in together for answer in it.answers)
    for kind in ("needles", "squad", "nq"):
        chosen = [it for it in found if it.id.startswith(kind)]
        assert 0.1 < sum(not it.evidence for it in chosen) / len(chosen) < 0.5
        documents = {(it.id.rsplit("-", 1)[0], it.document) for it in chosen}
        assert len(documents) == 40, "the questions of a document have it in common"
        assert 5 < sum(in_lines(text) for _, text in documents) < 25


def test_the_evidence_of_a_search_is_the_sentence_most_like_it(sources: Path, tmp_path: Path) -> None:
    found = made(sources, tmp_path / "examples.jsonl", "--kinds", "nq")
    asked = [it for it in found if it.evidence]
    assert asked
    for it in asked:
        number = it.problem.removeprefix("Who built tower ").removesuffix("?")
        assert it.answers == (f"builder {number}", f"BUILDER {number}", "nobody")
        (text,) = it.evidence
        assert " ".join(text.split()).startswith(f"It was finished by builder {number} long ago, when tower")


def test_the_same_seed_makes_the_same_file(sources: Path, tmp_path: Path) -> None:
    one, other, third = (
        made(sources, tmp_path / f"{number}.jsonl", "--kinds", "needles", "--seed", seed)
        for number, seed in enumerate("001")
    )
    assert one == other != third


def test_the_split_of_the_questions_is_stored(sources: Path, tmp_path: Path) -> None:
    made(sources, tmp_path / "examples.jsonl", "--kinds", "hqa", "--skip", "3")
    with (
        gzip.open(tmp_path / "hotpot_train.jsonl.gz", "rt") as rest,
        gzip.open(SAMPLE / "hotpot.jsonl.gz", "rt") as whole,
    ):
        assert [*map(json.loads, rest)] == [*map(json.loads, whole)][3:]


def test_the_story_has_the_answer_to_every_question_on_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(RECIPE / "story.py"), str(tmp_path / "story.jsonl")], check=True)
    found = list(load_examples(tmp_path / "story.jsonl"))
    assert len(found) == 20
    for it in found:
        assert all(answer in it.document for answer in it.answers), it.problem
