"""Counting: one SELECT over the table `rows`, in memory, that can read nothing else and write nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memagent.errors import SettingsError

MAX_STEPS = 20_000_000
"""How many instructions of SQLite's machine a SELECT may take: a few seconds."""

MAX_RESULTS = 10_000
"""How many rows a result may have."""

_STEPS = 10_000  # between two looks at how many there were
_MAX_BYTES = 1_000_000  # of a value, and of a statement
_FUNCTIONS = frozenset({
    "abs", "avg", "ceil", "ceiling", "coalesce", "count", "date", "dense_rank", "first_value", "floor",
    "glob", "group_concat", "ifnull", "iif", "instr", "julianday", "lag", "last_value", "lead", "length",
    "like", "lower", "ltrim", "max", "min", "nullif", "rank", "round", "row_number", "rtrim", "sign",
    "strftime", "string_agg", "substr", "substring", "sum", "total", "trim", "upper",
})  # fmt: skip


Value = str | float | int | None


@dataclass(frozen=True, slots=True)
class Table:
    """The table `rows`: its columns with their types, and the values of each row."""

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a SELECT returns, and which columns of `rows` it has looked at."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    read: frozenset[str]


def count(sql: str, table: Table) -> QueryResult:
    """The result of one SELECT over `rows`. Blocks, for a few seconds at most.

    Raises `SettingsError` for SQL that is wrong, that does anything else, or that takes too long.
    """
    read = set[str]()
    base = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _fill(base, table)
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_BYTES)
        base.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 10)
        base.set_authorizer(_only_select(read))
        steps = iter(range(MAX_STEPS // _STEPS))
        base.set_progress_handler(lambda: next(steps, None) is None, _STEPS)
        result = base.execute(sql)
        if result.description is None:
            raise SettingsError(f"the SQL must be one SELECT over rows: {sql!r}")
        rows = result.fetchmany(MAX_RESULTS)
        return QueryResult(tuple(column[0] for column in result.description), tuple(rows), frozenset(read))
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        raise SettingsError(f"the SQL cannot be used: {_explain(error)}: {sql!r}") from error
    finally:
        base.close()


def _fill(base: sqlite3.Connection, table: Table) -> None:
    columns = ", ".join(
        f'"{name}" {kind}{" COLLATE NOCASE" if kind == "TEXT" else ""}'
        for name, kind in table.columns.items()
    )
    base.execute(f"CREATE TABLE rows ({columns})")
    marks = ", ".join("?" * len(table.columns))
    values = ([row.get(name) for name in table.columns] for row in table.rows)
    base.execute("BEGIN")
    base.executemany(f"INSERT INTO rows VALUES ({marks})", values)  # noqa: S608 only question marks
    base.execute("COMMIT")


def _only_select(read: set[str]):  # type: ignore[no-untyped-def] # noqa: ANN202
    """Whether a step of a statement may be taken; `read` takes the columns that are looked at."""

    def allow(action: int, first: str | None, second: str | None, _base: str | None, _by: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and first in ("rows", ""):  # "": a subquery's own result
            read.add(second or "")
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    return allow


def _explain(error: Exception) -> str:
    if str(error) == "interrupted":
        return f"it takes more than {MAX_STEPS:,} steps"
    if "not authorized" in str(error) or "prohibited" in str(error):
        return f"it may only SELECT from rows ({error})"
    return str(error)
