"""Rows on disk: a run goes on from any cut of its file, and only with the settings that it began with."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from evaluation.measured import header, row
from memagent import SettingsError
from memagent.evaluation.rows import EvaluationRow, open_rows, read_header, read_rows, storable
from memagent.storage import Log
from memagent.types import flatten

ROWS = [
    row(index=index, workflow=reader, prediction="é\n…") for index in range(3) for reader in ("full", "rag")
]


def write(folder: Path, rows: list[EvaluationRow], **fields: Any) -> None:
    with open_rows(folder, header(**fields), resume=False) as file:
        for entry in rows:
            file.append(flatten(entry))


def go_on(folder: Path, header: dict[str, Any], resume: bool) -> None:
    with open_rows(folder, header, resume):
        pass


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    assert list(read_rows(tmp_path)) == ROWS
    assert read_header(tmp_path)["command"] == "memagent eval"


def test_a_row_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    with open_rows(tmp_path, header(), resume=False) as file:
        for count, entry in enumerate(ROWS, 1):
            file.append(flatten(entry))
            assert len(list(read_rows(tmp_path))) == count


def test_a_run_resumes_from_every_cut(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    file = tmp_path / "rows.jsonl"
    whole = file.read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", whole[:-1])]
    for cut in {*range(0, len(whole), 31), *(at + by for at in ends for by in (-1, 0, 1)), len(whole)}:
        file.write_bytes(whole[:cut])
        with open_rows(tmp_path, header(), resume=True) as rows:
            assert len(rows) == whole[:cut].count(b"\n")
            for missing in (entry for entry in ROWS if entry.key not in rows):
                rows.append(flatten(missing))
        assert file.read_bytes() == whole, cut


def test_a_line_that_is_not_a_row_is_named(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    file = tmp_path / "rows.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1].replace(b"rag", b"ray") + lines[2])
    with pytest.raises(SettingsError, match=r"rows\.jsonl, line 2: not written by memagent, or damaged"):
        go_on(tmp_path, header(), resume=True)
    file.unlink()
    with Log(file) as log:
        log.append({"task": "x"})
    with pytest.raises(SettingsError, match=r"rows\.jsonl: .*'task': 'x'.* is not a row"):
        go_on(tmp_path, header(), resume=True)


@pytest.mark.parametrize("score", [math.nan, 1.5, -0.1, math.inf, "high"])
def test_an_invalid_score_is_refused(tmp_path: Path, score: Any) -> None:
    with pytest.raises(SettingsError, match="is not a row"):
        write(tmp_path, [row(), row(index=1, score=score)])
    assert len(list(read_rows(tmp_path))) == 1
    with Log(tmp_path / "rows.jsonl") as log:
        list(log.lines())
        log.append(flatten(row(index=1, score=score)))
    with pytest.raises(SettingsError, match="is not a row"):
        list(read_rows(tmp_path))


def test_an_attempt_that_stands_there_twice_is_one_row(tmp_path: Path) -> None:
    write(tmp_path, [*ROWS, ROWS[2], row(index=0, workflow="full", score=0.0)])
    assert list(read_rows(tmp_path)) == ROWS


def test_secrets_of_an_endpoint_are_not_kept() -> None:
    fields = storable({"api_key": "sk-1", "base_url": "http://me:PASS@host/v1?api_key=KEY", "retries": 6})
    assert fields == {"base_url": "http://host/v1?...", "retries": 6}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    with pytest.raises(SettingsError, match="add `resume` to continue it, or choose another `out`"):
        go_on(tmp_path, header(), resume=False)
    assert len(list(read_rows(tmp_path))) == len(ROWS)


def test_rows_without_their_run_are_not_continued(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    (tmp_path / "run.json").unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        go_on(tmp_path, header(), resume=True)


def test_resume_starts_what_was_never_begun(tmp_path: Path) -> None:
    with open_rows(tmp_path / "new" / "folder", header(), resume=True) as rows:
        assert not rows
    (tmp_path / "died").mkdir()
    (tmp_path / "died" / "rows.jsonl").touch()  # killed before run.json was there
    with open_rows(tmp_path / "died", header(), resume=True) as rows:
        rows.append(flatten(ROWS[0]))
    assert read_header(tmp_path / "died")["format"] == 2


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"settings": {"temperature": 1.0}}, "settings.temperature was null, now it is 1.0"),
        (
            {"plan": {"workflows": ["full"], "corpora": {}}},
            'workflows was \\["overwrite", "gated", "full"\\]',
        ),
        ({"model": {"name": "other", "window_tokens": None, "tokenizer": "estimate"}}, 'model.name was "m"'),
        ({"prompts": {"full": "abc"}}, "prompts.full was null"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], difference: str) -> None:
    write(tmp_path, ROWS)
    with pytest.raises(SettingsError, match=difference):
        go_on(tmp_path, header(**fields), resume=True)


def test_what_rows_do_not_depend_on_may_change(tmp_path: Path) -> None:
    write(tmp_path, ROWS, settings={"base_url": "http://a", "concurrency": 1, "retries": 6})
    changed = header(
        settings={"base_url": "http://b", "concurrency": 9, "retries": 0, "threads": 3},
        attempts=2, command="another", created="later", version="9", python="4",
    )  # fmt: skip
    with open_rows(tmp_path, changed, resume=True) as rows:
        assert len(rows) == len(ROWS)


def test_a_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        go_on(tmp_path / "file", header(), resume=False)
    for text, wrong in (("[]", "format None"), ("{", "not JSON"), (json.dumps({"format": 99}), "format 99")):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(SettingsError, match=wrong):
            read_header(tmp_path)
