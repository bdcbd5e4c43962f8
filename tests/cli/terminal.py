"""Commands run on a terminal of their own, and what it shows."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from fcntl import ioctl
from struct import pack
from termios import TIOCSWINSZ

PATIENCE_SECONDS = 60.0


def on_terminal(
    *words: str, columns: int = 100, until: Callable[[str], bool] = lambda output: False, typed: str = ""
) -> tuple[int, str]:
    """Run memagent with stdout and stderr on a terminal: its exit code, and all that was written.

    It is terminated as soon as `until` is true of that, and can read what is `typed`.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    process = subprocess.Popen(
        [sys.executable, "-m", "memagent", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    ended = False
    output, patience = b"", time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < patience:
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            read = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        output += read
        if not read:
            break
        if not ended and until(output.decode("utf-8", "replace")):
            process.terminate()
            ended = True
    code = process.wait(10)
    os.close(ours)
    return code, output.decode("utf-8", "replace")
