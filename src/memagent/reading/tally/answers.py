"""The answer of a tally: what the SELECT counts, in words by a fixed form, and how much was read for it.

Amounts of different currencies are never added: a SELECT that looks at money counts each currency for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from memagent.reading.tally.counting import QueryResult, Table, Value, count
from memagent.reading.tally.names import settle_names
from memagent.reading.tally.plan import CURRENCY, MEASURED, Field, Plan
from memagent.reading.tally.rows import Row
from memagent.reading.tally.values import Meaning, date_order, parse

MAX_LINES = 100
"""How many lines of a result an answer has; the table has all."""

_Cells = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was read, and what became of it.

    Of `chunks`, some were `passed_over` (`screen`), of some `failed` a reply that could be used. `rows` count
    those that are in the table, `refused` those that the text does not state, or whose passage was judged to
    state no such row, `merged` those read twice, `unparsed` the values that mean nothing to code,
    `from_tables` the rows that no model has read.
    """

    chunks: int = 0
    passed_over: int = 0
    failed: int = 0
    rows: int = 0
    refused: int = 0
    merged: int = 0
    unparsed: int = 0
    from_tables: int = 0

    def __str__(self) -> str:
        rows, read = _several(self.rows, "row"), self.chunks - self.passed_over - self.failed
        text = f"Counted from {rows}, in {read:,} of {_several(self.chunks, 'chunk')}"
        notes = (
            (self.failed, "chunk", "could not be read, so rows may be missing"),
            (self.passed_over, "chunk", "passed over"),
            (self.refused, "row", "refused, as the text states too little of them or something else"),
            (self.unparsed, "value", "not understood, so left out"),
        )
        remarks = [f"{_several(number, noun)} {remark}" for number, noun, remark in notes if number]
        return "; ".join([text, *remarks]) + "."


def answer(
    plan: Plan, rows: Sequence[Row], coverage: Coverage, exact_names: bool
) -> tuple[str, dict[str, Any]]:
    """The answer in words, and the table that it comes from, as JSON. Blocks. Raises `SettingsError`."""
    meanings = {field.name: _meanings(field, rows) for field in plan.fields}
    names = dict[str, dict[str, str]]()
    for field in plan.fields:
        if field.type == "text" and not exact_names:
            column = meanings[field.name]
            texts = [str(meaning.value) if meaning and meaning.value else None for meaning in column]
            settled, taken = settle_names(texts, [row.source.excerpt for row in rows])
            meanings[field.name] = [
                Meaning(name) if name else meaning for name, meaning in zip(settled, column, strict=True)
            ]
            names |= {field.name: taken} if taken else {}
    cells = [
        _cells(plan, {name: column[number] for name, column in meanings.items()})
        for number in range(len(rows))
    ]
    unparsed = [
        [name for name in row.values if own.get(name) is None] for row, own in zip(rows, cells, strict=True)
    ]
    results = _count(plan, cells)
    complete = replace(coverage, unparsed=sum(map(len, unparsed)))
    table = {
        "plan": plan.model_dump(mode="json"),
        "results": [
            {"currency": unit, **asdict(result), "read": sorted(result.read)}
            for unit, result in results.items()
        ],
        "coverage": asdict(complete),
        "names": names,
        "rows": [_written(row, own, bad) for row, own, bad in zip(rows, cells, unparsed, strict=True)],
    }
    text = _words(results) if rows else "No row was found."
    merged = [
        f"{one} = {other}"
        for same in names.values()
        for one, other in same.items()
        if one.casefold() != other.casefold()
    ]
    notes = [str(complete), *([f"Taken for the same: {'; '.join(merged)}."] if merged else [])]
    return "\n\n".join([text, " ".join(notes)]), table


def _meanings(field: Field, rows: Sequence[Row]) -> list[Meaning | None]:
    """What the values of a field mean; None where a row has none."""
    kind, name = field.type, field.name
    order = date_order(row.values[name] for row in rows if name in row.values) if kind == "date" else ""
    return [parse(kind, row.values[name], order) if name in row.values else None for row in rows]


def _cells(plan: Plan, meanings: Mapping[str, Meaning | None]) -> _Cells:
    """A row as the table `rows` has it."""
    cells = _Cells()
    for field in plan.fields:
        meaning = meanings[field.name]
        cells[field.name] = meaning.value if meaning else None
        if field.type in MEASURED:
            cells[field.name + CURRENCY] = meaning.currency if meaning else None
    return cells


def _written(row: Row, cells: _Cells, unparsed: list[str]) -> dict[str, Any]:
    """A row as the table is written: a value that does not parse is as the text has it, and named."""
    values = {**cells, **{name: row.values[name] for name in unparsed}}
    return {"values": values, "unparsed": unparsed, "source": asdict(row.source)}


def _count(plan: Plan, cells: Sequence[_Cells]) -> dict[str, QueryResult]:
    """The results of the SELECT by currency; by "" if it looks at no money, or there is only one currency."""
    whole = count(plan.sql, Table(plan.columns, cells))
    money = [field.name for field in plan.fields if field.type in MEASURED and field.name in whole.read]
    units = dict[str, list[_Cells]]()
    for row in cells:
        own = {str(row[name + CURRENCY] or "?") for name in money if row[name] is not None}
        units.setdefault("/".join(sorted(own)), []).append(row)
    if len(units.keys() - {""}) < 2:
        unit = next(iter(units.keys() - {"", "?"}), "")
        return {unit: whole}
    counted = {unit: count(plan.sql, Table(plan.columns, rows)) for unit, rows in sorted(units.items())}
    return {
        unit: result
        for unit, result in counted.items()
        if any(value is not None for row in result.rows for value in row)
    }


def _words(results: Mapping[str, QueryResult]) -> str:
    """The results in words; those of each currency under its name."""
    parts = []
    for unit, counted in results.items():
        text = "\n".join(_lines(counted)) or "No row matches."
        head = {"": "", "?": "Without a currency"}.get(unit, f"In {unit}")
        parts.append(f"{head}:{chr(10) if len(counted.rows) > 1 else ' '}{text}" if head else text)
    return "\n".join(parts) or "No row matches."


def _lines(result: QueryResult) -> Iterable[str]:
    """A line for each row of a result; equal ones once, with how many there are."""
    width, counts = len(result.columns), Counter(result.rows)
    if width > 2:
        yield " | ".join(result.columns)
    for row, number in islice(counts.items(), MAX_LINES):
        times = f" ({number:,} times)" if number > 1 else ""
        yield (": " if width == 2 else " | ").join(map(_shown, row)) + times
    if len(counts) > MAX_LINES:
        yield f"... and {len(counts) - MAX_LINES:,} more"


def _shown(value: Value) -> str:
    if value is None:
        return "unknown"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _several(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
