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
from memagent.reading.sources import Statement, statements_from
from memagent.settings import user_data_path
from memagent.storage import lock, write_in_place
from memagent.types import NOTHING_SPENT, Spent, flatten, unflatten

FORMAT = 2
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE notebooks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, about TEXT NOT NULL,
    created REAL NOT NULL, current INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE versions (
    notebook INTEGER NOT NULL, number INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (notebook, number)
) STRICT;
CREATE TABLE unfinished (
    notebook INTEGER PRIMARY KEY, base INTEGER NOT NULL, portions TEXT NOT NULL
) STRICT;
PRAGMA user_version = {FORMAT};
COMMIT;
"""
_NAME = re.compile(r"\w[\w .-]{0,63}")
_GO_TO = "UPDATE notebooks SET current = ? WHERE id = ?"
_BUSY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Portion:
    """The bytes of a file that were read together, from `start` to `end`.

    `sha256`, in hex, is that of all bytes before `end`. `path` is empty for a text that is not a file. The
    times are those of the file's state; 0 if none were kept.
    """

    name: str
    path: str
    sha256: str
    start: int
    end: int
    mtime_ns: int = 0
    ctime_ns: int = 0


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


EMPTY = Version(number=0, parent=0, created=0.0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A notebook's row in the table: `about` is its instruction, `current` its current version."""

    id: int
    name: str
    about: str
    created: float
    current: int


