"""Ask each of many files a question, side by side; read only what is new or changed.

An answer is written to disk as soon as it is known; interrupted reads continue from their journals. A file
that cannot be read becomes a row with its error, and the run continues. Answers are not combined.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from memagent.documents.files import FileState, NoTextError, look_at
from memagent.documents.opening import Document, text_document
from memagent.documents.paths import escape_path, find_files, natural, read_error
from memagent.engines import open_engine
from memagent.engines.endpoint import UnreachableError
from memagent.engines.wrappers import Spending
from memagent.errors import DocumentError, SettingsError, SpendingLimitError
from memagent.reading.read import Read
from memagent.runs.batch import RunLog, record_failure, run_batch
from memagent.runs.files import (
    FileRow,
    OneFile,
    Seen,
    Status,
    add_row,
    find_seen,
    open_record,
    read_file,
    recall,
    see,
    table_kind,
    write_table,
)
from memagent.settings import Settings, load_settings
from memagent.types import Engine

_STOPS = (SpendingLimitError.__name__, UnreachableError.__name__)
"""Errors that end a run: no other file would fare better."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file's path and its name in the table; `refusal` says why it must not be read, if so."""

    path: Path
    name: str
    refusal: str = ""


Item = tuple[FoundFile, str]
"""A file, and a question to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Questions to each of many files.

    `paths` are files, folders and patterns. `out` is the table (.csv or .jsonl), written when the run ends,
    however it ends; a hidden folder next to it holds the record from which the next run continues. Without
    `out`, nothing is kept. Journals are deleted once they have led to an answer, unless `journals` says where
    to keep them. `verify` also rereads files whose size and times are unchanged. `max_tokens` and `max_cost`
    end the run before it costs more. `ray` is the address of a Ray cluster to spread the files over; each of
    its machines must see them. In a `dry_run` no model is asked and nothing is written: rows say what reading
    takes at most. `on_begin` is called with the number of rows to come.
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
    dry_run: bool = False
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
    spending, writes = survey.spending, not survey.dry_run
    files = await asyncio.to_thread(_find_files, survey)
    async with nullcontext(engine) if engine else open_engine(survey.settings.engine) as opened:
        identities = await _identities(survey, opened)
        with await asyncio.to_thread(open_record, survey.folder, claim=writes) as record:
            items = [(file, problem) for file in files for problem in survey.problems]
            run = _FileRun(survey, items, record, identities)
            survey.on_begin(len(items))
            limited, ray = spending.limit(opened), survey.ray if writes else None
            batch = run_batch(items, read_file, run.take, limited, survey.settings.engine, ray)
            try:
                async with aclosing(batch) as rows:
                    async for row in rows:
                        yield row
            finally:
                if survey.out and writes:
                    await asyncio.to_thread(write_table, survey.out, run.table())


def _find_files(survey: Survey) -> list[FoundFile]:
    """The files to ask, each once and in order. Blocks.

    Raises `DocumentError` if there are none, or for a path that does not exist, and `SettingsError` for a
    table that is not ours.
    """
    out, folder = survey.out, survey.folder
    if out and folder:
        table_kind(out)
        if out.exists() and not folder.exists():
            raise SettingsError(f"{out} is not a memagent table and would be overwritten: name another")
    if not survey.problems or len(set(survey.problems)) < len(survey.problems):
        raise SettingsError("which question? give at least one, and each only once")
    left_out = [os.path.realpath(path) for path in (out, survey.journals) if path]
    files: dict[str, FoundFile] = {}
    for path in sorted(survey.paths, key=natural):  # a shell lists contract10 before contract2
        if path == "-":
            raise DocumentError("standard input is one document: name files or folders to ask each")
        for file in find_files(path, survey.follow_links):
            if file.named and not os.path.lexists(file.path):
                raise DocumentError(f"{escape_path(file.path)} cannot be read: No such file or directory")
            real = os.path.realpath(file.path)
            if not any(Path(real).is_relative_to(excluded) for excluded in left_out):
                files.setdefault(real, FoundFile(file.path.absolute(), escape_path(file.path), file.refusal))
    if not files:
        names = ", ".join(map(escape_path, survey.paths)) or "the arguments"
        raise DocumentError(f"no file in {names}: name another folder")
    return list(files.values())


async def _identities(survey: Survey, engine: Engine) -> dict[str, Mapping[str, Any]]:
    """What each question's answers depend on besides the file. Raises `SettingsError` as a read would."""
    settings, nothing = survey.settings.read, text_document("")
    return {
        problem: {**await Read(problem, nothing, engine, settings).identity(), "cite": settings.cite}
        for problem in survey.problems
    }


