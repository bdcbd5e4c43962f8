"""Storage of notebooks: a table of their versions in SQLite, and the journals of reads in progress.

A version never changes. Each knows its parent, and a notebook knows its current version. Names are keys in
the table, never names of files. Everything here blocks.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from memagent.errors import SettingsError, did_you_mean, reason
from memagent.notebooks.news import Portion
from memagent.reading.sources import Statement, statements_from
from memagent.settings import user_data_path
from memagent.storage import lock, write_in_place
from memagent.types import NOTHING_SPENT, Spent, flatten, unflatten

FORMAT = 2
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS notebooks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, about TEXT NOT NULL,
    created REAL NOT NULL, current INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS versions (
    notebook INTEGER NOT NULL, number INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (notebook, number)
) STRICT;
CREATE TABLE IF NOT EXISTS unfinished (
    notebook INTEGER PRIMARY KEY, base INTEGER NOT NULL, portions TEXT NOT NULL
) STRICT;
PRAGMA user_version = {FORMAT};
COMMIT;
"""
_NAME = re.compile(r"\w[\w .-]{0,63}")
_BUSY_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A notebook's memory at one time, and the read that led to it; version 0 is the empty one.

    `parent` is the version before it, `portions` what was read for it, `created` in seconds since 1970.
    `memory_tokens` is the budget that the memory was written under; the other counts are as in `Result`.
    `statements` are those of the memory with their sources, in the files as they were when read.
    """

    number: int
    parent: int
    created: float
    memory: str = ""
    portions: tuple[Portion, ...] = ()
    model: str = ""
    workflow: str = ""
    memory_tokens: int = 0
    chunks: int = 0
    document_tokens: int = 0
    spent: Spent = NOTHING_SPENT
    cut: int = 0
    statements: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A notebook's row in the table: `about` is its instruction, `current` its current version."""

    id: int
    name: str
    about: str
    created: float
    current: int


