"""The row that a question to one file becomes, the record from which a later run continues, and the table.

The record is a log next to the table. An answer belongs to the bytes of a file, not to its name: a file that
is moved or restored is not read again.
"""

from __future__ import annotations

import asyncio
import csv
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from memagent.concurrency import drain
from memagent.documents.files import NoTextError
from memagent.documents.opening import Document
from memagent.errors import DocumentError, EngineError, JournalError, SettingsError, reason
from memagent.reading.api import begin_forecast
from memagent.reading.doubts import doubts_of
from memagent.reading.read import Read
from memagent.reading.sources import NEAREST, Statement, statements_from
from memagent.runs.batch import RunLog, record_failure
from memagent.settings import ReadSettings
from memagent.storage import write_in_place
from memagent.types import NOTHING_SPENT, Engine, Spent, flatten, unflatten

FORMAT = 1

Status = Literal["answered", "no text", "left out", "failed", "not read", "to read"]

_FROM_RESULT = (
    "problem", "workflow", "model", "chunks", "document_tokens", "spent", "cut", "seconds", "stopped_early",
    "trace",
)  # fmt: skip
"""The fields that a row takes from the result of its read."""

_FORMULA = re.compile(r"[=+@\t\r]|-(?!\d+(?:[.,]\d+)*\s*\Z)")
"""The beginning of a cell that a spreadsheet would take for a formula."""


class Seen(NamedTuple):
    """A file as it was when it was last read: its state, and its content.

    `content` identifies its bytes and how they are read; `error` says why it has no text.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    content: str = ""
    error: str = ""


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
        warnings=tuple(_warnings(read, status == "answered")),
    )


def _warnings(read: Read, answered: bool) -> Iterator[str]:
    yield from read.blocks.skipped
    if count := sum(read.blocks.replaced.values()):
        yield f"{count} characters could not be decoded and were read as U+FFFD"
    if answered:
        yield from doubts_of(read)
    if read.progress.spent.estimated:
        yield "the endpoint reported no token usage: tokens and cost are estimates"


def recall(stored: Mapping[str, Any], file: str) -> FileRow:
    """A row from the record, for the file that has this content now. Raises `TypeError` or `KeyError`."""
    statements = tuple(
        replace(
            statement,
            source=statement.source and replace(statement.source, file=file),
            nearest=tuple(replace(passage, file=file) for passage in statement.nearest),
        )
        for statement in statements_from(stored["statements"])
    )
    values = unflatten(stored)
    values |= {"file": file, "statements": statements, "warnings": tuple(stored["warnings"]), "kept": True}
    return FileRow(**values | {"spent": Spent(**values["spent"])})


def open_record(folder: Path | None, claim: bool = True) -> RunLog:
    """The record in a folder, whose lines are found by the keys of answers and by files. Blocks.

    Without a folder, it ends with the process. Raises `SettingsError`.
    """
    record = RunLog(folder and folder / "record.jsonl", _find_keys, claim)
    if "header" not in record:
        record.append({"type": "header", "format": FORMAT})
    return record


def find_seen(record: RunLog, file: str) -> Seen | None:
    """The state of a file that is on record."""
    seen: Seen | None = record.get(("file", file))
    return seen


def see(record: RunLog, file: str, seen: Seen) -> None:
    """Record the state of a file. Blocks."""
    if find_seen(record, file) != seen:
        record.append({"type": "seen", "file": file, "seen": seen._asdict()})


def add_row(record: RunLog, key: str, row: FileRow, seen: Seen) -> None:
    """Record an answer, and the state of its file. Blocks."""
    values = {name: value for name, value in flatten(row).items() if name not in ("cost", "kept")}
    record.append({"type": "row", "key": key, "row": values, "file": row.file, "seen": seen._asdict()})


def _find_keys(line: Mapping[str, Any]) -> Mapping[Hashable, Any]:
    try:
        if line["type"] == "header":
            if line["format"] == FORMAT:
                return {"header": None}
            raise SettingsError(
                f"the record next to the table has format {line['format']}, this version reads {FORMAT}: "
                "name another table"
            )
        seen: dict[Hashable, Any] = {("file", line["file"]): Seen(**line["seen"])}
        if line["type"] == "seen":
            return seen
        recall(line["row"], line["file"])
        return {**seen, line["key"]: None}
    except (TypeError, KeyError) as error:
        raise SettingsError(
            f"the record next to the table is from another memagent version ({error}): name another table"
        ) from error


def table_kind(path: Path) -> str:
    """The format of a table, "csv" or "jsonl", by its name. Raises `SettingsError` for any other name."""
    if (kind := path.suffix.lower()[1:]) in ("csv", "jsonl"):
        return kind
    raise SettingsError(f"the table {path} must end in .csv or .jsonl: rename it")


def write_table(path: Path, rows: Iterable[FileRow]) -> None:
    """Write the table, whole or not at all. Raises `SettingsError` if it cannot be written."""
    write_records(path, _COLUMNS, map(_cells, rows), map(flatten, rows))


def write_records(
    path: Path,
    columns: Sequence[str],
    cells: Iterable[Mapping[str, object]],
    objects: Iterable[Mapping[str, Any]],
) -> None:
    """Write a table whole or not at all: `cells` under `columns` as CSV, or `objects` as JSON lines.

    No spreadsheet takes a cell for a formula: an apostrophe marks it as text. Raises `SettingsError` if the
    table cannot be written.
    """
    kind = table_kind(path)
    try:
        # Without its mark at the beginning, spreadsheets do not recognise UTF-8.
        encoding = "utf-8-sig" if kind == "csv" else "utf-8"
        with (
            write_in_place(path) as temporary_path,
            temporary_path.open("w", encoding=encoding, errors="replace", newline="") as file,
        ):
            if kind == "csv":
                values = ([row[name] for name in columns] for row in cells)
                lines = ([f"'{cell}" if _is_formula(cell) else cell for cell in row] for row in values)
                csv.writer(file).writerows([list(columns), *lines])
            else:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {reason(error)}") from error


_COLUMNS = (
    "file", "problem", "status", "answer", "sources", "error", "warnings", "calls", "prompt_tokens",
    "cached_tokens", "completion_tokens", "cost", "seconds",
)  # fmt: skip


def _cells(row: FileRow) -> dict[str, object]:
    """The cells of a row."""
    sources = [line for statement in row.statements for line in _source_lines(statement)]
    return flatten(row) | {"sources": "\n".join(sources), "warnings": "\n".join(row.warnings)}


def _is_formula(value: object) -> bool:
    return isinstance(value, str) and _FORMULA.match(value) is not None


def _source_lines(statement: Statement) -> Iterator[str]:
    """A statement's source, or its nearest passages, each on a line."""
    known = [(statement.source, "")] if statement.source else []
    for source, prefix in known or [(passage, f"{NEAREST}: ") for passage in statement.nearest]:
        page = "" if source.page is None else f"page {source.page}, "
        yield f"{prefix}{page}characters {source.start} to {source.end}: {source.excerpt!r}"
    if not (known or statement.nearest):
        yield f"nothing in the file says: {statement.text}"
