"""Convert PDF, office and e-book files in a separate process, each file once.

The text is kept in the user's cache under the digest of the file, so that many questions convert it once. It
is preceded by its own digest: if the text is damaged, the file is converted again. The process has limits on
memory, time and output: a hostile file ends in an error that names the limit.
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

from memagent.documents import converter_program
from memagent.documents.files import (
    BLOCK_BYTES,
    DocumentFile,
    Fingerprint,
    UnusableError,
    brief,
    bytes_at,
    change_error,
    has_changed,
    open_file,
    package_formats,
)
from memagent.documents.paths import read_error
from memagent.errors import DocumentError, reason
from memagent.settings import user_cache_path
from memagent.storage import write_in_place

_VERSION = 24  # of the converters: texts made by another version are not used
_STALE_SECONDS = 24 * 3600
_POLL_SECONDS = 0.1
_HEAD_BYTES = 32  # the SHA-256 of the text, which precedes it


@dataclass(frozen=True, slots=True)
class ConversionLimits:
    """The limits of one conversion, and how many bytes of texts are kept with its own."""

    memory_mib: int = 2048
    seconds: int = 300
    output_mib: int = 256
    cache_bytes: int = 2**30


def convert_blocks(
    source: DocumentFile, fingerprint: Fingerprint, turn: Lock, stopped: Event
) -> Iterator[bytes]:
    """The converted text of a file in UTF-8, block by block.

    `turn` is held while a conversion runs, so that others who want the file wait for it. Raises
    `UnusableError` if the file cannot be converted, `DocumentError` once `stopped` is set.
    """
    try:
        path = _cache_path(source, fingerprint)
        checksums = _find_or_convert(source, path, fingerprint, turn, stopped)
        for number, checksum in enumerate(checksums):
            while zlib.crc32(block := _read_block(path, number)) != checksum:  # it was dropped or damaged
                if _find_or_convert(source, path, fingerprint, turn, stopped) != checksums:
                    raise change_error(source)
            yield block
    except OSError as error:
        why = f"{error.filename or 'the cache'}: {reason(error)}"
        raise DocumentError(f"{source.name} cannot be converted: {why}") from error


def is_cached(source: DocumentFile, fingerprint: Fingerprint) -> bool:
    """Whether the text of a file is in the cache, as far as can be told without reading it."""
    try:
        return _cache_path(source, fingerprint).exists()
    except OSError:
        return False


def _read_block(path: Path, number: int) -> bytes:
    """A block of a text in the cache; empty if the text is no longer there. Raises `OSError`."""
    with suppress(FileNotFoundError):
        os.utime(path)  # the least recently used texts are dropped first
        return bytes_at(path, _HEAD_BYTES + number * BLOCK_BYTES, BLOCK_BYTES)
    return b""


def _find_or_convert(
    source: DocumentFile, path: Path, fingerprint: Fingerprint, turn: Lock, stopped: Event
) -> array[int]:
    """The checksums of the blocks of a file's text, converting it if the cache lacks it. Raises `OSError`."""
    while (checksums := _checksums(path)) is None:
        if turn.acquire(timeout=_POLL_SECONDS):
            try:
                if _checksums(path) is None:
                    convert(source, path, stopped, fingerprint=fingerprint)
            finally:
                turn.release()
        elif stopped.is_set():
            raise _stop_error(source)
    return checksums


def _checksums(path: Path) -> array[int] | None:
    """A checksum of each block of a converted text; None if it is missing or damaged. Raises `OSError`."""
    digest, checksums = hashlib.sha256(), array("I")
    with suppress(FileNotFoundError), path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            checksums.append(zlib.crc32(block))
        return checksums if head == digest.digest() else None
    return None


