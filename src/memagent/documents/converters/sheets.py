"""Excel files to Markdown tables; charts and text boxes over the cells are left out."""

from __future__ import annotations

import re
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from typing import IO, Any

from .tables import Cell, Grid, as_cell
from .text import clean

_Spans = dict[int, dict[int, tuple[int, int]]]
"""By row and column, how many columns and rows a cell spans."""

_MERGED = re.compile(rb'mergeCell [^>]*?ref="([A-Z]+[0-9]+:[A-Z]+[0-9]+)"')
_FORMULA = re.compile(rb"<([\w.-]+:)?f[\s/>]")
_LITERAL = re.compile(r'"([^"]*)"|\[\$([^-\]]*)[^\]]*\]|\[[^\]]*\]|[\\_*].')
"""A part of a number format that is no digit: "kg", [$€-407], [Red], \\-."""
_ZEROS = re.compile("00+")


def xlsx(file: IO[bytes]) -> Iterator[str]:
    """Each sheet as a table. A formula that was never computed is shown as it is."""
    from openpyxl import load_workbook

    has_formulas, spans = _scan(file)
    values = load_workbook(file, read_only=True, data_only=True)
    formulas = load_workbook(file, read_only=True) if has_formulas else values
    for sheet, computed in zip(formulas.worksheets, values.worksheets, strict=True):
        yield f"## {clean(sheet.title)}\n\n"
        for one in {sheet, computed}:
            one.reset_dimensions()  # those stated in the file may be wrong
        grid = Grid()
        own = spans.get(sheet._worksheet_path.lstrip("/"), {})
        for number, row in enumerate(_values(sheet, computed), 1):
            yield grid.row(_cells(row, own.get(number, {}), grid), trim=True)
        yield grid.end() + "\n"


def _cells(row: Iterable[object], spans: dict[int, tuple[int, int]], grid: Grid) -> Iterator[Cell]:
    """The cells of a row that no other spans; `spans` are the columns and rows of those that span any."""
    covered = 0
    for column, value in enumerate(row):
        if column >= covered and column not in grid.down:
            columns, rows = spans.get(column, (1, 1))
            covered = column + columns
            yield Cell(as_cell(value), columns, rows)


def _values(sheet: Any, computed: Any) -> Iterator[Iterable[object]]:
    """The values of each row; for a formula, the computed value if there is one."""
    if sheet is computed:
        yield from (map(_value, row) for row in sheet.iter_rows())
        return
    for row, shown in zip(sheet.iter_rows(values_only=True), computed.iter_rows(), strict=False):
        yield [
            given
            if known.value is None and known.data_type != "str"
            else _value(known)  # an empty string is None
            for given, known in zip(row, shown, strict=False)
        ]


def _value(cell: Any) -> object:
    """A cell's value; a number with the unit, or the leading zeros, with which the sheet shows it."""
    value = cell.value
    if type(value) not in (int, float):
        return value
    if _ZEROS.fullmatch(cell.number_format) and value == int(value):
        return f"{int(value):0{len(cell.number_format)}}"
    factor, unit = _unit(cell.number_format)
    return f"{as_cell(value * factor)}{unit}" if unit else value


@cache
def _unit(number_format: str) -> tuple[float, str]:
    """The unit that a number format shows, and how many of them are one.

    None if it shows thousands as K, or words for numbers, such as "No" for 0.
    """
    shown = number_format.partition(";")[0]
    plain = _LITERAL.sub("", shown)
    if re.search("[0#?],+(?![0#?,])", plain) or not re.search("[0#?]|General", plain):
        return 1, ""
    if "%" in plain:
        return 100.0, "%"
    said = (name for names in _LITERAL.findall(shown) for name in names)
    signs = (sign for sign in plain if unicodedata.category(sign) == "Sc")
    return 1, "".join(f" {unit}" for unit in map(str.strip, (*said, *signs)) if unit)


def _scan(file: IO[bytes]) -> tuple[bool, dict[str, _Spans]]:
    """Whether there are formulas, and for each sheet's part of the file, the cells that span others."""
    from openpyxl.utils.cell import range_boundaries

    has_formulas, spans = False, dict[str, _Spans]()
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/"):
                sheet, own = archive.read(name), spans.setdefault(name, {})
                has_formulas = has_formulas or _FORMULA.search(sheet) is not None
                for merged in _MERGED.findall(sheet):
                    left, top, right, bottom = range_boundaries(merged.decode())
                    own.setdefault(top, {})[left - 1] = right - left + 1, bottom - top + 1
    return has_formulas, spans
