"""What the server keeps on the disk: files, and reads with their documents and journals.

A database records what there is and in which state; journals hold the progress of the reads. What the
database does not know is left where it is: an older copy of it may have been restored. Only one server at a
time can use a folder. Everything here blocks.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from memagent.documents.opening import Document
from memagent.errors import DocumentError, SettingsError, reason
from memagent.server.database import Database, Job, StoredFile, make_job
from memagent.server.documents import Content, StoredContent, keep, open_stored, suffix_of
from memagent.server.errors import ApiError, not_found, storing
from memagent.server.schemas import State
from memagent.storage import sync_file, write_in_place

_BRIEF_READS = (
    "number, id, owner, state, created, started, ended, bytes, request, '{}' AS outcome, key, attended"
    " FROM reads WHERE key IS NULL AND"
)
_MAX_NUMBER = 2**63 - 1
_JOURNAL = "journal.jsonl"


class Store:
    """The folder of one server. Close it, or use it as a context manager.

    An owner may have `max_reads` reads with a key before the oldest that have ended are deleted, and an
    interrupted one that nobody listens to is kept for `max_age_seconds`. Raises `SettingsError` if the folder
    cannot be used, has files of others, or another server uses it.
    """

    def __init__(self, folder: Path, max_reads: int = 500, max_age_seconds: float = 7 * 24 * 3600.0) -> None:
        self.folder, self.max_reads, self.max_age_seconds = folder, max_reads, max_age_seconds
        database = Database(folder)
        self._run, self.check_in_place, self.close = database.run, database.check_in_place, database.close
        try:
            for subfolder in (folder / "files", folder / "reads"):
                subfolder.mkdir(mode=0o700, exist_ok=True)
            self._requeue_all()
        except OSError as error:
            raise SettingsError(f"{folder} cannot be used: {reason(error)}") from error

    @classmethod
    def first_free(cls, folders: Sequence[Path]) -> Self:
        """Open the first folder that can be used. Raises `SettingsError` if none can."""
        for folder in folders[:-1]:
            with suppress(SettingsError):
                return cls(folder)
        return cls(folders[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _requeue_all(self) -> None:
        """Requeue what was being read when the last server ended.

        Nobody listens to an attended read now, so it waits until it is begun again.
        """
        change = "UPDATE reads SET state = iif(attended, 'cancelled', 'queued')"
        self._run(change + " WHERE state IN ('queued', 'running')")

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

    def check_room(self, owner: str, most_bytes: int) -> None:
        """Raise `ApiError` if an owner has used up the space on the disk, without journals.

        Chats that nobody listens to any more make room, the oldest first.
        """
        query = "SELECT bytes FROM files WHERE owner = ? UNION ALL SELECT bytes FROM reads WHERE owner = ?"
        while sum(row["bytes"] for row in self._run(query, owner, owner)) >= most_bytes:
            oldest = self._run(
                "SELECT id FROM reads WHERE owner = ? AND key IS NOT NULL"
                " AND state NOT IN ('queued', 'running') ORDER BY number LIMIT 1", owner,
            )  # fmt: skip
            if not oldest:
                message = f"files and reads have reached the limit of {most_bytes:,} bytes: delete some"
                raise ApiError(429, message, "storage_full")
            self.delete_read(oldest[0]["id"])

    # Files

    @storing()
    def add_file(self, owner: str, name: str, purpose: str, content: IO[bytes]) -> StoredFile:
        """Keep a file. Raises `ApiError`."""
        with self._new_folder("file") as folder:
            path = folder / f"content{suffix_of(name)}"
            with write_in_place(path) as temporary, temporary.open("wb") as target:
                shutil.copyfileobj(content, target, 2**20)
            (row,) = self._run(
                "INSERT INTO files (id, owner, name, purpose, bytes, created) VALUES (?, ?, ?, ?, ?, ?)"
                " RETURNING *", folder.name, owner, name, purpose, path.stat().st_size, time.time(),
            )  # fmt: skip
        return StoredFile(**row)

    def file(self, owner: str, id: str) -> StoredFile:
        """The file with this id. Raises `ApiError` if this owner has none."""
        rows = self._run("SELECT * FROM files WHERE id = ? AND owner = ?", id, owner)
        if not rows:
            raise not_found("file", id)
        return StoredFile(**rows[0])

    def files(self, owner: str, limit: int, after: int | None, ascending: bool) -> list[StoredFile]:
        """The files of an owner, ordered by number, from the one after number `after`."""
        return [StoredFile(**row) for row in self._page("* FROM files WHERE", owner, limit, after, ascending)]

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
    def begin_read(
        self,
        owner: str,
        key: str | None,
        request: Mapping[str, Any],
        documents: Sequence[tuple[str, Content]],
        attended: bool = False,
    ) -> Job:
        """Queue a read of documents, each with its name, or return the one that has this key.

        One that failed or was cancelled is queued again; an attended one skips the queue. `request` has the
        `problem`, the `memory` to start from and the `options`, and the document's `fingerprint` if it is of
        files at paths, which stay there. Raises `ApiError`.
        """
        if key:
            if job := self._known(owner, key, attended):
                return job
            self._make_room(owner)
        now = time.time()
        with self._new_folder("read") as folder:
            names = [
                (keep(content, folder, number, name), name)
                for number, (name, content) in enumerate(documents)
            ]
            sync_file(folder)  # links to what is kept already
            record = json.dumps({**request, "documents": names})
            size = sum((folder / path).stat().st_size for path, _ in names if not Path(path).is_absolute())
            rows = self._run(
                "INSERT INTO reads (id, owner, state, created, started, bytes, request, key, attended)"
                " SELECT ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE NOT EXISTS"
                " (SELECT 1 FROM reads WHERE owner = ? AND key = ?) RETURNING *",
                folder.name, owner, _first_state(attended), now, now if attended else None,
                size + len(record), record, key, attended, owner, key,
            )  # fmt: skip
        if rows:
            return make_job(rows[0])
        shutil.rmtree(folder)  # another client was faster
        return self.begin_read(owner, key, request, documents, attended)

    def _known(self, owner: str, key: str, attended: bool) -> Job | None:
        """Find the read with this key, and record that it is no longer attended if it is begun unattended."""
        for row in self._run("SELECT id FROM reads WHERE owner = ? AND key = ?", owner, key):
            self.requeue(row["id"], attended)
            job = self.read(owner, row["id"])
            if job and job.attended and not attended:
                self._run("UPDATE reads SET attended = 0 WHERE id = ?", job.id)
            return job
        return None

    def _make_room(self, owner: str) -> None:
        """Delete the reads with a key that nobody is likely to ask for again."""
        deleted = self._run(
            "DELETE FROM reads WHERE owner = ? AND key IS NOT NULL AND state NOT IN ('queued', 'running') AND"
            " (number <= (SELECT number FROM reads WHERE owner = ? AND key IS NOT NULL"
            " ORDER BY number DESC LIMIT 1 OFFSET ?)"
            " OR attended AND state != 'done' AND coalesce(ended, created) < ?) RETURNING id",
            owner, owner, self.max_reads, time.time() - self.max_age_seconds,
        )  # fmt: skip
        for row in deleted:
            shutil.rmtree(self.folder / "reads" / row["id"], ignore_errors=True)

    def read(self, owner: str, id: str) -> Job | None:
        """The read with this id, if this owner has it."""
        rows = self._run("SELECT * FROM reads WHERE id = ? AND owner = ?", id, owner)
        return make_job(rows[0]) if rows else None

    def contents(self, owner: str, id: str) -> list[tuple[str, Content]]:
        """The file with this id, or the documents of the read with this id, by name. Raises `ApiError`."""
        if job := self.read(owner, id):
            folder = self.folder / "reads" / id
            return [(name, StoredContent(folder / path)) for path, name in job.request["documents"]]
        file = self.file(owner, id)
        return [(file.name, StoredContent(self.path_of(file)))]

    def reads(self, owner: str, limit: int, after: int | None, ascending: bool) -> list[Job]:
        """The reads of an owner as `files` has them, besides chats, and without their large outcomes."""
        return [make_job(row) for row in self._page(_BRIEF_READS, owner, limit, after, ascending)]

    def count_unfinished(self, owner: str) -> int:
        """How many reads of an owner are queued or running."""
        query = "SELECT count(*) AS n FROM reads WHERE owner = ? AND state IN ('queued', 'running')"
        return int(self._run(query, owner)[0]["n"])

    def claim(self, most: int) -> Job | None:
        """Mark the oldest read in the queue as running, unless `most` that were queued are.

        A read of an owner who has none running is taken all the same, before those of others.
        """
        rows = self._run(
            "WITH running AS (SELECT owner, count(*) AS reads FROM reads"
            " WHERE state = 'running' AND NOT attended GROUP BY owner)"
            " UPDATE reads SET state = 'running', started = coalesce(started, ?) WHERE number ="
            " (SELECT number FROM reads LEFT JOIN running USING (owner) WHERE state = 'queued'"
            " AND (running.reads IS NULL OR (SELECT sum(reads) FROM running) < ?)"
            " ORDER BY coalesce(running.reads, 0), number LIMIT 1) RETURNING *", time.time(), most,
        )  # fmt: skip
        return make_job(rows[0]) if rows else None

    def end(
        self, id: str, state: State, outcome: Mapping[str, Any] | None = None, durable: bool = True
    ) -> bool:
        """Record that a read has ended; False if it had already ended, or is gone."""
        return bool(self._run(
            "UPDATE reads SET state = ?, ended = ?, outcome = ?"
            " WHERE id = ? AND state IN ('queued', 'running') RETURNING id",
            state, time.time(), json.dumps(outcome or {}), id, durable=durable,
        ))  # fmt: skip

    def requeue(self, id: str, attended: bool = False) -> bool:
        """Requeue a read that failed or was cancelled; False for any other."""
        return bool(self._run(
            "UPDATE reads SET state = ?, attended = ?, ended = NULL, outcome = '{}'"
            " WHERE id = ? AND state IN ('failed', 'cancelled') RETURNING id",
            _first_state(attended), attended, id,
        ))  # fmt: skip

    def delete_read(self, id: str, durable: bool = True) -> None:
        """Delete a read with its document and its journal."""
        self._run("DELETE FROM reads WHERE id = ?", id, durable=durable)
        shutil.rmtree(self.folder / "reads" / id, ignore_errors=True)

    def journal_of(self, job: Job) -> Path:
        """Where the journal of a read is."""
        return self.folder / "reads" / job.id / _JOURNAL

    def document_of(self, job: Job) -> Document:
        """The document of a read. Raises `DocumentError`, also if it is not the one that was asked about.

        If the user named a folder rather than its files, those without text are left out.
        """
        document = open_stored(self.folder / "reads" / job.id, job.request["documents"])
        if job.request.get("unnamed"):
            document = document.unnamed()
        fingerprint = job.request.get("fingerprint")
        if fingerprint and fingerprint != document.fingerprint:
            raise DocumentError("the files have changed since the question was asked: ask it again")
        return document

    def _page(
        self, selected: str, owner: str, limit: int, after: int | None, ascending: bool
    ) -> list[sqlite3.Row]:
        order, behind, first = ("ASC", ">", 0) if ascending else ("DESC", "<", _MAX_NUMBER)
        query = f"SELECT {selected} owner = ? AND number {behind} ? ORDER BY number {order} LIMIT ?"
        return self._run(query, owner, first if after is None else after, limit)


def _first_state(attended: bool) -> State:
    return "running" if attended else "queued"
