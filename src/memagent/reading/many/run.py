"""Ask each of many files a question, side by side; read only what is new or changed.

An answer is written to disk as soon as it is known; interrupted reads continue from their journals. A file
that cannot be read becomes a row with its error, and the run goes on. Answers are not combined.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import resource
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from memagent.concurrency import side_by_side
from memagent.documents.files import FileState
from memagent.documents.opening import text_document
from memagent.engines import open_engine
from memagent.engines.cluster import connect
from memagent.engines.endpoint import UnreachableError
from memagent.engines.wrappers import Spending
from memagent.errors import DocumentError, SettingsError, SpendingLimitError, without_secrets
from memagent.reading.many.files import FoundFile, Look, find, look, unchanged
from memagent.reading.many.one_file import OneFile, ReadFile, read_file
from memagent.reading.many.record import Record, Seen, key_of
from memagent.reading.many.rows import FileRow, Status, table_kind, write_table
from memagent.reading.read import Read
from memagent.settings import Settings, load_settings
from memagent.types import Engine

_STOPS = (SpendingLimitError.__name__, UnreachableError.__name__)
"""Errors that end a run: no other file would fare better."""

_OTHER_FILES, _FILES_A_READ = 64, 4
"""How many open files to leave for everything else, and how many one read may need at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Questions to each of many files.

    `paths` are files, folders and patterns. `out` is the table (.csv or .jsonl), written when the run ends,
    however it ends; a hidden folder next to it holds the record from which the next run continues. Without
    `out`, nothing is kept. Journals are deleted once they have led to an answer, unless `journals` says where
    to keep them. `verify` also rereads files whose size and times are unchanged. `max_tokens` and `max_cost`
    end the run before it costs more. `ray` is the address of a Ray cluster to spread the files over; each of
    its machines must see them. `on_begin` is called with the number of rows to come.
    """

    problems: tuple[str, ...]
    paths: tuple[str, ...]
    settings: Settings = field(default_factory=load_settings)
    out: Path | None = None
    journals: Path | None = None
    follow_links: bool = False
    verify: bool = False
    max_tokens: int | None = None
    max_cost: float | None = None
    ray: str | None = None
    on_begin: Callable[[int], None] = lambda _rows: None

    @property
    def folder(self) -> Path | None:
        """The folder of the record; None without `out`."""
        return self.out.with_name(f".{self.out.name}.memagent") if self.out else None

    @property
    def spending(self) -> Spending:
        """What the run may cost. Raises `SettingsError` for a limit that cannot be enforced."""
        if self.ray and not (self.max_tokens is None and self.max_cost is None):
            raise SettingsError("limits work on one machine only: leave out `ray`, or the limits")
        return Spending(self.settings.read, self.max_tokens, self.max_cost)


async def read_each(survey: Survey, engine: Engine | None = None) -> AsyncGenerator[FileRow, None]:
    """Ask each file each question, and yield each row as soon as it is known.

    Without an `engine`, the one that the settings ask for is opened, and closed at the end. Raises
    `SettingsError` and `DocumentError` for what does not concern a single file, before the first call; and
    `SettingsError` later if the record cannot be written.
    """
    spending = survey.spending
    files = await asyncio.to_thread(found_files, survey)
    async with nullcontext(engine) if engine else open_engine(survey.settings.engine) as opened:
        identities = await identities_of(survey, opened)
        with await asyncio.to_thread(Record, survey.folder) as record:
            run = _Run(survey, files, record, identities)
            survey.on_begin(len(run.items))
            try:
                async with (
                    _readers(survey, spending.limit(opened)) as readers,
                    aclosing(run.rows(*readers)) as rows,
                ):
                    async for row in rows:
                        yield row
            finally:
                if survey.out:
                    await asyncio.to_thread(write_table, survey.out, run.table())


@asynccontextmanager
async def _readers(survey: Survey, engine: Engine) -> AsyncIterator[tuple[ReadFile, int]]:
    """What reads a file, here or on the machines of a cluster, and how many files at a time."""
    if survey.ray is None:
        yield partial(read_file, engine), min(engine.model.calls, room_for_reads())
        return
    async with connect(survey.ray, survey.settings.engine, read_file, engine.model.calls) as dealer:
        yield dealer, dealer.size


def found_files(survey: Survey) -> list[FoundFile]:
    """The files to ask. Blocks. Raises `DocumentError`, and `SettingsError` for a table that is not ours."""
    out, folder = survey.out, survey.folder
    if out and folder:
        table_kind(out)
        if out.exists() and not folder.exists():
            raise SettingsError(f"{out} is not a memagent table and would be overwritten: name another")
    if not survey.problems or len(set(survey.problems)) < len(survey.problems):
        raise SettingsError("which question? give at least one, and each only once")
    return find(survey.paths, survey.follow_links, [it for it in (out, survey.journals) if it])


async def identities_of(survey: Survey, engine: Engine) -> dict[str, Mapping[str, Any]]:
    """What each question's answers depend on besides the file. Raises `SettingsError` as a read would."""
    settings, nothing = survey.settings.read, text_document("")
    return {
        problem: {**await Read(problem, nothing, engine, settings).identity(), "cite": settings.cite}
        for problem in survey.problems
    }


