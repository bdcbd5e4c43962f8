"""What a server knows of files and reads: values, and the SQLite database in its folder that keeps them.

The folder is used by one server at a time, and the database notices when it is deleted or replaced meanwhile.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from memagent.errors import SettingsError, StoreError, reason
from memagent.server.schemas import State
from memagent.storage import lock

UNFINISHED: tuple[State, ...] = ("queued", "running")

_NAME = "server.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL,
    purpose TEXT NOT NULL, bytes INTEGER NOT NULL, created REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS reads (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL, bytes INTEGER NOT NULL, request TEXT NOT NULL,
    outcome TEXT NOT NULL DEFAULT '{}', key TEXT, attended INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS reads_by_state ON reads (state, number);
CREATE INDEX IF NOT EXISTS reads_by_key ON reads (owner, key);
"""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a client sent."""

    number: int
    id: str
    owner: str
    name: str
    purpose: str
    bytes: int
    created: float


@dataclass(frozen=True, slots=True)
class Job:
    """A read that a client began. `request` is what it asked for, `outcome` what came of it.

    An `attended` one runs only while someone listens. See `Jobs.begin`.
    """

    number: int
    id: str
    owner: str
    state: State
    created: float
    started: float | None
    ended: float | None
    bytes: int
    request: Mapping[str, Any]
    outcome: Mapping[str, Any]
    key: str | None
    attended: bool


def make_job(row: sqlite3.Row) -> Job:
    """Make a read from its row in the database."""
    values = {name: json.loads(row[name]) for name in ("request", "outcome")}
    return Job(**{**row, **values, "attended": bool(row["attended"])})


class Database:
    """What a server knows of the files and reads in `folder`. Safe to use from several threads.

    Raises `SettingsError` if the folder cannot be used, has files of others, or another server uses it, and
    `StoreError` if the database cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = _claim(folder)
        self._file, self._log = folder / _NAME, folder / f"{_NAME}-wal"
        self._lock = threading.Lock()
        try:
            self._file.touch(0o600)  # the folder may be open to other users
            self._connection = sqlite3.connect(self._file, check_same_thread=False, isolation_level=None)
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
            self._connection.execute("PRAGMA busy_timeout=0")  # whoever waits keeps all others waiting
            self._opened = self._in_place()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self._file} cannot be used: {reason(error)}; restore it from a copy"
            ) from error

    def run(self, statement: str, *values: object, durable: bool = True) -> list[sqlite3.Row]:
        """Run a statement, which a loss of power may undo unless it is `durable`. Raises `StoreError`."""
        self.check_in_place()
        try:
            with self._lock:
                before = self._connection.total_changes
                rows = self._connection.execute(statement, values).fetchall()
                has_changed = self._connection.total_changes > before
            if durable and has_changed:
                with self._log.open("rb+") as log:  # at once in several threads, unlike SQLite's own
                    os.fsync(log.fileno())
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise StoreError(f"another program is writing to {_NAME}: try again later") from error
            raise StoreError(
                f"the server's database cannot be used ({error}): try again later; if it stays so, "
                f"stop the server and restore {_NAME} from a copy"
            ) from error
        return rows

    def check_in_place(self) -> None:
        """Raise `StoreError` if the opened files are gone: nothing written now would be kept."""
        with suppress(OSError):
            if self._in_place() == self._opened:
                return
        raise StoreError(
            "the server's data folder was deleted or replaced while it was in use: put it back, or start the "
            "server again"
        )

    def _in_place(self) -> list[tuple[int, int]]:
        """Which files are now where the database and its log were opened."""
        stats = [path.stat() for path in (self._file, self._log)]
        return [(stat.st_dev, stat.st_ino) for stat in stats]

    def close(self) -> None:
        """Close the database, and release the folder."""
        with self._lock:  # an abandoned thread may still be using it
            self._connection.close()
        self._folder.close()


def _claim(folder: Path) -> IO[str]:
    """Claim a folder for this server, until what this returns is closed."""
    usual = {"lock", "lost+found"}  # of a server that begins at this moment, and of a new volume
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        has_others = any(path.name not in usual for path in folder.iterdir())
        if has_others and not (folder / _NAME).exists():
            raise SettingsError(
                f"{folder} holds files that are not a server's: name a new or empty folder with `data`"
            )
        claim = (folder / "lock").open("a")
        lock(claim)
    except BlockingIOError as error:
        raise SettingsError(
            f"{folder} is in use by another server: stop it, or name another folder with `data`"
        ) from error
    except OSError as error:
        raise SettingsError(f"{folder} cannot be used: {reason(error)}") from error
    return claim
