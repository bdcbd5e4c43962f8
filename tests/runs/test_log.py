"""The log of a run: lines are found by their keys, by one process that writes and any that only look."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memagent import SettingsError
from memagent.runs.batch import RunLog


def find_keys(line: Mapping[str, Any]) -> dict[Hashable, Any]:
    if "name" not in line:
        raise SettingsError("no line of this run")
    return {line["name"]: None, ("state", line["name"]): line["state"]}


def test_the_last_line_with_a_key_is_found(tmp_path: Path) -> None:
    for path in (tmp_path / "log.jsonl", None):
        with RunLog(path, find_keys) as log:
            for state in ("old", "new"):
                log.append({"name": "a", "state": state})
            assert log.get("a")["state"] == log.get(("state", "a")) == "new"
            assert log.get("b") is None and "b" not in log and len(log) == 2
    with RunLog(tmp_path / "log.jsonl", find_keys) as log:
        assert log.get("a")["state"] == "new" and set(log) == {"a", ("state", "a")}


def test_a_log_can_be_looked_at_while_a_run_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert len(RunLog(path, find_keys, claim=False)) == 0 and not path.exists()
    with RunLog(path, find_keys) as log:
        log.append({"name": "a", "state": "old"})
        before = path.read_bytes()
        with pytest.raises(SettingsError, match="in use"):
            RunLog(path, find_keys)
        looking = RunLog(path, find_keys, claim=False)
        looking.append({"name": "b", "state": "new"})
        assert looking.get("a")["state"] == "old" and looking.get("b")["state"] == "new"
        assert path.read_bytes() == before


def test_a_line_that_could_not_be_found_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path, find_keys) as log:
        log.append({"name": "a", "state": "old"})
        before = path.read_bytes()
        with pytest.raises(SettingsError, match="no line of this run"):
            log.append({"other": 1})
    assert path.read_bytes() == before
