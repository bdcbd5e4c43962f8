"""Convert PDF, office and e-book files in a process of its own, once for each file.

The text is kept in the user's cache by the digest of the file, so that many questions convert once. The
process has limits of memory, time and output: a hostile file ends in an error that says which one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import IO

from memagent.documents import converters
from memagent.documents.files import (
    BLOCK_BYTES,
    DocumentFile,
    Print,
    UnusableError,
    brief,
    bytes_at,
    changed,
    take_print,
)
from memagent.documents.paths import unreadable
from memagent.errors import DocumentError
from memagent.settings import user_cache_path
from memagent.storage import written_whole

_VERSION = 1  # of the converters: texts of another version are not used
_CACHE_BYTES = 2**30
_STALE_SECONDS = 24 * 3600
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """What one conversion may take."""

    memory_mib: int = 2048
    seconds: int = 300
    output_mib: int = 256


class StoppedError(DocumentError):
    """The read was given up before the file was converted."""


def converted_blocks(source: DocumentFile, taken: Print, turn: Lock, stopped: Event) -> Iterator[bytes]:
    """The converted text of a file in UTF-8, block by block.

    `turn` is held while a conversion runs: those who want the same file wait for it. Raises
    `UnusableError` if the file cannot be converted, `StoppedError` once `stopped` is set.
    """
    place = 0
    while True:
        path = _converted(source, taken, turn, stopped)
        try:
            block = bytes_at(path, place, BLOCK_BYTES)
        except FileNotFoundError:  # dropped from the cache meanwhile
            continue
        except OSError as error:
            raise unreadable(str(path), error) from error
        if not block:
            return
        yield block
        place += len(block)


def _converted(source: DocumentFile, taken: Print, turn: Lock, stopped: Event) -> Path:
    """Where the text of a file is, converted now unless it was before."""
    try:
        place = cache_folder() / f"{taken.sha256.hex()}.{source.format}.{_VERSION}"
        while True:
            with suppress(FileNotFoundError):
                os.utime(place)  # the texts that were not used for longest are dropped first
                return place
            if turn.acquire(timeout=_POLL_SECONDS):
                try:
                    if not place.exists():
                        convert(source, place, stopped)
                        if take_print(source) != taken:
                            place.unlink(missing_ok=True)
                            raise changed(source)
                finally:
                    turn.release()
            elif stopped.is_set():
                raise _stopped(source)
    except OSError as error:
        why = f"{error.filename or 'the cache'}: {error.strerror or error}"
        raise DocumentError(f"{source.name} cannot be converted: {why}") from error


def convert(source: DocumentFile, place: Path, stopped: Event, limits: Limits | None = None) -> None:
    """Convert a file to UTF-8 text at `place`, which is then whole.

    Raises as `converted_blocks` does, and `OSError`.
    """
    with written_whole(place) as made, made.open("wb") as output:
        if why := _run(source, output, stopped, limits or Limits()):
            raise UnusableError(f"{source.name} cannot be converted: {why}")
    _prune(place)


def cache_folder() -> Path:
    """Where converted texts are kept, readable by their user alone."""
    folder = user_cache_path() / "converted"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _run(source: DocumentFile, output: IO[bytes], stopped: Event, limits: Limits) -> str:
    """Run the converter. Returns why it failed, or nothing."""
    command = [sys.executable, "-P", converters.__file__, source.format]
    command += [str(limits.memory_mib), str(limits.seconds), str(limits.output_mib)]
    with (
        _opened(source) as file,
        subprocess.Popen(  # noqa: S603 our own program
            command, stdin=file, stdout=output, stderr=subprocess.PIPE
        ) as process,
    ):
        until = time.monotonic() + limits.seconds
        try:
            while True:
                try:
                    _, said = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if stopped.is_set():
                        raise _stopped(source) from None
                    if time.monotonic() > until:
                        return f"it takes longer than {limits.seconds} s"
        finally:
            process.kill()
    return _reason(process.returncode, brief(said.decode("utf-8", "replace")), limits)


def _stopped(source: DocumentFile) -> StoppedError:
    return StoppedError(f"{source.name} was not converted: the read was stopped")


def _reason(code: int, said: str, limits: Limits) -> str:
    """Why a converter ended as it did, or nothing if it ended well."""
    if code == 0:
        return ""
    if code == converters.TOO_MUCH_MEMORY:
        return f"it takes more than {limits.memory_mib} MiB of memory"
    if code == converters.TOO_MUCH_TEXT:
        return f"it gives more than {limits.output_mib} MiB of text"
    if code == -signal.SIGXCPU:
        return f"it takes longer than {limits.seconds} s"
    if code < 0:
        name = signal.Signals(-code).name
        return f"the converter crashed ({name}); it may use {limits.memory_mib} MiB of memory"
    return said or f"the converter ended with {code}"


def _opened(source: DocumentFile) -> IO[bytes]:
    """The file for the converter's standard input."""
    if isinstance(source.origin, Path):
        try:
            return source.origin.open("rb")
        except OSError as error:
            raise unreadable(source.name, error) from error
    if isinstance(source.origin, bytes):
        raise TypeError("text in memory needs no conversion")
    return os.fdopen(os.dup(source.origin.fileno()), "rb")


def _prune(kept: Path) -> None:
    """Drop the texts that were not used for longest, until the rest fits; and what a crash left behind."""
    for path in kept.parent.glob(".*"):
        if path.stat().st_mtime < time.time() - _STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
    files = [(path.stat(), path) for path in kept.parent.iterdir() if path.is_file() and path != kept]
    room = _CACHE_BYTES - kept.stat().st_size
    for found, path in sorted(files, key=lambda file: file[0].st_mtime, reverse=True):
        room -= found.st_size
        if room < 0:
            path.unlink(missing_ok=True)
