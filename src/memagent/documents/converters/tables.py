"""Tables as Markdown, each row with all of its cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, time
from itertools import zip_longest
from typing import NamedTuple

from .text import clean

_MAX_SPAN = 100  # columns
_MAX_SPREAD = 1000  # characters of a row; a longer text is shown once
_MOSTLY = 0.75  # of a column's cells
_YEAR = re.compile(r"\s*(?:1[89]|20)\d\d\s*")


class TableCell(NamedTuple):
    """The text of a cell, how many columns and rows it spans, and whether it repeats the one before it."""

    text: str
    columns: int = 1
    rows: int = 1
    spread: bool = False


class Grid:
    """Writes the rows of a table; a cell that spans columns or rows is shown in each of them.

    A head with cells that span columns is joined with the row below it: "Dose adult", "Dose child".
    """

    def __init__(self) -> None:
        self.down: dict[int, TableCell] = {}  # what the next row takes over, by column
        self.has_rows = False
        self._head: list[TableCell] = []  # held back until the row below it is known

    def row(self, cells: Iterable[TableCell], *, trim: bool = False) -> str:
        """The next row, given without the cells that others span; `trim` drops empty cells at its end."""
        own = [*cells]
        texts = [cell for cell in own if cell.text]
        if len(texts) == 1 and texts[0].columns > 1 and not self.down:  # a title, or a note within the table
            return as_row([texts[0].text]) if self.has_rows else f"{' '.join(texts[0].text.split())}\n\n"
        row = self._spread(own)
        while trim and row and not row[-1].text:
            row.pop()
        return self._write(row) if texts else ""

    def end(self) -> str:
        """The head, if no row came after it."""
        head, self._head = [cell.text for cell in self._head], []
        return f"{as_row(head)}|{' --- |' * len(head)}\n" if head else ""

    def _spread(self, own: list[TableCell]) -> list[TableCell]:
        """A cell for each column of the next row."""
        above, self.down = self.down, {}
        row: list[TableCell] = []

        def add(cell: TableCell) -> None:
            if cell.rows > 1:
                self.down[len(row)] = TableCell(cell.text, 1, cell.rows - 1)
            row.append(cell)

        for cell in own:
            while spanning := above.pop(len(row), None):
                add(spanning)
            columns = min(cell.columns, _MAX_SPAN)
            again = cell.text if len(cell.text) * columns <= _MAX_SPREAD else ""
            for number in range(columns):
                above.pop(len(row), None)
                add(cell._replace(text=again if number else cell.text, spread=columns > 1))
        while above:
            add(above.pop(len(row), TableCell("")))
        return row

    def _write(self, row: list[TableCell]) -> str:
        """A row; a head is held back as long as the row below may belong to it."""
        if self._head:
            pairs = list(zip_longest(self._head, row, fillvalue=TableCell("")))
            if not all(head.spread or cell.text in ("", head.text) for head, cell in pairs):
                return self.end() + as_row([cell.text for cell in row])
            row = [
                cell._replace(text=" ".join(dict.fromkeys(filter(None, (head.text, cell.text)))))
                for head, cell in pairs
            ]
        elif self.has_rows:
            return as_row([cell.text for cell in row])
        self.has_rows, self._head = True, row
        return "" if any(cell.spread for cell in row) else self.end()


def as_cell(value: object) -> str:
    """A cell as a person sees it: whole numbers without a decimal point, dates without midnight."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if hasattr(value, "ref"):  # a formula of several cells
        return str(getattr(value, "text", None) or value.ref)
    return str(value)


def as_table(rows: list[list[str]]) -> str:
    """Rows, the first of which is the head."""
    grid = Grid()
    return "".join(grid.row(map(TableCell, row)) for row in rows) + grid.end()


def names_columns(first: Sequence[str], below: Iterable[Sequence[str]]) -> bool | None:
    """Whether a row names the columns of the rows below it, judged by what kinds of cells they have.

    It does if there are words over numbers, or years over other numbers, and it does not if there are numbers
    over numbers. None if neither is the case, so that nobody can tell.
    """
    signs = set[bool]()
    for name, *cells in zip_longest(first, *below, fillvalue=""):
        kinds = Counter(map(_kind, filter(str.strip, cells)))
        kind, count = next(iter(kinds.most_common(1)), ("", 0))
        if not name.strip() or kind in ("", "words") or count < _MOSTLY * kinds.total():
            continue
        if (own := _kind(name)) == "number":
            years = sum(_YEAR.fullmatch(cell) is not None for cell in cells)
            signs.add(_YEAR.fullmatch(name) is not None and years * 2 < count)
        elif own == "words" or kind == "number":
            signs.add(True)
    return None if not signs else False not in signs


def _kind(cell: str) -> str:
    """Whether a cell is a number (or a date in figures), a code such as "P-12" or "5 kg", or words."""
    if not any(map(str.isdecimal, cell)):
        return "words"
    return "code" if any(map(str.isalpha, cell)) else "number"


def as_row(cells: list[str]) -> str:
    """One row; a bar within a cell is escaped."""
    texts = (" ".join(clean(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |\n"