@dataclass
class _FileRun:
    """One run over the files; `stopped` says why nothing more is read, and is empty while it continues."""

    survey: Survey
    items: Sequence[Item]
    record: RunLog
    identities: Mapping[str, Mapping[str, Any]]
    stopped: str = ""
    _known: dict[Item, str | FileRow] = field(default_factory=dict)  # keys of answers, or else the rows

    async def take(self, read: Callable[[OneFile], Awaitable[FileRow]], item: Item) -> FileRow:
        """The row of an item; `read` reads the file if it has to be read."""
        with record_failure(DocumentError) as failure:
            outcome = await asyncio.to_thread(self._look, item)
        if failure:
            row = _without_answer(item, "failed", failure.error, failure.cause)
        elif isinstance(outcome, FileRow):
            row = outcome
        else:
            row = await asyncio.to_thread(self._keep, item, *outcome, await read(outcome[1]))
        self._known.setdefault(item, row)
        return row

    def table(self) -> Iterator[FileRow]:
        """All rows in the files' order. A file that this run did not reach keeps its answer if unchanged."""
        for item in self.items:
            known = self._known.get(item)
            if known is None:
                with suppress(OSError):
                    known = self._recall(item, FileState.of(item[0].path))
            if isinstance(known, str):
                known = self._answer(item, known)
            yield known or _without_answer(item, "not read", self.stopped or "the run was stopped")

    def _look(self, item: Item) -> FileRow | tuple[Seen, OneFile]:
        """The row of an item if it is known without a model, or else what to read. Blocks."""
        survey, (file, problem) = self.survey, item
        if file.refusal:
            return _without_answer(item, "left out", file.refusal)
        try:
            now = FileState.of(file.path)
        except OSError as error:
            raise read_error(file.name, error) from error
        if not survey.verify and (row := self._recall(item, now)):
            return row
        seen, document = identify(file, now)
        if row := self._row_of(item, seen):
            see(self.record, file.name, seen)
            return row
        if self.stopped:
            return _without_answer(item, "not read", self.stopped)
        trace = self._trace(file, key_of(seen.content, self.identities[problem]))
        return seen, OneFile(document, problem, survey.settings.read, trace, survey.dry_run)

    def _recall(self, item: Item, now: FileState) -> FileRow | None:
        """The row of a file that is in the state on record; None if it has to be opened. Blocks."""
        seen = find_seen(self.record, item[0].name)
        return self._row_of(item, seen) if seen and seen[:3] == astuple(now) else None

    def _row_of(self, item: Item, seen: Seen) -> FileRow | None:
        """The row that follows from what a file holds; None if it has to be read. Blocks."""
        file, problem = item
        if seen.error:
            return _without_answer(item, "no text", seen.error)
        key = key_of(seen.content, self.identities[problem])
        if key not in self.record:
            return None
        self._drop(self._trace(file, key))  # in case a crash came between the answer and this
        return self._answer(item, key)

    def _answer(self, item: Item, key: str) -> FileRow:
        """The answer that is on record, at today's prices. Blocks."""
        self._known[item] = key
        row = recall(self.record.get(key)["row"], item[0].name)
        return replace(row, spent=replace(row.spent, cost=self.survey.settings.read.cost(row.spent)))

    def _keep(self, item: Item, seen: Seen, file: OneFile, row: FileRow) -> FileRow:
        """Record the row of a file that was just read. Blocks."""
        if row.cause in _STOPS:
            self.stopped = self.stopped or f"the run was stopped: {row.error}"
        if row.cause == SpendingLimitError.__name__:
            return replace(row, status="not read", error=self.stopped, cause=None)
        if row.status == "no text":
            see(self.record, row.file, seen._replace(content="", error=row.error or ""))
        elif row.status == "answered":
            row = row if self.survey.journals else replace(row, trace=None)
            self._known[item] = key = key_of(seen.content, self.identities[row.problem])
            add_row(self.record, key, row, seen)
        if row.status != "failed":
            self._drop(file.trace)
        return row

    def _trace(self, file: FoundFile, key: str) -> Path | None:
        """The path of a read's journal; copies of a file, read side by side, have their own."""
        folder = self.survey.journals or (self.survey.folder and self.survey.folder / "journals")
        if folder is None or self.survey.dry_run:
            return None
        label = re.sub(r"[^A-Za-z0-9.]+", "-", file.name)[-80:].strip("-.")
        whole = hashlib.sha256(f"{key} {file.name}".encode("utf-8", "backslashreplace")).hexdigest()
        return folder.absolute() / f"{label}-{whole[:16]}.jsonl"

    def _drop(self, trace: Path | None) -> None:
        """Delete a journal that has led to an answer, unless journals are kept. Blocks."""
        if trace and not self.survey.journals:
            trace.unlink(missing_ok=True)


def _without_answer(item: Item, status: Status, error: str | None, cause: str | None = None) -> FileRow:
    file, problem = item
    return FileRow(file=file.name, problem=problem, status=status, error=error, cause=cause)


def identify(file: FoundFile, now: FileState) -> tuple[Seen, Document]:
    """What a file in this state holds, and the document that it is, which is empty if it has no text.

    Reads the whole file. Blocks. Raises `DocumentError`.
    """
    state = asdict(now.to_keep())
    try:
        source = look_at(file.path, file.name, named=True)
    except NoTextError as error:
        return Seen(**state, error=str(error)), Document(())
    document = Document((source,))
    content = f"{document.fingerprint} {source.format} {source.encoding} {source.gzipped}"
    return Seen(**state, content=content), document


def key_of(content: str, identity: Mapping[str, Any]) -> str:
    """The key of an answer, made from the content that was read and everything else the answer depends on."""
    whole = json.dumps([content, identity], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()[:32]
