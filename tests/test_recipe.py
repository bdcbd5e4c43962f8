"""The examples of the default reader's recipe, made from small sources."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.tasks import load_examples
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import Example

RECIPE = Path(__file__).parent.parent / "recipes" / "smollm2"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    sentences = (f"On day {number} the ship {number} sailed on." for number in range(700))
    (folder / "book.txt").write_text(" ".join(sentences))
    towns = []
    for number in range(8):
        text = f"Town number {number} lies by a river. Its mayor is called Person{number}. Many come. "
        asked = {"question": f"Who is the mayor of town {number}?", "answers": [{"text": f"Person{number}"}]}
        other = {"question": "Who is it not?", "answers": [], "is_impossible": True}
        towns.append({"title": "Towns", "context": text * 4, "qas": [asked, other]})
    (folder / "towns.jsonl").write_text("\n".join(map(json.dumps, towns)))
    towers = (
        {"question": f"who built tower {number}", "answers": [f"BUILDER {number}", "nobody"],
         "text": f"Tower {number} is high.  It was finished by builder {number} long ago, when tower "
                 f"{number} was needed.  For builder {number} it was the last one."}
        for number in range(120)
    )  # fmt: skip
    (folder / "towers.jsonl").write_text("\n".join(map(json.dumps, towers)))
    feet = {"title": None, "context": "These feet have `` webs '' . They are rare -LRB- one in ten -RRB- .",
            "qas": [{"question": "how rare are they", "answers": ["one in ten"]}]}  # fmt: skip
    (folder / "tokenised_feet.jsonl").write_text(json.dumps(feet))
    return folder


def made(sources: Path, out: Path, *sets: str, seed: int = 0) -> list[Example]:
    files = [str(sources / f"{name}.jsonl") for name in sets]
    command = [sys.executable, str(RECIPE / "data.py"), "--novels", str(sources / "book.txt"), "--needles",
               "40", "--passages", "40", "--seed", str(seed), "--out", str(out)]  # fmt: skip
    subprocess.run([*command, *(["--sets", *files] if sets else [])], check=True)
    return list(load_examples(out))


def in_lines(text: str) -> bool:
    return max(map(len, text.split("\n"))) <= 80


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_every_question_tells_its_evidence_or_is_left_open(sources: Path, tmp_path: Path) -> None:
    found = made(sources, tmp_path / "examples.jsonl", "towns", "towers")
    assert {it.task for it in found} == {"niah_single_1", "niah_multivalue", "vt", "squad"}
    for it in found:
        absent = set(it.answers) <= set(ABSENT_ANSWERS)
        assert absent == (not it.evidence)
        assert all(text in it.document for text in it.evidence)
        together = one_line(" ".join(it.evidence))
        assert absent or any(answer in together for answer in it.answers)
        assert it.task == "squad" or absent or all(answer in together for answer in it.answers)
    for kind, count in {"needles": 40, "variables": 13, "passages": 40}.items():
        chosen = [it for it in found if it.id.startswith(kind)]
        assert 0.1 < sum(not it.evidence for it in chosen) / len(chosen) < 0.5
        documents = {(it.id.rsplit("-", 1)[0], it.document) for it in chosen}
        assert len(documents) == count, "the questions of a document have it in common"
        assert kind == "variables" or 2 < sum(in_lines(text) for _, text in documents) < 20


def test_several_needles_fit_the_memory(sources: Path, tmp_path: Path) -> None:
    found = made(sources, tmp_path / "examples.jsonl")
    several = [len(it.answers) for it in found if it.task == "niah_multivalue"]
    assert set(several) == {2, 3, 4}


def test_chains_of_variables_are_told_in_order(sources: Path, tmp_path: Path) -> None:
    chains = [it for it in made(sources, tmp_path / "examples.jsonl") if it.task == "vt"]
    assert chains
    for it in chains:
        first, *others = it.evidence
        assert first.startswith(f"VAR {it.answers[0]} = ") and first.split()[-1] in it.problem
        assert [one_line(text) for text in others] == [
            f"VAR {name} = VAR {before}" for before, name in zip(it.answers, it.answers[1:], strict=False)
        ]
        places = [it.document.index(text) for text in it.evidence]
        assert places == sorted(places)


def test_the_evidence_of_a_search_is_the_sentence_most_like_it(sources: Path, tmp_path: Path) -> None:
    found = made(sources, tmp_path / "examples.jsonl", "towers")
    asked = [it for it in found if it.task == "squad" and it.evidence]
    assert asked
    for it in asked:
        number = it.problem.removeprefix("Who built tower ").removesuffix("?")
        assert it.answers == (f"builder {number}", f"BUILDER {number}", "nobody")
        (text,) = it.evidence
        assert one_line(text).startswith(f"It was finished by builder {number} long ago, when tower")


def test_tokenised_sets_read_like_text(sources: Path, tmp_path: Path) -> None:
    (asked,) = {
        (it.problem, *map(one_line, it.evidence))
        for it in made(sources, tmp_path / "examples.jsonl", "tokenised_feet")
        if it.task == "squad"
    }
    assert asked == ("How rare are they?", "They are rare (one in ten).")


def test_the_same_seed_makes_the_same_file(sources: Path, tmp_path: Path) -> None:
    one, other, third = (
        made(sources, tmp_path / f"{number}.jsonl", "towns", seed=seed)
        for number, seed in enumerate((0, 0, 1))
    )
    assert one == other != third


def test_the_story_has_the_answer_to_every_question_on_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(RECIPE / "story.py"), str(tmp_path / "story.jsonl")], check=True)
    found = list(load_examples(tmp_path / "story.jsonl"))
    assert len(found) == 20
    for it in found:
        assert all(answer in it.document for answer in it.answers), it.problem