class Notebooks:
    """The notebooks of a folder: by default the user's own.

    Raises `SettingsError` if the folder cannot be used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or user_data_path() / "notebooks"
        self._file = self.folder / "notebooks.sqlite"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._create()
            if not self._file.stat().st_size:
                raise SettingsError(
                    f"{self._file} is empty, so its notebooks are lost: restore it from a copy"
                )
        except OSError as error:
            raise SettingsError(f"{self.folder} cannot be used: {reason(error)}") from error
        with self._connect() as db:
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if found > FORMAT:
                raise SettingsError(f"{self._file} has format {found}, not {FORMAT}: update memagent")
            if found < FORMAT:
                db.executescript(_SCHEMA)

    def _create(self) -> None:
        """Make the database, unless there is one: whole or not at all, so that it is never empty."""
        if self._file.exists():
            return
        with self._open("lock") as file:  # if two processes create it at once, one waits
            lock(file, wait=True)
            if not self._file.exists():
                with write_in_place(self._file) as made:
                    made.touch(0o600)
                    with closing(sqlite3.connect(made, isolation_level=None)) as db:
                        db.execute("PRAGMA journal_mode=WAL")
                        db.executescript(_SCHEMA)

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """A new connection for each use, so that any thread or process may have one."""
        try:
            with closing(sqlite3.connect(self._file, timeout=_BUSY_SECONDS, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                db.execute("PRAGMA synchronous=FULL")
                yield db
        except sqlite3.DatabaseError as error:
            raise SettingsError(f"{self._file} cannot be used: {error}") from error

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing."""
        with self._connect() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def entries(self) -> list[Entry]:
        """All notebooks, by name."""
        with self._connect() as db:
            return [Entry(**row) for row in db.execute("SELECT * FROM notebooks ORDER BY name")]

    def add(self, name: str, about: str) -> Entry:
        """Create a notebook. Raises `SettingsError` for a taken or invalid name, or an empty `about`."""
        name = check_name(name)
        about = about.encode("utf-8", "replace").decode().strip()
        if not about:
            raise SettingsError(
                'what is the notebook about? give `about`, such as "what to keep of what it reads"'
            )
        with self._changing() as db:
            if db.execute("SELECT 1 FROM notebooks WHERE name = ?", (name,)).fetchone():
                raise SettingsError(f"there is already a notebook {name!r}: choose another name")
            db.execute(
                "INSERT INTO notebooks (name, about, created) VALUES (?, ?, ?)", (name, about, time.time())
            )
        return self.entry(name)

    def entry(self, name: str) -> Entry:
        """The notebook with this name. Raises `SettingsError` if there is none."""
        name = check_name(name)
        with self._connect() as db:
            row = db.execute("SELECT * FROM notebooks WHERE name = ?", (name,)).fetchone()
            if row:
                return Entry(**row)
            known = [row["name"] for row in db.execute("SELECT name FROM notebooks")]
        near = did_you_mean(name, known)
        raise SettingsError(f"there is no notebook {name!r}{near or ': create it with memagent notes new'}")

    def entry_of(self, id: int) -> Entry:
        """A notebook as it is now. Raises `SettingsError` if it was deleted."""
        with self._connect() as db:
            row = db.execute("SELECT * FROM notebooks WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise SettingsError("the notebook has been deleted: create it again with memagent notes new")
        return Entry(**row)

    def versions(self, id: int) -> list[Version]:
        """All versions of a notebook but 0, in order, including those that were undone."""
        with self._connect() as db:
            rows = db.execute("SELECT record FROM versions WHERE notebook = ? ORDER BY number", (id,))
            return [_version(row["record"]) for row in rows]

    def version(self, id: int, number: int) -> Version | None:
        """The version with this number, or None."""
        if number == 0:
            return Version(number=0, parent=0, created=0.0)
        with self._connect() as db:
            query = "SELECT record FROM versions WHERE notebook = ? AND number = ?"
            row = db.execute(query, (id, number)).fetchone()
            return _version(row["record"]) if row else None

    def commit(self, id: int, values: Mapping[str, Any], base: int) -> Version:
        """Add a version after `base`. Raises `SettingsError` unless that is the current one."""
        with self._changing() as db:
            row = db.execute("SELECT current FROM notebooks WHERE id = ?", (id,)).fetchone()
            if row is None or row["current"] != base:
                raise SettingsError("the notebook has been changed or deleted in the meantime: add again")
            query = "SELECT coalesce(max(number), 0) AS last FROM versions WHERE notebook = ?"
            number = db.execute(query, (id,)).fetchone()["last"] + 1
            version = Version(number=number, parent=base, created=time.time(), **values)
            db.execute("INSERT INTO versions VALUES (?, ?, ?)", (id, number, json.dumps(flatten(version))))
            _make_current(db, id, number)
        self._drop_journals(id)
        return version

    def go_to(self, id: int, number: int) -> None:
        """Make one of a notebook's versions the current one."""
        with self._changing() as db:
            _make_current(db, id, number)
        self._drop_journals(id)

    def delete(self, id: int) -> None:
        """Delete a notebook with its versions."""
        with self._changing() as db:
            db.execute("DELETE FROM versions WHERE notebook = ?", (id,))
            db.execute("DELETE FROM unfinished WHERE notebook = ?", (id,))
            db.execute("DELETE FROM notebooks WHERE id = ?", (id,))
        self._drop_journals(id)
        self._lock_file(id).unlink(missing_ok=True)

    def begin(self, id: int, base: int, portions: tuple[Portion, ...]) -> None:
        """Note what is about to be read, so that it is known after a crash."""
        told = json.dumps([asdict(portion) for portion in portions])
        with self._changing() as db:
            db.execute("INSERT OR REPLACE INTO unfinished VALUES (?, ?, ?)", (id, base, told))

    def abandon(self, id: int, base: int) -> None:
        """Forget a read on top of a version: its files count as new again."""
        self.begin(id, base, ())
        self._drop_journals(id)

    def find_unfinished(self, id: int, base: int) -> tuple[Portion, ...]:
        """What was being read on top of a version when a process was interrupted; empty if nothing was."""
        with self._connect() as db:
            query = "SELECT portions FROM unfinished WHERE notebook = ? AND base = ?"
            row = db.execute(query, (id, base)).fetchone()
        return tuple(Portion(**it) for it in json.loads(row["portions"])) if row else ()

    def journals(self, id: int, base: int) -> list[Path]:
        """The journals of reads on top of a version, newest first, then the path for a new one."""
        found = sorted(self.folder.glob(f"{id}-{base}-*.jsonl"), reverse=True)
        return [*found, self.folder / f"{id}-{base}-{time.time_ns()}.jsonl"]

    def claim(self, id: int) -> IO[str] | None:
        """The right to change a notebook, held until it is closed; None while another process has it."""
        file = self._open(self._lock_file(id).name)
        try:
            lock(file)
        except OSError:
            file.close()
            return None
        return file

    def _open(self, name: str) -> IO[str]:
        """A file in the folder that is only locked, never written."""
        return os.fdopen(os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600), "r+")

    def _lock_file(self, id: int) -> Path:
        return self.folder / f"{id}.lock"

    def _drop_journals(self, id: int) -> None:
        for path in self.folder.glob(f"{id}-*.jsonl"):
            with suppress(OSError):
                path.unlink()


def check_name(name: str) -> str:
    """The name of a notebook in its stored form. Raises `SettingsError` if it is invalid."""
    name = unicodedata.normalize("NFC", name).strip()
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is not a valid notebook name: use up to 64 letters, digits, spaces, dots, - and _"
        )
    return name


def _make_current(db: sqlite3.Connection, id: int, number: int) -> None:
    db.execute("UPDATE notebooks SET current = ? WHERE id = ?", (number, id))
    db.execute("DELETE FROM unfinished WHERE notebook = ?", (id,))


def _version(record: str) -> Version:
    values = unflatten(json.loads(record))
    values["spent"] = Spent(**values["spent"])
    values["portions"] = tuple(Portion(**it) for it in values["portions"])
    values["statements"] = statements_from(values.get("statements", ()))
    return Version(**values)