class ClaimedError(SettingsError):
    """Another process is changing the notebook."""


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
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != FORMAT:
            raise SettingsError(f"{self._file} has format {version}, this version reads {FORMAT}")

    def _create(self) -> None:
        """Make the database, unless there is one: whole or not at all, so that it is never empty."""
        if self._file.exists():
            return
        with self._open("lock") as file:  # if two processes create it at once, one waits
            lock(file, wait=True)
            if not self._file.exists():
                with write_in_place(self._file) as temporary_path:
                    temporary_path.touch(0o600)
                    with closing(sqlite3.connect(temporary_path, isolation_level=None)) as db:
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
    def _changing(self, id: int) -> Iterator[sqlite3.Connection]:
        """A transaction, all of it or nothing, that also drops the notebook's unfinished read."""
        with self._connect() as db:
            db.execute("BEGIN IMMEDIATE")
            with db:
                yield db
                db.execute("DELETE FROM unfinished WHERE notebook = ?", (id,))
        for path in self.folder.glob(f"{id}-*.jsonl"):
            with suppress(OSError):
                path.unlink()

    def entries(self) -> list[Entry]:
        """All notebooks, by name."""
        with self._connect() as db:
            return [Entry(**row) for row in db.execute("SELECT * FROM notebooks ORDER BY name")]

    def add(self, name: str, about: str) -> Entry:
        """Create a notebook. Raises `SettingsError` for a taken or invalid name, or an empty `about`."""
        name = _check_name(name)
        about = about.encode("utf-8", "replace").decode().strip()
        if not about:
            raise SettingsError(
                'what is the notebook about? give `about`, such as "what to keep of what it reads"'
            )
        with self._connect() as db:
            query = "INSERT OR IGNORE INTO notebooks (name, about, created) VALUES (?, ?, ?) RETURNING *"
            rows = db.execute(query, (name, about, time.time())).fetchall()
        if not rows:
            raise SettingsError(f"there is already a notebook {name!r}: choose another name")
        return Entry(**rows[0])

    def entry(self, name: str) -> Entry:
        """The notebook with this name. Raises `SettingsError` if there is none."""
        name = _check_name(name)
        known = {entry.name: entry for entry in self.entries()}
        if name not in known:
            near = did_you_mean(name, known) or ": create it with memagent notes new"
            raise SettingsError(f"there is no notebook {name!r}{near}")
        return known[name]

    def entry_of(self, id: int) -> Entry:
        """A notebook as it is now. Raises `SettingsError` if it was deleted."""
        for entry in self.entries():
            if entry.id == id:
                return entry
        raise SettingsError("the notebook has been deleted: create it again with memagent notes new")

    def versions(self, id: int) -> dict[int, Version]:
        """All versions of a notebook by number, in order: the empty one, and those that were undone, too."""
        with self._connect() as db:
            rows = db.execute("SELECT record FROM versions WHERE notebook = ? ORDER BY number", (id,))
            versions = [_version(row["record"]) for row in rows]
        return {version.number: version for version in (EMPTY, *versions)}

    def lineage(self, id: int) -> list[Version]:
        """The versions that led to a notebook's current one, in order, itself included."""
        versions, ancestors = self.versions(id), list[Version]()
        current = self.entry_of(id).current
        while current:
            ancestors.append(versions[current])
            current = ancestors[-1].parent
        return ancestors[::-1]

    def commit(self, id: int, values: Mapping[str, Any], base: int) -> Version:
        """Add a version after `base`. Raises `SettingsError` unless that is the current one."""
        with self._changing(id) as db:
            row = db.execute("SELECT current FROM notebooks WHERE id = ?", (id,)).fetchone()
            if row is None or row["current"] != base:
                raise SettingsError("the notebook has been changed or deleted in the meantime: add again")
            query = "SELECT coalesce(max(number), 0) AS last FROM versions WHERE notebook = ?"
            number = db.execute(query, (id,)).fetchone()["last"] + 1
            version = Version(number=number, parent=base, created=time.time(), **values)
            db.execute("INSERT INTO versions VALUES (?, ?, ?)", (id, number, json.dumps(flatten(version))))
            db.execute(_GO_TO, (number, id))
        return version

    def go_to(self, id: int, number: int) -> None:
        """Make one of a notebook's versions the current one."""
        with self._changing(id) as db:
            db.execute(_GO_TO, (number, id))

    def delete(self, id: int) -> None:
        """Delete a notebook with its versions."""
        with self._changing(id) as db:
            db.execute("DELETE FROM versions WHERE notebook = ?", (id,))
            db.execute("DELETE FROM notebooks WHERE id = ?", (id,))
        (self.folder / f"{id}.lock").unlink(missing_ok=True)

    def begin(self, id: int, base: int, portions: tuple[Portion, ...]) -> None:
        """Note what is about to be read on top of a version, so that it is known after a crash."""
        noted = json.dumps([asdict(portion) for portion in portions])
        with self._connect() as db:
            db.execute("INSERT OR REPLACE INTO unfinished VALUES (?, ?, ?)", (id, base, noted))

    def abandon(self, id: int) -> None:
        """Drop the unfinished read: its files count as new again."""
        with self._changing(id):
            pass

    def find_unfinished(self, id: int, base: int) -> tuple[Portion, ...]:
        """What was being read on top of a version when a process was interrupted; empty if nothing was."""
        with self._connect() as db:
            query = "SELECT portions FROM unfinished WHERE notebook = ? AND base = ?"
            row = db.execute(query, (id, base)).fetchone()
        return tuple(Portion(**portion) for portion in json.loads(row["portions"])) if row else ()

    def journals(self, id: int, base: int) -> list[Path]:
        """The journals of reads on top of a version, newest first, then the path for a new one."""
        existing = sorted(self.folder.glob(f"{id}-{base}-*.jsonl"), reverse=True)
        return [*existing, self.folder / f"{id}-{base}-{time.time_ns()}.jsonl"]

    def claim(self, id: int) -> IO[str]:
        """The right to change a notebook, held until it is closed. Raises `ClaimedError`."""
        file = self._open(f"{id}.lock")
        try:
            lock(file)
        except OSError as error:
            file.close()
            name = self.entry_of(id).name
            raise ClaimedError(f"another process is changing {name!r}: wait for it, or stop it") from error
        return file

    def _open(self, name: str) -> IO[str]:
        """A file in the folder that is only locked, never written."""
        return os.fdopen(os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600), "r+")


def _check_name(name: str) -> str:
    """The name of a notebook in its stored form. Raises `SettingsError` if it is invalid."""
    name = unicodedata.normalize("NFC", name).strip()
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is not a valid notebook name: use up to 64 letters, digits, spaces, dots, - and _"
        )
    return name


def _version(record: str) -> Version:
    values = unflatten(json.loads(record))
    values["spent"] = Spent(**values["spent"])
    values["portions"] = tuple(Portion(**portion) for portion in values["portions"])
    values["statements"] = statements_from(values["statements"])
    return Version(**values)
