"""What the server keeps on the disk: files, and reads with their documents and journals.

A database records what there is and in which state; journals hold the progress of the reads. What the
database does not know is set aside, never deleted: an older copy of it may have been restored. Only one
server at a time can use a folder. Everything here blocks.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Self

from memagent.documents.opening import Document
from memagent.errors import DocumentError, SettingsError, reason
from memagent.server.data_folder import claimed, set_aside
from memagent.server.database import Database
from memagent.server.documents import joined, opened
from memagent.server.errors import not_found, storing
from memagent.storage import lock, written_whole

State = Literal["queued", "running", "done", "failed", "cancelled"]
UNFINISHED: tuple[State, ...] = ("queued", "running")

_BRIEF_READS = "number, id, owner, state, created, started, ended, bytes, request, '{}' AS outcome FROM reads"
_SUFFIX_CHARACTERS = 8
_MOST_NAME = 200
_STALE_SECONDS = 7 * 24 * 3600.0
_HEX = "[0-9a-f]"


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


Content = bytes | StoredFile | Path


@dataclass(frozen=True, slots=True)
class Job:
    """A read that a client started. `request` is what it asked for, `outcome` what came of it."""

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


class Store:
    """The folder of one server. Close it, or use it as a context manager.

    Raises `SettingsError` if the folder cannot be used, has files of others, or another server uses it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chats = folder / "chats"
        """Journals of interrupted chats, which continue when sent again, and files of chats."""
        self._claim = claimed(folder)
        self._database = Database(folder)
        self._run = self._database.run
        try:
            for place in (folder / "files", folder / "reads", self.chats):
                place.mkdir(mode=0o700, exist_ok=True)
            self._tidy()
        except OSError as error:
            raise SettingsError(f"{folder} cannot be used: {reason(error)}") from error

    def close(self) -> None:
        """Release the folder."""
        self._database.close()
        self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def check_in_place(self) -> None:
        """Raise `StoreError` if the folder was deleted or replaced: what is written now would be lost."""
        self._database.check_in_place()

    def _tidy(self) -> None:
        """Requeue what was being read when the last server ended; set aside what the database lacks."""
        self._run("UPDATE reads SET state = 'queued' WHERE state = 'running'")
        for kind in ("file", "read"):
            known = {row["id"] for row in self._run(f"SELECT id FROM {kind}s")}  # noqa: S608 one of two names
            set_aside(self.folder / f"{kind}s", f"{kind}-{_HEX * 24}", known)
        for place in self.chats.glob("files-????????"):
            shutil.rmtree(place, ignore_errors=True)

    def chat_journals(self, digest: str) -> list[Path]:
        """The kept journals of a chat; those of all chats that were left a week ago are deleted.

        One that is in use stays, whatever its age seems to be: the clock may have been set.
        """
        kept: list[Path] = []
        for place in sorted(self.chats.glob(f"{_HEX * 64}-{_HEX * 8}.jsonl")):
            with suppress(FileNotFoundError):  # another chat ended
                if place.stat().st_mtime < time.time() - _STALE_SECONDS:
                    with suppress(BlockingIOError), place.open() as file:
                        lock(file)
                        place.unlink()
                elif place.name.startswith(digest):
                    kept.append(place)
        return kept

    @contextmanager
    def _new_folder(self, kind: str) -> Iterator[Path]:
        """A new folder of a file or read. If it cannot be recorded, it is deleted: nobody was promised it."""
        self.check_in_place()
        folder = self.folder / f"{kind}s" / f"{kind}-{secrets.token_hex(12)}"
        folder.mkdir(mode=0o700)
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def stored_bytes(self, owner: str) -> int:
        """How many bytes an owner has on the disk, without journals."""
        (row,) = self._run(
            "SELECT (SELECT coalesce(sum(bytes), 0) FROM files WHERE owner = ?)"
            " + (SELECT coalesce(sum(bytes), 0) FROM reads WHERE owner = ?) AS sum", owner, owner
        )  # fmt: skip
        return int(row["sum"])

    # Files

    @storing()
    def add_file(self, owner: str, name: str, purpose: str, content: IO[bytes]) -> StoredFile:
        """Keep a file. Raises `ApiError`."""
        with self._new_folder("file") as folder:
            place = folder / f"content{suffix_of(name)}"
            with written_whole(place) as made, made.open("wb") as target:
                shutil.copyfileobj(content, target, 2**20)
            (row,) = self._run(
                "INSERT INTO files (id, owner, name, purpose, bytes, created) VALUES (?, ?, ?, ?, ?, ?)"
                " RETURNING *", folder.name, owner, name, purpose, place.stat().st_size, time.time(),
            )  # fmt: skip
        return StoredFile(**row)

    def file(self, owner: str, id: str) -> StoredFile:
        """The file with this id. Raises `ApiError` if this owner has none."""
        rows = self._run("SELECT * FROM files WHERE id = ? AND owner = ?", id, owner)
        if not rows:
            raise not_found("file", id)
        return StoredFile(**rows[0])

    def files(self, owner: str, limit: int, after: int | None, ascending: bool) -> list[StoredFile]:
        """The files of an owner, ordered by number, from the one following number `after`."""
        return [StoredFile(**row) for row in self._page("* FROM files", owner, limit, after, ascending)]

    def path_of(self, file: StoredFile) -> Path:
        """Where the bytes of a file are."""
        return self.folder / "files" / file.id / f"content{suffix_of(file.name)}"

    def delete_file(self, owner: str, id: str) -> None:
        """Delete a file. Raises `ApiError` if this owner has none with this id."""
        if not self._run("DELETE FROM files WHERE id = ? AND owner = ? RETURNING id", id, owner):
            raise not_found("file", id)
        shutil.rmtree(self.folder / "files" / id, ignore_errors=True)

    # Reads

    @storing()
    def add_read(
        self, owner: str, request: Mapping[str, Any], documents: Sequence[tuple[str, Content]]
    ) -> Job:
        """Queue a read of documents, each a name with its bytes, a stored file, or a path.

        What is at a path stays there, so `request` must have the document's `fingerprint`. Raises `ApiError`.
        """
        names, size = [], 0
        with self._new_folder("read") as folder:
            for number, (name, content) in enumerate(documents):
                if isinstance(content, Path):
                    names.append((str(content), name))
                    continue
                place = folder / f"{number}{suffix_of(name)}"
                names.append((place.name, name))
                with written_whole(place) as made:
                    if isinstance(content, StoredFile):
                        _linked(self.path_of(content), made)
                    else:
                        made.write_bytes(content)
                size += place.stat().st_size
            (row,) = self._run(
                "INSERT INTO reads (id, owner, state, created, bytes, request)"
                " VALUES (?, ?, 'queued', ?, ?, ?) RETURNING *", folder.name, owner, time.time(), size,
                json.dumps({**request, "documents": names}),
            )  # fmt: skip
        return _job(row)

    def read(self, owner: str, id: str) -> Job | None:
        """The read with this id, if this owner has it."""
        rows = self._run("SELECT * FROM reads WHERE id = ? AND owner = ?", id, owner)
        return _job(rows[0]) if rows else None

    def reads(self, owner: str, limit: int, after: int | None, ascending: bool) -> list[Job]:
        """The reads of an owner, ordered by number, from the one following number `after`.

        They come without their outcomes, which are large.
        """
        return [_job(row) for row in self._page(_BRIEF_READS, owner, limit, after, ascending)]

    def unfinished(self, owner: str) -> int:
        """How many reads of an owner are queued or running."""
        query = "SELECT count(*) AS n FROM reads WHERE owner = ? AND state IN ('queued', 'running')"
        return int(self._run(query, owner)[0]["n"])

    def claim(self) -> Job | None:
        """Take the oldest queued read and mark it as running."""
        rows = self._run(
            "UPDATE reads SET state = 'running', started = coalesce(started, ?) WHERE number ="
            " (SELECT number FROM reads WHERE state = 'queued' ORDER BY number LIMIT 1) RETURNING *",
            time.time(),
        )
        return _job(rows[0]) if rows else None

    def end(self, id: str, state: State, outcome: Mapping[str, Any] | None = None) -> bool:
        """Record that a read has ended; False if it had already ended, or is gone."""
        return bool(self._run(
            "UPDATE reads SET state = ?, ended = ?, outcome = ?"
            " WHERE id = ? AND state IN ('queued', 'running') RETURNING id",
            state, time.time(), json.dumps(outcome or {}), id,
        ))  # fmt: skip

    def requeue(self, id: str) -> bool:
        """Requeue a read that failed or was cancelled; False for any other."""
        return bool(self._run(
            "UPDATE reads SET state = 'queued', ended = NULL, outcome = '{}'"
            " WHERE id = ? AND state IN ('failed', 'cancelled') RETURNING id", id
        ))  # fmt: skip

    def delete_read(self, id: str) -> None:
        """Delete a read with its document and its journal."""
        self._run("DELETE FROM reads WHERE id = ?", id)
        shutil.rmtree(self.folder / "reads" / id, ignore_errors=True)

    def journal_of(self, job: Job) -> Path:
        """Where the journal of a read is."""
        return self.folder / "reads" / job.id / "journal.jsonl"

    def document_of(self, job: Job) -> Document:
        """The document of a read. Raises `DocumentError`, also if it is not the one that was asked about.

        If the user named a folder rather than its files, those without text are left out.
        """
        folder = self.folder / "reads" / job.id
        document = joined([opened(folder / place, name) for place, name in job.request["documents"]])
        if job.request.get("unnamed"):
            document = document.unnamed()
        asked = job.request.get("fingerprint")
        if asked and asked != document.fingerprint:
            raise DocumentError("the files have changed since the question was asked: ask it again")
        return document

    def _page(
        self, selected: str, owner: str, limit: int, after: int | None, ascending: bool
    ) -> list[sqlite3.Row]:
        order, behind = ("ASC", ">") if ascending else ("DESC", "<")
        where = f"AND number {behind} ?" if after is not None else ""
        query = f"SELECT {selected} WHERE owner = ? {where} ORDER BY number {order} LIMIT ?"
        return self._run(query, *((owner, limit) if after is None else (owner, after, limit)))


def _job(row: sqlite3.Row) -> Job:
    return Job(**{**row, "request": json.loads(row["request"]), "outcome": json.loads(row["outcome"])})


def shown_name(name: str | None) -> str:
    """The name of a file as it is shown: on one line, without folders, not too long."""
    last = re.split(r"[/\\]", name or "")[-1]
    return "".join(it if it.isprintable() else " " for it in last)[-_MOST_NAME:].strip() or "file"


def suffix_of(name: str) -> str:
    """The suffix of a name, in lower case; "" if it cannot be a file's suffix."""
    suffix = Path(name).suffix[1:].lower()
    return f".{suffix}" if suffix.isascii() and suffix.isalnum() and len(suffix) <= _SUFFIX_CHARACTERS else ""


def _linked(source: Path, target: Path) -> None:
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
