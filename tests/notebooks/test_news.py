"""What a notebook reads of files that it has seen before."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from memagent import ReadSettings, ScriptedEngine, open_document
from memagent.notebooks import Addition, Notebook, Notebooks

TEXT = "The red key hangs in the hall.\n"
SETTINGS = ReadSettings(workflow="gated", chunk_tokens=60, memory_tokens=40, answer_tokens=40)
LONG_AGO = 1_500_000_000


def add(notebook: Notebook, path: Path) -> Addition:
    async def run() -> Addition:
        engine = ScriptedEngine(lambda _messages: "MEMORY\nThe red key hangs in the hall.")
        addition = notebook.add(open_document(path), engine, SETTINGS)
        async for _ in addition:
            pass
        return addition

    return asyncio.run(run())


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
