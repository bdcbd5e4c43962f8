"""Files: an append-only log, atomic writes of files and folders, and JSON and text read whole."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from memagent.errors import SettingsError, reason

_CHECKSUM = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\n\Z')
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700


class Log:
    """An append-only file of JSON objects, one per line with a checksum, locked by one process at a time.

    When `append` returns, its line is on the disk. `lines` skips a last line that a crash has torn, and the
    next `append` overwrites it. Safe to use from several threads. Files are private to the user. Every log
    of a kind starts with `beginning`, so that no other file is mistaken for a torn log. Errors are raised as
    `error`, which is `SettingsError` or a subclass, and name the file.
    """

    def __init__(
        self, path: Path, error: type[SettingsError] = SettingsError, beginning: bytes = b'{"'
    ) -> None:
        self.path = path
        self._error = error
        self._beginning = beginning
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._file: IO[bytes] = open(os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE_FILE), "r+b")  # noqa: PTH123, SIM115
        except OSError as failure:
            raise self._unwritable(failure) from failure
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # reading a device may never end
            self._file.close()
            raise error(f"{path} is not a regular file: name another")
        try:
            lock(self._file)
        except OSError as failure:
            self._file.close()
            raise error(f"{path} is in use by another process: wait for it, or stop it") from failure
        self.end = 0
        """Where the last whole line ends, in bytes; known once `lines` is exhausted."""

    def lines(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the objects from the beginning, each with the offset of its line."""
        self._file.seek(0)
        for line, start, end in _lines(self._file, self.path, self._error, self._beginning):
            self.end = end
            yield line, start

    def at(self, offset: int) -> dict[str, Any]:
        """The object whose line begins at `offset`."""
        with self._lock:
            self._file.seek(offset)
            line = _parse(self._file.readline())
        if line is None:
            raise self._error(f"{self.path} was changed while it was in use: start a new one")
        return line

    def append(self, line: Mapping[str, Any], sync: bool = True) -> int:
        """Write an object after the last whole line and return the offset of its line.

        Without `sync`, a power failure may lose it until a later line is synced.
        """
        raw = _dump(line)
        with self._lock:
            start = self.end
            try:
                self._file.seek(start)
                self._file.write(raw)
                self._file.flush()
                self._file.truncate()
                if sync:
                    os.fsync(self._file.fileno())
                if os.fstat(self._file.fileno()).st_nlink == 0:
                    raise self._error(f"{self.path} was deleted while it was in use: nothing more is kept")
            except OSError as failure:
                raise self._unwritable(failure) from failure
            self.end = start + len(raw)
        return start

    def cut(self, offset: int) -> None:
        """Drop everything after `offset`; the next line goes there."""
        with self._lock:
            try:
                self._file.truncate(offset)
            except OSError as failure:
                raise self._unwritable(failure) from failure
            self.end = offset

    def size(self) -> int:
        """The size of the file in bytes, including a torn line."""
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Release the file."""
        with suppress(OSError):  # failed writes were already reported
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _unwritable(self, failure: OSError) -> SettingsError:
        return self._error(f"{self.path} cannot be written: {reason(failure)}")


def lock(file: IO[Any] | int, wait: bool = False) -> None:
    """Lock a file until it is closed. Without `wait`, raises `OSError` if another process holds it."""
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def read_log(
    path: Path, error: type[SettingsError] = SettingsError, beginning: bytes = b'{"'
) -> Iterator[dict[str, Any]]:
    """Yield the objects of a log that may be in use, without a torn last line. Raises `error`."""
    if path.exists() and not path.is_file():
        raise error(f"{path} is not a regular file: name another")
    try:
        with path.open("rb") as file:
            for line, _, _ in _lines(file, path, error, beginning):
                yield line
    except OSError as failure:
        raise error(f"{path} cannot be read: {reason(failure)}") from failure


def _lines(
    file: IO[bytes], path: Path, error: type[SettingsError], beginning: bytes
) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield each object with the offsets of its line's start and end."""
    start, number = 0, 0
    raw = file.readline()
    while raw:
        number += 1
        following = file.readline()
        line = _parse(raw)
        if line is None:
            last = not following or not raw.endswith(b"\n")  # without its end, what follows is its rest
            if not last or (number == 1 and not _is_torn(raw, beginning)):
                raise error(f"{path}, line {number}: not written by memagent, or damaged")
            return
        end = start + len(raw)
        position = file.tell()
        yield line, start, end
        file.seek(position)
        start, raw = end, following


def _is_torn(raw: bytes, beginning: bytes) -> bool:
    """Whether a first line may be the beginning of one of our logs."""
    whole = raw.endswith(b"\n")
    return not whole and (raw.startswith(beginning) or beginning.startswith(raw))


def _dump(line: Mapping[str, Any]) -> bytes:
    # Lone surrogates, which UTF-8 cannot encode, become JSON escapes.
    body = json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return body[:-1] + b', "crc32": "%08x"}\n' % zlib.crc32(body)


def _parse(raw: bytes) -> dict[str, Any] | None:
    """The object of a line, or None if the line is incomplete or damaged."""
    match = _CHECKSUM.search(raw)
    if match is None:
        return None
    body = raw[: match.start()] + b"}"
    if zlib.crc32(body) != int(match[1], 16):
        return None
    line: dict[str, Any] = json.loads(body)
    return line


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises `SettingsError` if it cannot be read, or is not JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as failure:
        raise SettingsError(f"{path} cannot be read: {reason(failure)}") from failure
    except (ValueError, RecursionError) as failure:
        raise SettingsError(f"{path} is not JSON: {failure}") from failure


def read_utf8(path: Path, name: str) -> str:
    """The text of a file, without a byte-order mark. Raises `SettingsError`, which calls the file `name`."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeError as failure:
        raise SettingsError(f"{name} {path} is not text in UTF-8") from failure
    except OSError as failure:
        raise SettingsError(f"{name} {path} cannot be read: {reason(failure)}") from failure


def file_digest(path: Path) -> bytes:
    """A file's SHA-256. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@contextmanager
def write_in_place(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` for a file or folder, and move it to `path` once it is complete.

    A crash leaves what was there before, even with concurrent writers. Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        temporary_path = Path(folder) / path.name
        yield temporary_path
        for part in (*temporary_path.rglob("*"), temporary_path):
            sync_file(part)
        temporary_path.replace(path)
    sync_file(path.parent)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all, lone surrogates as JSON escapes. Raises `OSError`."""
    raw = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with write_in_place(path) as temporary:
        temporary.write_bytes(raw)


def sync_file(path: Path) -> None:
    """Sync a file or folder to the disk, where folders can be synced."""
    with suppress(PermissionError, IsADirectoryError):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
