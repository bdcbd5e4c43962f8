"""Waiting for something to happen, in this process or in another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any


def wait_for(find: Callable[[], Any], process: Popen[Any] | None = None, seconds: float = 60.0) -> Any:
    """Return what is found once there is something, or what there is when the process has ended."""
    patience = time.monotonic() + seconds
    while not (result := find()) and (process is None or process.poll() is None):
        assert time.monotonic() < patience
        time.sleep(0.005)
    return result


def find_converters(process: int) -> list[str]:
    """The numbers of the converters that run for a process."""
    numbers: list[str] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            numbers += filter(is_converter, task.read_text().split())
    return numbers


def is_converter(number: str) -> bool:
    """Whether the process of this number runs as a converter."""
    try:
        return b"converter_program.py" in Path(f"/proc/{number}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
