"""The database of notebooks: whole, or told to be lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from memagent.notebooks import Notebooks


def test_a_new_database_is_the_users_alone_and_made_once(tmp_path: Path) -> None:
    program = "import sys, memagent.notebooks as it, pathlib; it.Notebooks(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    started = [subprocess.Popen(command, env=os.environ) for _ in range(4)]
    assert [it.wait() for it in started] == [0] * 4
    assert Notebooks(tmp_path).add("keys", "all keys").name == "keys"
    assert (tmp_path / "notebooks.sqlite").stat().st_mode & 0o777 == 0o600
    assert [it.name for it in tmp_path.iterdir()] == ["notebooks.sqlite"]
