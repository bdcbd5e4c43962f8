"""What a notebook reads of files that it has seen before."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from memagent import EngineError, ReadSettings, ScriptedEngine, open_document
from memagent.concurrency import drain
from memagent.notebooks import Addition, Notebook, Notebooks
from memagent.types import Message

TEXT = "The red key hangs in the hall.\n"
SETTINGS = ReadSettings(workflow="gated", chunk_tokens=60, memory_tokens=40, answer_tokens=40)
LONG_AGO = 1_500_000_000


def add(notebook: Notebook, path: Path, settings: ReadSettings = SETTINGS) -> Addition:
    def reply(messages: Sequence[Message]) -> str:
        return f"MEMORY\n{TEXT}" if TEXT in messages[-1].content else "UNCHANGED"

    addition = notebook.add(open_document(path), ScriptedEngine(reply), settings)
    asyncio.run(drain(aiter(addition)))
    return addition


def change(folder: Path, record: str) -> None:
    with closing(sqlite3.connect(folder / "notebooks.sqlite", isolation_level=None)) as db:
        db.execute("INSERT OR REPLACE INTO versions VALUES (1, 1, ?)", (record,))
        db.execute("UPDATE notebooks SET current = 1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_a_file_in_the_state_in_which_it_was_read_is_not_read_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memagent.documents.files._COARSE_NS", 0)
    notebook = Notebook.new("keys", "Keep where keys are.", Notebooks(tmp_path / "notebooks"))
    (version,) = add(notebook, file).versions
    with closing(sqlite3.connect(tmp_path / "notebooks" / "notebooks.sqlite")) as db:
        record = json.loads(db.execute("SELECT record FROM versions").fetchone()[0])
    record["portions"][0]["sha256"] = "of other bytes"  # so that only the state knows the file
    change(tmp_path / "notebooks", json.dumps(record))
    assert version.portions[0].mtime_ns == LONG_AGO * 10**9
    assert add(notebook, file).known == (str(file),)
    os.utime(file, (LONG_AGO + 1, LONG_AGO + 1))
    assert add(notebook, file).known == ()


def test_what_is_new_is_read_after_an_interrupted_read_that_noted_nothing(file: Path, tmp_path: Path) -> None:
    notebook = Notebook.new("keys", "Keep where keys are.", Notebooks(tmp_path / "notebooks"))
    folder = tmp_path / "in"
    folder.mkdir()
    dull = folder / "a.txt"
    dull.write_text("It rained all day. " * 50)
    with pytest.raises(EngineError):
        add(notebook, folder, SETTINGS.replace(max_calls=2))
    (folder / "b.txt").write_text(TEXT)
    addition = add(notebook, folder)
    assert addition.unnoted == (str(dull),) and addition.known == ()
    assert [portion.name for portion in addition.versions[0].portions] == [str(folder / "b.txt")]
    assert add(notebook, folder).versions[0].portions[0].name == str(dull), "it still counts as new"
