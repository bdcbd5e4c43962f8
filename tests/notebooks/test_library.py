"""The database of notebooks: whole, or told to be lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memagent import SettingsError
from memagent.cli import main
from memagent.notebooks import Notebooks


def test_an_emptied_database_is_not_a_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Notebooks(tmp_path).add("keys", "all keys")
    (tmp_path / "notebooks.sqlite").write_bytes(b"")
    with pytest.raises(SettingsError, match="is empty, so its notebooks are lost: restore it from a copy"):
        Notebooks(tmp_path)
    assert main(["notes", "list", "--notebooks", str(tmp_path)]) == 2
    assert "its notebooks are lost" in capsys.readouterr().err


@pytest.mark.slow
def test_a_new_database_is_the_users_alone_and_made_once(tmp_path: Path) -> None:
    program = "import sys, memagent.notebooks as it, pathlib; it.Notebooks(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    started = [subprocess.Popen(command, env=os.environ) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    assert (tmp_path / "notebooks.sqlite").stat().st_mode & 0o777 == 0o600
    assert Notebooks(tmp_path).add("keys", "all keys").name == "keys"
    assert {path.name for path in tmp_path.iterdir()} <= {
        "lock", "notebooks.sqlite", "notebooks.sqlite-wal", "notebooks.sqlite-shm"
    }  # fmt: skip
