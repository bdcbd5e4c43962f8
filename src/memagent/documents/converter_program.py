"""The program that turns one file into text, within limits.

Called as `converter_program.py FORMAT MEMORY_MIB SECONDS OUTPUT_MIB PARENT`, where PARENT is the parent's
process id. It reads standard input, which must be a file, writes UTF-8, and exits when its parent does. Of
memagent it imports only the converters, so that it starts quickly.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path
from time import sleep
from types import ModuleType, TracebackType

TOO_MUCH_MEMORY, TOO_MUCH_TEXT = 3, 4
_WATCH_SECONDS = 0.5


def limit(memory_mib: int, seconds: int, output_mib: int) -> None:
    """Limit this process for good; tighter limits that it already has stay in force."""
    for which, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, seconds, seconds + 1),  # SIGXCPU first: SIGKILL does not say why
        (resource.RLIMIT_AS, memory_mib * 2**20, memory_mib * 2**20),
        (resource.RLIMIT_FSIZE, output_mib * 2**20, output_mib * 2**20),
    ):
        most = resource.getrlimit(which)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(which, (soft, hard))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead


def end_with(parent: int) -> None:
    """Exit soon after the parent process ends, even if the parent is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def load() -> ModuleType:
    """Import the converters from their folder: as a part of memagent, they would import all of it."""
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)  # first: some other package may be called `converters`
    package = import_module("converters")
    sys.path.remove(here)
    return package


def main(format: str, *numbers: str) -> int:
    """Convert standard input. Returns the exit code."""
    *limits, parent = map(int, numbers)
    end_with(parent)
    limit(*limits)
    logging.disable()  # libraries complain about many flaws, few of which matter
    warnings.simplefilter("ignore")
    converters = load()
    try:
        with open(0, "rb", closefd=False) as file, open(1, "wb", closefd=False) as output:
            file.seek(0)
            for text in converters.converter(format)(file):
                output.write(converters.frame(text).encode("utf-8", "replace"))
    except MemoryError:
        return TOO_MUCH_MEMORY
    except OSError as error:
        if error.errno == errno.EFBIG:
            return TOO_MUCH_TEXT
        raise
    return 0


def tell(kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Report on one line what went wrong, whatever a format's library raised."""
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    line = (str(message).strip().splitlines() or [""])[0][:500]
    if "password" in line.lower() or "encrypted" in line.lower():
        sys.stderr.write("it is protected by a password: save it without one")
        return
    if " " not in line:  # not a sentence
        line = f"{kind.__name__}: {line}".rstrip(": ")
    sys.stderr.write(f"it is damaged, or not in {sys.argv[1].upper()} format ({line.rstrip('.')})")


if __name__ == "__main__":
    sys.excepthook = tell
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # skip the orderly shutdown, which takes long after a large file
