"""The order of a run's examples: a function of the seed and the position alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from memagent.errors import SettingsError
from memagent.training.data import Data, load_data, warn_of_sample
from memagent.types import Example

SOURCE = """
from memagent.types import Example


def made(number):
    return Example(f"made-{number}", "qa", "who?", "a text", ("me",), 2)
"""


def count(text: str) -> int:
    return len(text.split())


def rows(path: Path, number: int, name: str = "row") -> str:
    """A file of so many examples, with blank lines among them."""
    lines = [
        json.dumps({"id": f"{name}-{index}", "task": "qa", "problem": "wer?", "document": "ä ö ü",
                    "answers": ["ich"], "length_tokens": 3}, ensure_ascii=False)
        for index in range(number)
    ]  # fmt: skip
    text = "\n\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def ids(data: Data, positions: range) -> list[str]:
    return [data.at(position).id for position in positions]


@pytest.fixture
def function(tmp_path: Path) -> str:
    (tmp_path / "source.py").write_text(SOURCE)
    return f"{tmp_path / 'source.py'}:made"


def test_an_epoch_has_every_row_once_and_each_epoch_another_order(tmp_path: Path) -> None:
    data = load_data([rows(tmp_path / "a.jsonl", 8)], 0, count)
    first, second = ids(data, range(8)), ids(data, range(8, 16))
    assert sorted(first) == sorted(second) == [f"row-{index}" for index in range(8)]
    assert first != second


def test_a_position_has_its_example_whatever_was_asked_before(tmp_path: Path) -> None:
    name = rows(tmp_path / "a.jsonl", 5)
    through = ids(load_data([name], 3, count), range(20))
    jumping = load_data([name], 3, count)
    assert [jumping.at(position).id for position in (17, 2, 17, 9)] == [
        through[position] for position in (17, 2, 17, 9)
    ]


def test_another_seed_is_another_order(tmp_path: Path) -> None:
    name = rows(tmp_path / "a.jsonl", 20)
    orders = [ids(load_data([name], seed, count), range(20)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_a_sample_in_place_of_the_essays_is_reported_once(
    tmp_path: Path, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "from_sample.py").write_text(
        SOURCE.replace("2)", "2, haystack='sample of essays, sha256 1')")
    )
    warn_of_sample.cache_clear()
    ids(load_data([function], 0, count), range(3))
    assert not caplog.records
    for _ in range(2):
        ids(load_data([function, f"{tmp_path / 'from_sample.py'}:made"], 0, count), range(8))
    (warning,) = caplog.records
    assert "essays: using the small sample" in warning.getMessage()
    assert "memagent data fetch essays" in warning.getMessage()


def test_sources_take_turns(tmp_path: Path, function: str) -> None:
    data = load_data([rows(tmp_path / "a.jsonl", 2, "a"), function], 0, count)
    example_ids = ids(data, range(8))
    assert example_ids[1::2] == ["made-0", "made-1", "made-2", "made-3"]
    assert sorted(example_ids[:4:2]) == sorted(example_ids[4::2]) == ["a-0", "a-1"]


def test_a_file_may_be_a_json_list(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    examples = [{"problem": "wer?", "document": "ä ö ü", "answers": ["ich"]} for _ in range(3)]
    path.write_text(json.dumps(examples, indent=1), "utf-8")
    assert len({example.id for example in load_data([str(path)], 0, count).first(9)}) == 3


def test_two_files_of_one_length_are_not_shuffled_alike(tmp_path: Path) -> None:
    names = [rows(tmp_path / f"{name}.jsonl", 20, name) for name in "ab"]
    example_ids = ids(load_data(names, 0, count), range(40))
    assert [example_id[2:] for example_id in example_ids[::2]] != [
        example_id[2:] for example_id in example_ids[1::2]
    ]


def test_a_row_is_read_whole_and_a_gzipped_one_too(tmp_path: Path) -> None:
    wanted = Example("row-0", "qa", "wer?", "ä ö ü", ("ich",), 3)
    for name in ("a.jsonl", "a.jsonl.gz"):
        assert load_data([rows(tmp_path / name, 1)], 0, count).at(0) == wanted


def test_the_first_examples_are_unshuffled_and_no_more_than_there_are(tmp_path: Path, function: str) -> None:
    names = [rows(tmp_path / "a.jsonl", 1, "a"), rows(tmp_path / "b.jsonl", 3, "b")]
    data = load_data(names, 0, count)
    assert [example.id for example in data.first(3)] == ["a-0", "b-0", "b-1"]
    assert [example.id for example in data.first(100)] == ["a-0", "b-0", "b-1", "b-2"]
    endless = load_data([names[0], function], 0, count)
    assert [example.id for example in endless.first(4)] == ["a-0", "made-0", "made-1", "made-2"]


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"id": "x"}\n')
    with pytest.raises(SettingsError, match=r"a\.jsonl.*2"):
        load_data([str(path)], 0, count).at(0)


def test_an_unreadable_file_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"set data\.examples"):
        load_data([], 0, count)
    with pytest.raises(SettingsError, match=r"no-such\.jsonl cannot be read"):
        load_data([str(tmp_path / "no-such.jsonl")], 0, count)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(SettingsError, match="holds no examples"):
        load_data([str(tmp_path / "empty.jsonl")], 0, count)
    with pytest.raises(SettingsError, match="no function 'made'"):
        load_data(["json:made"], 0, count)
