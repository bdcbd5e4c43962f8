"""Examples written to and read from files, the user's own rows among them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import SettingsError
from memagent.tasks import load_examples, write_examples
from memagent.tasks.corpora import open_text
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import Example

TEXTS = st.text(st.characters(), min_size=1).filter(str.strip)  # with lone surrogates and line separators
EXAMPLE = Example("vt-9-0-0", "vt", "Which?", "VAR A = 1", ("A", "B"), 9)

SEVERAL = st.tuples(TEXTS, TEXTS)
EXAMPLES = st.builds(
    Example,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    SEVERAL,
    st.integers(1, 10**7),
    rationale=st.just("") | TEXTS,
    haystack=st.just("") | TEXTS,
)


@given(st.lists(EXAMPLES), st.sampled_from(["a.jsonl", "a.jsonl.gz"]))
def test_what_is_written_is_read_again(examples: list[Example], name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        assert write_examples(path, examples) == len(examples)
        assert list(load_examples(path)) == examples
        assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    def broken() -> Iterator[Example]:
        yield EXAMPLE
        raise SettingsError("no more")

    with pytest.raises(SettingsError, match="no more"):
        write_examples(tmp_path / "a.jsonl", broken())
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    with pytest.raises(SettingsError, match=r"cannot be written: [A-Z][a-z ]+$"):
        write_examples(tmp_path / "no" / "a.jsonl", [EXAMPLE])


def load(path: Path, *rows: dict[str, Any] | str) -> list[Example]:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n\n")
    return list(load_examples(path, lambda text: len(text.split())))


def test_a_user_s_row_needs_a_problem_a_document_and_answers(tmp_path: Path) -> None:
    examples = load(
        tmp_path / "mine.v2.jsonl",
        {"problem": "Who?", "document": "Ada did it.", "answers": ["Ada", 7]},
        {"question": "Who?", "documents": ["Ada.", {"title": "Bob", "text": "He."}], "answer": "Ada"},
        {"question": "When?", "document": "Ada did it.", "answers": []},
    )
    assert examples == [
        Example("mine-1", "mine", "Who?", "Ada did it.", ("Ada", "7"), 3),
        Example("mine-2", "mine", "Who?", "Document 1:\nAda.\n\nDocument 2:\nBob\nHe.", ("Ada",), 7),
        Example("mine-3", "mine", "When?", "Ada did it.", ABSENT_ANSWERS, 3),
    ]


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("name", ["eval_50.json", "eval_50.json.gz"])
def test_the_authors_files_are_read_as_they_are(tmp_path: Path, name: str, indent: int | None) -> None:
    rows = [
        {"context": f"Document 1:\nÄda {number}. " * 9000, "input": "Who?", "answers": [f"Ada {number}"],
         "num_docs": 50, "index": number}
        for number in range(3)
    ]  # fmt: skip
    path = tmp_path / name
    with open_text(path, "wt") as file:
        json.dump(rows, file, ensure_ascii=False, indent=indent)
    examples = list(load_examples(path))
    assert [(example.task, example.problem, example.answers) for example in examples] == [
        ("eval_50", "Who?", (f"Ada {number}",)) for number in range(3)
    ]
    assert [example.document for example in examples] == [row["context"] for row in rows]


def test_a_context_of_passage_numbers_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a number of `documents` and this file as its `questions`"):
        load(tmp_path / "eval_25600.json", {"context": [4, 5], "input": "Who?", "answers": ["Ada"]})


def test_a_list_that_is_cut_off_or_mistaken_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "eval.json"
    row = '{"context": "x", "input": "y",\n "answers": ["z"]}'
    for text, message in (
        (f"[{row},\n{{", "row 2 is not JSON"),
        (f"[{row},\n7]", "row 2 is not a JSON object"),
        (f"[{row},\n{{oops}}," + " " * 10**6, "row 2 is not JSON"),
        (f"[{row},\n{row[:-9]}", "row 2 is not JSON"),
        (f"[{row},\n{row}\n", r"row 3 is not JSON: [^\n]*EOF$"),
        (f"{row}\n{{oops}}", "row 2 is not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(SettingsError, match=message):
            list(load_examples(path))


def test_rows_of_a_list_on_one_line_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "eval.json"
    path.write_text("\ufeff" + json.dumps([{"context": "x", "input": "y", "answers": ["z"]}] * 2))
    assert [example.id for example in load_examples(path)] == ["eval-1", "eval-2"]


def test_without_the_extra_a_list_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "eval.json"
    path.write_text("[]")
    monkeypatch.setitem(sys.modules, "ijson", None)
    with pytest.raises(SettingsError, match=r"eval\.json needs a package.*\[eval\]"):
        list(load_examples(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{oops", "row 2 is not JSON"),
        ("[" * 10**5, "row 2 is not JSON"),
        (f'{{"n": {"1" * 5000}}}', "row 2 is not JSON"),
        ("[1]", "row 2 is not a JSON object"),
        ({"document": "x", "answers": ["y"]}, "row 2: problem is None"),
        ({"problem": "x", "answers": ["y"]}, "row 2: document is None"),
        ({"problem": "x", "documents": "all", "answers": ["y"]}, "row 2: documents is 'all'"),
        ({"problem": "x", "documents": [], "answers": ["y"]}, r"row 2: documents is \[\]"),
        (
            {"problem": "x", "documents": [{"title": "a", "paragraph_text": "b"}], "answers": ["y"]},
            "row 2: one of the documents has no `text`, only title, paragraph_text",
        ),
        ({"problem": "x", "documents": [" "], "answers": ["y"]}, "row 2: documents is ' '"),
        ({"problem": "x", "document": "y"}, "row 2 has no answers: .* or an empty list"),
        ({"problem": "x", "document": "y", "answers": [""]}, "row 2: answers is ''"),
        (
            {"problem": "x", "document": "y", "answers": ["z"], "length_tokens": "many"},
            "row 2: length_tokens",
        ),
        (
            {"problem": "x", "document": "y", "answers": ["z"], "length_tokens": -5},
            "row 2: length_tokens",
        ),
        ({"problem": "x", "document": "y", "answers": ["z"], "rationale": 7}, "row 2: rationale is 7"),
    ],
)
def test_a_row_that_is_not_an_example_is_named(
    tmp_path: Path, row: dict[str, Any] | str, message: str
) -> None:
    good = {"problem": "x", "document": "y", "answers": ["z"]}
    with pytest.raises(SettingsError, match=message):
        load(tmp_path / "mine.jsonl", good, row)


def test_a_file_that_is_not_there_or_cut_off_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        list(load_examples(tmp_path / "none.jsonl"))
    path = tmp_path / "a.jsonl.gz"
    write_examples(path, [EXAMPLE] * 500)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SettingsError, match="cannot be read"):
        list(load_examples(path))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    write_examples(path, [Example("a", "t", "Who?", "Ada came. " * 99, ("Ada",), 300)])
    whole = path.read_bytes()
    for position in range(len(whole) // 2, len(whole) - 8):  # behind the header, before the checksum
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 255]) + whole[position + 1 :])
        with pytest.raises(SettingsError, match=r"a\.jsonl\.gz"):
            list(load_examples(path))
