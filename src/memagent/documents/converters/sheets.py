"""Excel files to Markdown tables; charts and text boxes over the cells are left out."""

from __future__ import annotations

import re
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from typing import IO, Any

from .tables import as_cell, as_row, as_rule
from .text import clean

_FORMULA = re.compile(rb"<([\w.-]+:)?f[\s/>]")
_LITERAL = re.compile(r'"([^"]*)"|\[\$([^-\]]*)[^\]]*\]|\[[^\]]*\]|[\\_*].')
"""A part of a number format that is no digit: "kg", [$€-407], [Red], \\-."""
_FORMULA_BYTES = 256  # kept between blocks: more than such a tag takes, prefix included


def xlsx(file: IO[bytes]) -> Iterator[str]:
    """Each sheet as a table. A formula that was never computed is shown as it is."""
    from openpyxl import load_workbook

    values = load_workbook(file, read_only=True, data_only=True)
    formulas = load_workbook(file, read_only=True) if _has_formulas(file) else values
    for sheet, computed in zip(formulas.worksheets, values.worksheets, strict=True):
        yield f"## {clean(sheet.title)}\n\n"
        for one in {sheet, computed}:
            one.reset_dimensions()  # those stated in the file may be wrong
        begun = False
        for row in _values(sheet, computed):
            cells = list(map(as_cell, row))
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                yield as_row(cells) if begun else as_row(cells) + as_rule(cells)
                begun = True
        yield "\n"


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
    """A cell's value; a number with the unit in which the sheet shows it."""
    value = cell.value
    if type(value) not in (int, float):
        return value
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


def _has_formulas(file: IO[bytes]) -> bool:
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/"):
                with archive.open(name) as sheet:
                    before = b""
                    while block := sheet.read(2**20):
                        if _FORMULA.search(before + block):
                            return True
                        before = block[-_FORMULA_BYTES:]
    return False
