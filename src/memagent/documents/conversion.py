"""Convert PDF, office and e-book files in a process of its own, once for each file.

The text is kept in the user's cache by the digest of the file, so that many questions convert once, behind a
digest of its own: a text that was damaged there is converted again. The process has limits of memory, time
and output: a hostile file ends in an error that says which one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import IO

from memagent.documents import converter_program, converters
from memagent.documents.files import (
    BLOCK_BYTES,
    DocumentFile,
    Print,
    UnusableError,
    brief,
    bytes_at,
    changed,
    opened_file,
    take_print,
)
from memagent.documents.paths import unreadable
from memagent.errors import DocumentError
from memagent.settings import user_cache_path
from memagent.storage import written_whole

_VERSION = 3  # of the converters: texts of another version are not used
_CACHE_BYTES = 2**30
_STALE_SECONDS = 24 * 3600
_POLL_SECONDS = 0.1
_HEAD_BYTES = 32  # the SHA-256 of the text stands before it


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
    known: array[int] | None = None
    place, sound = 0, False
    while True:
        path, checksums = _converted(source, taken, turn, stopped, known if sound else None)
        if known is not None and checksums != known:
            raise changed(source)
        known = checksums
        try:
            block = bytes_at(path, _HEAD_BYTES + place * BLOCK_BYTES, BLOCK_BYTES)
        except FileNotFoundError:  # dropped from the cache meanwhile
            sound = False
            continue
        except OSError as error:
            raise unreadable(str(path), error) from error
        if place == len(known):
            return
        if sound := zlib.crc32(block) == known[place]:
            yield block
            place += 1


def is_kept(source: DocumentFile, taken: Print) -> bool:
    """Whether the text of a file is in the cache, as far as can be told without reading it."""
    try:
        return _place_of(source, taken).exists()
    except OSError:
        return False


def _converted(
    source: DocumentFile, taken: Print, turn: Lock, stopped: Event, known: array[int] | None
) -> tuple[Path, array[int]]:
    """Where the text of a file is, and the checksums of its blocks: converted now unless it was before.

    The text is checked as a whole unless its checksums are `known`.
    """
    try:
        place = _place_of(source, taken)
        while True:
            with suppress(FileNotFoundError):
                os.utime(place)  # the texts that were not used for longest are dropped first
                if (checksums := _checksums(place) if known is None else known) is not None:
                    return place, checksums
            if turn.acquire(timeout=_POLL_SECONDS):
                try:
                    if not place.exists() or _checksums(place) is None:
                        convert(source, place, stopped, taken=taken)
                finally:
                    turn.release()
            elif stopped.is_set():
                raise _stopped(source)
    except OSError as error:
        why = f"{error.filename or 'the cache'}: {error.strerror or error}"
        raise DocumentError(f"{source.name} cannot be converted: {why}") from error


def _checksums(path: Path) -> array[int] | None:
    """A checksum of each block of a converted text; None if it is damaged. Raises `OSError`."""
    digest, checksums = hashlib.sha256(), array("I")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            checksums.append(zlib.crc32(block))
    return checksums if head == digest.digest() else None


def convert(
    source: DocumentFile,
    place: Path,
    stopped: Event,
    limits: Limits | None = None,
    taken: Print | None = None,
) -> None:
    """Convert a file to UTF-8 text at `place`, behind its SHA-256; the file is then whole.

    Nothing is kept of a file whose print is no longer the one that was `taken`. Raises as `converted_blocks`
    does, and `OSError`.
    """
    with written_whole(place) as made, made.open("w+b", buffering=0) as output:
        output.write(bytes(_HEAD_BYTES))
        if why := _run(source, output, stopped, limits or Limits()):
            raise UnusableError(f"{source.name} cannot be converted: {why}")
        output.seek(_HEAD_BYTES)
        digest = hashlib.file_digest(output, "sha256").digest()
        output.seek(0)
        output.write(digest)
        if taken and take_print(source) != taken:  # before the text is in its place: for others, too
            raise changed(source)
    with suppress(OSError):  # the text is in its place
        _prune(place)


def _place_of(source: DocumentFile, taken: Print) -> Path:
    """Where the text of a file is kept. Raises `OSError`."""
    return cache_folder() / f"{taken.sha256.hex()}.{source.format}.{_VERSION}"


def cache_folder() -> Path:
    """Where converted texts are kept, readable by their user alone."""
    folder = user_cache_path() / "converted"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _run(source: DocumentFile, output: IO[bytes], stopped: Event, limits: Limits) -> str:
    """Run the converter. Returns why it failed, or nothing."""
    command = [sys.executable, "-P", converter_program.__file__, converters.__file__, source.format]
    command += [str(limits.memory_mib), str(limits.seconds), str(limits.output_mib), str(os.getpid())]
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
    if code == converter_program.TOO_MUCH_MEMORY:
        return f"it takes more than {limits.memory_mib} MiB of memory"
    if code == converter_program.TOO_MUCH_TEXT:
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
            return opened_file(source.origin)
        except OSError as error:
            raise unreadable(source.name, error) from error
    if isinstance(source.origin, bytes):
        raise TypeError("text in memory needs no conversion")
    return os.fdopen(os.dup(source.origin.fileno()), "rb")


def _prune(kept: Path) -> None:
    """Drop the texts that were not used for longest, until the rest fits; and what a crash left behind.

    Raises `OSError`.
    """
    files: list[tuple[float, int, Path]] = []
    for path in kept.parent.iterdir():
        with suppress(FileNotFoundError):  # other conversions come and go
            found = path.stat()
            if path.name.startswith("."):
                if found.st_mtime < time.time() - _STALE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
            elif path != kept:
                files.append((found.st_mtime, found.st_size, path))
    room = _CACHE_BYTES - kept.stat().st_size
    for _, size, path in sorted(files, reverse=True):
        room -= size
        if room < 0:
            path.unlink(missing_ok=True)
