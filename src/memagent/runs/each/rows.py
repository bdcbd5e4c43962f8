"""A question to one file and the row that it becomes, on record too; and the table of all rows."""

from __future__ import annotations

import asyncio
import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memagent.concurrency import drain
from memagent.documents.files import NoTextError
from memagent.documents.opening import Document
from memagent.errors import DocumentError, EngineError, JournalError, SettingsError, reason
from memagent.reading.forecast import begin_forecast
from memagent.reading.read import Read, Result
from memagent.reading.sources import NEAREST, Source, Statement, statements_from
from memagent.runs.batch import record_failure
from memagent.settings import ReadSettings
from memagent.storage import write_in_place
from memagent.types import NOTHING_SPENT, Engine, Spent, flatten, unflatten

Status = Literal["answered", "no text", "left out", "failed", "not read", "to read"]

_FROM_RESULT = (
    "problem", "workflow", "model", "chunks", "document_tokens", "spent", "cut", "seconds", "stopped_early",
    "trace",
)  # fmt: skip
"""What a row has from the result of its read."""

_FORMULA = re.compile(r"[=+@\t\r]|-(?!\d+(?:[.,]\d+)*\s*\Z)")
"""The beginning of a cell that a spreadsheet would take for a formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """The result of one question to one file.

    `status`: "answered"; "no text" for a file that has none (`error` says why); "left out" for a link that
    leads out of its folder; "failed", with the `error` and its class as `cause`; "not read" if the run was
    stopped before; "to read" in a dry run, with what that takes at most. `warnings` tell what could not be
    read of the file, and of replies that were cut. `kept` says that the answer is from an earlier run. The
    rest is as in `Result`, the cost at today's prices.
    """

    file: str
    problem: str
    status: Status
    answer: str = ""
    statements: tuple[Statement, ...] = ()
    error: str | None = None
    cause: str | None = None
    warnings: tuple[str, ...] = ()
    workflow: str | None = None
    model: str | None = None
    chunks: int = 0
    document_tokens: int = 0
    spent: Spent = NOTHING_SPENT
    cut: int = 0
    seconds: float = 0.0
    stopped_early: bool = False
    trace: str | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class OneFile:
    """A file to read for a question; its journal goes to `trace`, or is continued there.

    In a `dry_run`, no model is asked: the row says what the read takes at most.
    """

    document: Document
    problem: str
    settings: ReadSettings
    trace: Path | None
    dry_run: bool = False


async def read_file(engine: Engine, file: OneFile) -> FileRow:
    """Read one file for one question, on a machine of a cluster too; a failure becomes a row.

    Raises `SettingsError` for what concerns all files.
    """
    document, problem, settings = file.document, file.problem, file.settings
    if file.dry_run:
        read = await asyncio.to_thread(begin_forecast, problem, document, engine.model, settings)
    else:
        read = Read(problem, document, engine, settings, trace=file.trace, resume=True)
    with record_failure(DocumentError, EngineError, JournalError) as failure:
        await drain(aiter(read))
    done = read.result
    status: Status = "to read" if file.dry_run else "answered"
    if failure:
        status = "no text" if failure.cause == NoTextError.__name__ else "failed"
    return FileRow(
        **{name: getattr(done, name) for name in _FROM_RESULT},
        file=document.sources[0].name,
        status=status,
        answer="" if failure else done.answer,
        statements=() if failure else done.statements,
        error=failure.error,
        cause=failure.cause,
        warnings=tuple(_warnings(read, done, bool(failure))),
    )


def _warnings(read: Read, done: Result, failed: bool) -> Iterator[str]:
    yield from read.found.skipped
    if count := sum(read.found.replaced.values()):
        yield f"{count} characters could not be decoded and were read as U+FFFD"
    if not (failed or done.found):
        yield "no answer was found"
    elif done.doubtful:
        yield "the file has little of what the question names"
    if done.cut:
        yield f"{done.cut} of {done.spent.calls} replies were cut at their token budget"
    if done.passed_over:
        yield f"{done.passed_over} of {done.chunks} chunks were passed over (screen)"
    if done.spent.estimated:
        yield "the endpoint reported no token usage: tokens and cost are estimates"


def recorded(row: FileRow) -> dict[str, Any]:
    """A row as it is recorded."""
    return {name: value for name, value in flatten(row).items() if name not in ("cost", "kept")}


def recalled(found: Mapping[str, Any], file: str) -> FileRow:
    """A row from the record, for the file that has this content now. Raises `TypeError` or `KeyError`."""
    statements = tuple(
        replace(
            it,
            source=it.source and replace(it.source, file=file),
            nearest=tuple(replace(passage, file=file) for passage in it.nearest),
        )
        for it in statements_from(found["statements"])
    )
    values = unflatten(found)
    values |= {"file": file, "statements": statements, "warnings": tuple(found["warnings"]), "kept": True}
    return FileRow(**values | {"spent": Spent(**values["spent"])})


def table_kind(path: Path) -> str:
    """The format of a table, "csv" or "jsonl", by its name. Raises `SettingsError` for any other name."""
    if (kind := path.suffix.lower()[1:]) in ("csv", "jsonl"):
        return kind
    raise SettingsError(f"the table {path} must end in .csv or .jsonl: rename it")


def write_table(path: Path, rows: Iterable[FileRow]) -> None:
    """Write the table, whole or not at all. Raises `SettingsError` if it cannot be written."""
    kind = table_kind(path)
    try:
        with (
            write_in_place(path) as made,
            made.open("w", encoding="utf-8", errors="replace", newline="") as file,
        ):
            if kind == "jsonl":
                file.writelines(json.dumps(flatten(row), ensure_ascii=False) + "\n" for row in rows)
            else:
                file.write("\ufeff")  # without it, spreadsheets do not recognise UTF-8
                csv.writer(file).writerows(_cells(rows))
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {reason(error)}") from error


_COLUMNS = (
    "file", "problem", "status", "answer", "sources", "error", "warnings", "calls", "prompt_tokens",
    "cached_tokens", "completion_tokens", "cost", "seconds",
)  # fmt: skip


def _cells(rows: Iterable[FileRow]) -> Iterator[list[object]]:
    yield list(_COLUMNS)
    for row in rows:
        cells = flatten(row) | {
            "sources": "\n".join(line for it in row.statements for line in _places(it)),
            "warnings": "\n".join(row.warnings),
        }
        yield [_harmless(cells[name]) for name in _COLUMNS]


def _places(statement: Statement) -> list[str]:
    """A statement's source, or its nearest passages, each on a line."""
    if statement.source:
        return [_place(statement.source)]
    near = [f"{NEAREST}: {_place(it)}" for it in statement.nearest]
    return near or [f"nothing in the file says: {statement.text}"]


def _place(source: Source) -> str:
    page = "" if source.page is None else f"page {source.page}, "
    return f"{page}characters {source.start} to {source.end}: {source.excerpt!r}"


def _harmless(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula: an apostrophe marks it as text."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