def convert(
    source: DocumentFile,
    path: Path,
    stopped: Event,
    limits: ConversionLimits | None = None,
    fingerprint: Fingerprint | None = None,
) -> None:
    """Convert a file to UTF-8 text at `path`, preceded by its SHA-256 and written whole or not at all.

    Nothing is written if the file no longer has this `fingerprint`. Raises what `convert_blocks` raises, and
    `OSError`.
    """
    limits = limits or ConversionLimits()
    with write_in_place(path) as temporary_path, temporary_path.open("w+b", buffering=0) as output:
        output.write(bytes(_HEAD_BYTES))
        if why := _run(source, output, stopped, limits):
            raise UnusableError(f"{source.name} cannot be converted: {why}")
        output.seek(_HEAD_BYTES)
        digest = hashlib.file_digest(output, "sha256").digest()
        output.seek(0)
        output.write(digest)
        # Before others can find the text in its place.
        if fingerprint and has_changed(source, fingerprint):
            raise change_error(source)
    with suppress(OSError):  # the text is already cached
        _prune(path, limits.cache_bytes)


def _cache_path(source: DocumentFile, fingerprint: Fingerprint) -> Path:
    """Where the text of a file is cached. Raises `OSError`."""
    package = package_formats().get(source.format)  # whose version is not ours
    version = package.dist.version if package and package.dist else _VERSION
    return cache_folder() / f"{fingerprint.sha256.hex()}.{source.format}.{version}"


def cache_folder() -> Path:
    """The folder of converted texts, created if missing and accessible only to its user."""
    folder = user_cache_path() / "converted"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _run(source: DocumentFile, output: IO[bytes], stopped: Event, limits: ConversionLimits) -> str:
    """Run the converter. Returns why it failed, or an empty string."""
    command = [sys.executable, "-P", converter_program.__file__, source.format]
    command += [str(limits.memory_mib), str(limits.seconds), str(limits.output_mib), str(os.getpid())]
    with (
        _open_file(source) as file,
        subprocess.Popen(  # noqa: S603 our own program
            command, stdin=file, stdout=output, stderr=subprocess.PIPE
        ) as process,
    ):
        until = time.monotonic() + limits.seconds
        try:
            while True:
                try:
                    _, message = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if stopped.is_set():
                        raise _stop_error(source) from None
                    if time.monotonic() > until:
                        return f"it takes longer than {limits.seconds} s"
        finally:
            process.kill()
    return _reason(process.returncode, brief(message.decode("utf-8", "replace")), limits)


def _stop_error(source: DocumentFile) -> DocumentError:
    return DocumentError(f"{source.name} was not converted: the read was stopped")


def _reason(code: int, message: str, limits: ConversionLimits) -> str:
    """Why a converter failed, or an empty string if it succeeded."""
    if code == 0:
        return ""
    if code == converter_program.TOO_MUCH_MEMORY:
        return f"it takes more than {limits.memory_mib} MiB of memory"
    if code == converter_program.TOO_MUCH_TEXT:
        return f"it produces more than {limits.output_mib} MiB of text"
    if code == -signal.SIGXCPU:
        return f"it takes longer than {limits.seconds} s"
    if code < 0:
        name = signal.Signals(-code).name
        return f"the converter crashed ({name}); its memory limit is {limits.memory_mib} MiB"
    return message or f"the converter exited with code {code}"


def _open_file(source: DocumentFile) -> IO[bytes]:
    """The file for the converter's standard input."""
    if isinstance(source.origin, Path):
        try:
            return open_file(source.origin)
        except OSError as error:
            raise read_error(source.name, error) from error
    if isinstance(source.origin, bytes):
        raise TypeError("text in memory needs no conversion")
    return os.fdopen(os.dup(source.origin.fileno()), "rb")


def _prune(newest: Path, most_bytes: int) -> None:
    """Drop the least recently used texts until the others fit beside `newest`, and what crashes left behind.

    Raises `OSError`.
    """
    files: list[tuple[float, int, Path]] = []
    for path in newest.parent.iterdir():
        with suppress(FileNotFoundError):  # other conversions come and go
            status = path.stat()
            if path.name.startswith("."):
                if status.st_mtime < time.time() - _STALE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
            elif path != newest:
                files.append((status.st_mtime, status.st_size, path))
    room = most_bytes - newest.stat().st_size
    for _, size, path in sorted(files, reverse=True):
        room -= size
        if room < 0:
            path.unlink(missing_ok=True)