class _Run:
    """One run over the files."""

    def __init__(
        self,
        survey: Survey,
        files: list[FoundFile],
        record: Record,
        identities: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.survey, self.record, self.identities = survey, record, identities
        self.items = [(file, problem) for file in files for problem in survey.problems]
        self.stopped = ""
        """Why nothing more is read; empty while the run goes on."""
        self._known: dict[tuple[str, str], str | FileRow] = {}  # keys of answers, or else the rows

    async def rows(self, read: ReadFile, at_once: int) -> AsyncGenerator[FileRow, None]:
        """The rows, as soon as they are known; `read` reads the files that have to be read."""
        await asyncio.to_thread(self._drop_journals)
        row_of = partial(self._row, read)
        async with aclosing(side_by_side(row_of, self.items, at_once, ordered=False)) as rows:
            async for row in rows:
                yield row

    def table(self) -> Iterator[FileRow]:
        """All rows in the files' order. A file that this run did not reach keeps its answer if unchanged."""
        for file, problem in self.items:
            known = self._known.get((file.name, problem)) or self._unchanged(file, problem)
            yield self._answer(known, file) if isinstance(known, str) else known

    def _unchanged(self, file: FoundFile, problem: str) -> str | FileRow:
        """What is on record for a file in an unchanged state; otherwise, a row that says "not read"."""
        with suppress(OSError):
            if known := unchanged(file, FileState.of(file.path), self.identities[problem], self.record):
                return known.key or _without_answer(file, problem, "no text", known.error)
        return _without_answer(file, problem, "not read", self.stopped or "the run was stopped")

    async def _row(self, read: ReadFile, item: tuple[FoundFile, str]) -> FileRow:
        file, problem = item
        if file.refusal:
            return self._note(_without_answer(file, problem, "left out", file.refusal))
        identity, verify = self.identities[problem], self.survey.verify
        try:
            found = await asyncio.to_thread(look, file, identity, self.record, verify)
        except DocumentError as error:
            row = _without_answer(file, problem, "failed", without_secrets(str(error)))
            return self._note(replace(row, cause=type(error).__name__))
        if found.document is None:
            await asyncio.to_thread(self.record.see, file.name, found.seen)
            if found.error:
                return self._note(_without_answer(file, problem, "no text", found.error))
            self._known[file.name, problem] = found.key
            return await asyncio.to_thread(self._answer, found.key, file)
        if self.stopped:
            return self._note(_without_answer(file, problem, "not read", self.stopped))
        trace = self._trace(file, found.key)
        row = await read(OneFile(found.document, problem, self.survey.settings.read, trace))
        return await self._taken(row, file, found, trace)

    async def _taken(self, row: FileRow, file: FoundFile, found: Look, trace: Path | None) -> FileRow:
        """Put the row of a file that was just read on record."""
        problem = row.problem
        if row.cause in _STOPS:
            self.stopped = self.stopped or f"the run was stopped: {row.error}"
        if row.cause == SpendingLimitError.__name__:
            return self._note(replace(row, status="not read", error=self.stopped, cause=None))
        if row.status == "no text":
            seen = Seen(found.seen.state, error=row.error or "")
            await asyncio.to_thread(self.record.see, file.name, seen)
        elif row.status == "answered":
            row = row if self.survey.journals else replace(row, trace=None)
            await asyncio.to_thread(self.record.add, found.key, row, found.seen)
        if row.status != "failed" and trace and not self.survey.journals:
            await asyncio.to_thread(trace.unlink, missing_ok=True)
        if row.status != "answered":
            return self._note(row)
        self._known[file.name, problem] = found.key
        return row

    def _answer(self, key: str, file: FoundFile) -> FileRow:
        row = self.record.row(key, file.name)
        cost = self.survey.settings.read.cost(row.spent)
        return replace(row, spent=replace(row.spent, cost=cost))

    def _note(self, row: FileRow) -> FileRow:
        self._known[row.file, row.problem] = row
        return row

    def _trace(self, file: FoundFile, key: str) -> Path | None:
        """The path of a read's journal; copies of a file, read side by side, have their own."""
        folder = self.survey.journals or (self.survey.folder and self.survey.folder / "journals")
        if folder is None:
            return None
        label = re.sub(r"[^A-Za-z0-9.]+", "-", file.name)[-80:].strip("-.")
        whole = hashlib.sha256(f"{key} {file.name}".encode("utf-8", "backslashreplace")).hexdigest()
        return folder.absolute() / f"{label}-{whole[:16]}.jsonl"

    def _drop_journals(self) -> None:
        """Delete journals whose answers are on record: a crash came between the two."""
        if self.survey.journals or not (folder := self.survey.folder):
            return
        left = {path.name for path in (folder / "journals").glob("*.jsonl")}
        if not left:
            return
        for file, problem in self.items:
            known = self.record.seen.get(file.name)
            if known and known.content:
                key = key_of(known.content, self.identities[problem])
                if key in self.record and (trace := self._trace(file, key)) and trace.name in left:
                    trace.unlink(missing_ok=True)


def room_for_reads() -> int:
    """How many reads may run at once without exceeding the limit of open files."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return 10_000
    return max(1, (allowed - _OTHER_FILES) // _FILES_A_READ)


def _without_answer(file: FoundFile, problem: str, status: Status, error: str) -> FileRow:
    return FileRow(file=file.name, problem=problem, status=status, error=error)
