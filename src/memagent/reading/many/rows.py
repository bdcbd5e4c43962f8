"""The results of a question to each of many files: one row per file, and the table of all rows."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memagent.errors import SettingsError, reason
from memagent.reading.sources import NEAREST, Source, Statement, statements_from
from memagent.storage import write_in_place
from memagent.types import NOTHING_SPENT, Spent, flatten, unflatten

Status = Literal["answered", "no text", "left out", "failed", "not read"]

_FORMULA = re.compile(r"[=+@\t\r]|-(?!\d+(?:[.,]\d+)*\s*\Z)")
"""The beginning of a cell that a spreadsheet would take for a formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """The result of one question to one file.

    `status`: "answered"; "no text" for a file that has none (`error` says why); "left out" for a link that
    leads out of its folder; "failed", with the `error` and its class as `cause`; "not read" if the run was
    stopped before. `warnings` tell what could not be read of the file, and of replies that were cut. `kept`
    says that the answer is from an earlier run. The rest is as in `Result`, the cost at today's prices.
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


def table_kind(path: Path) -> Literal["csv", "jsonl"]:
    """The format of a table, by its name. Raises `SettingsError` for any other name."""
    match path.suffix.lower():
        case ".csv":
            return "csv"
        case ".jsonl":
            return "jsonl"
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
