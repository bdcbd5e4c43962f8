"""The SQLite database of a server's folder. It notices when its folder is deleted or replaced meanwhile."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

from memagent.errors import StoreError, reason

NAME = "server.sqlite"
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
"""
_ADDED = """
BEGIN;
ALTER TABLE reads ADD COLUMN key TEXT;
ALTER TABLE reads ADD COLUMN attended INTEGER NOT NULL DEFAULT 0;
UPDATE reads SET key = json_extract(request, '$.key');
COMMIT;
"""
"""What databases of earlier versions lack."""


class Database:
    """What a server knows of the files and reads in `folder`. Safe to use from several threads.

    Raises `StoreError` if the database cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._log = folder / NAME, folder / f"{NAME}-wal"
        self._lock = threading.Lock()
        try:
            self._file.touch(0o600)  # the folder may be open to other users
            self._connection = sqlite3.connect(self._file, check_same_thread=False, isolation_level=None)
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
            if "key" not in {row["name"] for row in self._connection.execute("PRAGMA table_info(reads)")}:
                self._connection.executescript(_ADDED)
            self._connection.execute("CREATE INDEX IF NOT EXISTS reads_by_key ON reads (owner, key)")
            self._opened = self._in_place()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self._file} cannot be used: {reason(error)}; restore it from a copy"
            ) from error

    def run(self, statement: str, *values: object, durable: bool = True) -> list[sqlite3.Row]:
        """Run a statement, and return its rows; one that is not `durable` may be undone by a loss of power.

        Raises `StoreError` if the database cannot be used now.
        """
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
            raise StoreError(
                f"the server's database cannot be used ({error}): try again later; if it stays so, "
                f"stop the server and restore {NAME} from a copy"
            ) from error
        return rows

    def check_in_place(self) -> None:
        """Raise `StoreError` if the opened files are gone: nothing written now would be kept."""
        try:
            unchanged = self._in_place() == self._opened
        except OSError:
            unchanged = False
        if not unchanged:
            raise StoreError(
                "the server's data folder was deleted or replaced while it was in use: put it back, or "
                "start the server again"
            )

    def _in_place(self) -> list[tuple[int, int]]:
        """Which files are now where the database and its log were opened."""
        found = [path.stat() for path in (self._file, self._log)]
        return [(it.st_dev, it.st_ino) for it in found]

    def close(self) -> None:
        """Close the database."""
        with self._lock:  # an abandoned thread may still be using it
            self._connection.close()
