"""Rows on disk: a run goes on from any cut of its file, and only with the settings that it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measured import header, row

from memagent import SettingsError
from memagent.evaluation.rows import EvaluationRow, open_rows, read_header, read_rows

ROWS = [
    row(index=index, reader=reader, prediction="é\n…") for index in range(3) for reader in ("full", "rag")
]


def write(folder: Path, rows: list[EvaluationRow], **fields: Any) -> None:
    with open_rows(folder, header(**fields), resume=False) as file:
        for it in rows:
            file.append(it)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    assert list(read_rows(tmp_path)) == ROWS
    assert read_header(tmp_path)["command"] == "memagent eval"


def test_a_row_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    with open_rows(tmp_path, header(), resume=False) as file:
        for count, it in enumerate(ROWS, 1):
            file.append(it)
            assert len(list(read_rows(tmp_path))) == count


def test_a_run_goes_on_from_every_cut(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    file = tmp_path / "rows.jsonl"
    whole = file.read_bytes()
    for cut in range(len(whole) + 1):
        file.write_bytes(whole[:cut])
        with open_rows(tmp_path, header(), resume=True) as rows:
            assert len(rows.done) == whole[:cut].count(b"\n")
            for missing in (it for it in ROWS if it.key not in rows.done):
                rows.append(missing)
        assert file.read_bytes() == whole, cut


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    file = tmp_path / "rows.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for bad in (b"half a\n", b'{"task": "x"}\n', b"[]\n"):
        file.write_bytes(lines[0] + bad + lines[1])
        with pytest.raises(SettingsError, match=r"rows\.jsonl, line 2"):
            open_rows(tmp_path, header(), resume=True)
    assert file.read_bytes() == lines[0] + bad + lines[1], "nothing was cut off"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    with pytest.raises(SettingsError, match="--resume"):
        open_rows(tmp_path, header(), resume=False)
    assert len(list(read_rows(tmp_path))) == len(ROWS)


def test_rows_without_their_run_are_not_gone_on_with(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    (tmp_path / "run.json").unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        open_rows(tmp_path, header(), resume=True)


def test_resume_starts_what_was_never_begun(tmp_path: Path) -> None:
    with open_rows(tmp_path / "new" / "folder", header(), resume=True) as rows:
        assert rows.done == set()
    (tmp_path / "died").mkdir()
    (tmp_path / "died" / "rows.jsonl").touch()  # killed before run.json was there
    with open_rows(tmp_path / "died", header(), resume=True) as rows:
        rows.append(ROWS[0])
    assert read_header(tmp_path / "died")["format"] == 1


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"settings": {"temperature": 1.0}}, "settings.temperature was null, now it is 1.0"),
        (
            {"plan": {"readers": ["full"], "corpora": {}}},
            'plan.readers was \\["overwrite", "gated", "full"\\]',
        ),
        ({"model": {"name": "other", "window_tokens": None, "tokenizer": "estimate"}}, 'model.name was "m"'),
        ({"prompts": {"full": "abc"}}, "prompts.full was null"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], difference: str) -> None:
    write(tmp_path, ROWS)
    with pytest.raises(SettingsError, match=difference):
        open_rows(tmp_path, header(**fields), resume=True)


def test_what_rows_do_not_depend_on_may_change(tmp_path: Path) -> None:
    write(tmp_path, ROWS, settings={"base_url": "http://a", "concurrency": 1, "retries": 6})
    changed = header(
        settings={"base_url": "http://b", "concurrency": 9, "retries": 0, "threads": 3},
        attempts=2, command="another", created="later", version="9", python="4",
    )  # fmt: skip
    with open_rows(tmp_path, changed, resume=True) as rows:
        assert len(rows.done) == len(ROWS)


def test_only_one_process_writes(tmp_path: Path) -> None:
    with (
        open_rows(tmp_path, header(), resume=False),
        pytest.raises(SettingsError, match="another evaluation"),
    ):
        open_rows(tmp_path, header(), resume=True)
    with open_rows(tmp_path, header(), resume=True):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").symlink_to("/dev/full")
    with (
        pytest.raises(SettingsError, match="No space left"),
        open_rows(tmp_path, header(), resume=False) as rows,
    ):
        rows.append(ROWS[0])


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        open_rows(tmp_path / "file", header(), resume=False)
    for text, wrong in (("[]", "format None"), ("{", "not JSON"), (json.dumps({"format": 99}), "format 99")):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(SettingsError, match=wrong):
            read_header(tmp_path)
