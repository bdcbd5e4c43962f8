"""Excel files to Markdown tables, with the comments on cells.

Charts and text boxes over the cells are left out, and so is what is hidden: sheets, rows and columns.
"""

from __future__ import annotations

import re
import unicodedata
import zipfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import IO, Any

from .tables import Grid, TableCell, as_cell
from .text import Remark, clean, xml_parser

_MERGED = re.compile(rb'mergeCell [^>]*?ref="([A-Z]+[0-9]+:[A-Z]+[0-9]+)"')
_HIDDEN_ROW = re.compile(rb'<(?:[\w.-]+:)?row\s[^>]*?\bhidden="(?:1|true)"[^>]*>')
_HIDDEN_COLUMNS = re.compile(rb'<(?:[\w.-]+:)?col\s[^>]*?\bhidden="(?:1|true)"[^>]*>')
_NUMBER = re.compile(rb'\b(?:r|min|max)="([0-9]+)"')
_THREADED = re.compile(r"\[Threaded comment\].*?\n\s*Comment:\s*", re.DOTALL)
"""What Excel puts before a comment for its versions that know only notes."""
_FORMULA = re.compile(rb"<([\w.-]+:)?f[\s/>]")
_LITERAL = re.compile(r'"([^"]*)"|\[\$([^-\]]*)[^\]]*\]|\[[^\]]*\]|[\\_*].')
"""A part of a number format that is not a digit: "kg", [$€-407], [Red], \\-."""
_ZEROS = re.compile("00+")


@dataclass
class _Look:
    """What a sheet has besides values; rows are counted from 1, columns from 0."""

    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: set[int] = field(default_factory=set)
    spans: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By row and column among those shown, how many of the columns and rows shown a cell spans."""
    comments: dict[int, dict[int, str]] = field(default_factory=dict)
    """By row and column."""


def xlsx(file: IO[bytes]) -> Iterator[str]:
    """Each sheet as a table. A formula that was never computed is shown as it is."""
    from openpyxl import load_workbook

    has_formulas, looks = _scan(file)
    values = load_workbook(file, read_only=True, data_only=True)
    formulas = load_workbook(file, read_only=True) if has_formulas else values
    for sheet, computed in zip(formulas.worksheets, values.worksheets, strict=True):
        title = clean(sheet.title)
        if sheet.sheet_state != "visible":
            yield Remark(f"the hidden sheet {title}")
            continue
        yield f"## {title}\n\n"
        for worksheet in {sheet, computed}:
            worksheet.reset_dimensions()  # those stated in the file may be wrong
        grid, visible_rows, left_out = Grid(), 0, False
        look = looks.get(sheet._worksheet_path.lstrip("/"), _Look())
        for number, row in enumerate(_values(sheet, computed), 1):
            texts = _with_comments([*map(as_cell, row)], look.comments.get(number, {}))
            if number in look.hidden_rows:
                left_out = left_out or any(texts)
                continue
            visible = [text for column, text in enumerate(texts) if column not in look.hidden_columns]
            left_out = left_out or sum(map(bool, visible)) < sum(map(bool, texts))
            visible_rows += 1
            yield grid.row(_cells(visible, look.spans.get(visible_rows, {}), grid), trim=True)
        yield grid.end() + "\n"
        if left_out:
            yield Remark(f"hidden rows or columns of the sheet {title}")


def _with_comments(texts: list[str], comments: dict[int, str]) -> list[str]:
    """The texts of a row's cells, each followed by the comment on it."""
    texts += [""] * (max(comments, default=-1) + 1 - len(texts))
    for column, comment in comments.items():
        texts[column] = f"{texts[column]} [comment: {comment}]".strip()
    return texts


def _cells(texts: list[str], spans: dict[int, tuple[int, int]], grid: Grid) -> Iterator[TableCell]:
    """The cells of a row, without those that another cell spans; `spans` gives columns and rows by column."""
    covered = 0
    for column, text in enumerate(texts):
        if column >= covered and column not in grid.down:
            columns, rows = spans.get(column, (1, 1))
            covered = column + columns
            yield TableCell(text, columns, rows)


def _values(sheet: Any, computed: Any) -> Iterator[Iterable[object]]:
    """The values of each row; for a formula, the computed value if there is one."""
    if sheet is computed:
        yield from (map(_value, row) for row in sheet.iter_rows())
        return
    for row, cells in zip(sheet.iter_rows(values_only=True), computed.iter_rows(), strict=False):
        yield [
            given
            if known.value is None and known.data_type != "str"
            else _value(known)  # an empty string is None
            for given, known in zip(row, cells, strict=False)
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
    """By what a number is multiplied to be shown, and the unit that its format shows.

    There is no unit if the format shows thousands as K, or words for numbers, such as "No" for 0.
    """
    section = number_format.partition(";")[0]
    plain = _LITERAL.sub("", section)
    if re.search("[0#?],+(?![0#?,])", plain) or not re.search("[0#?]|General", plain):
        return 1, ""
    if "%" in plain:
        return 100.0, "%"
    literals = (name for names in _LITERAL.findall(section) for name in names)
    signs = (sign for sign in plain if unicodedata.category(sign) == "Sc")
    return 1, "".join(f" {unit}" for unit in map(str.strip, (*literals, *signs)) if unit)


def _scan(file: IO[bytes]) -> tuple[bool, dict[str, _Look]]:
    """Whether there are formulas, and how each sheet looks, by its part of the file."""
    has_formulas, looks = False, dict[str, _Look]()
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/") and name.endswith(".xml"):
                sheet = archive.read(name)
                has_formulas = has_formulas or _FORMULA.search(sheet) is not None
                looks[name] = _look(sheet)
                looks[name].comments = _comments(archive, name)
    return has_formulas, looks


def _look(sheet: bytes) -> _Look:
    """What is hidden in a sheet, and what its cells span."""
    from openpyxl.utils.cell import range_boundaries

    look = _Look()
    for tag in _HIDDEN_ROW.findall(sheet):
        look.hidden_rows.update(map(int, _NUMBER.findall(tag)))
    for tag in _HIDDEN_COLUMNS.findall(sheet):
        first, last = sorted(map(int, _NUMBER.findall(tag)))
        look.hidden_columns.update(range(first - 1, last))
    rows, columns = sorted(look.hidden_rows), sorted(look.hidden_columns)
    for merged in _MERGED.findall(sheet):
        left, top, right, bottom = range_boundaries(merged.decode())
        left, end = (edge - bisect_left(columns, edge) for edge in (left - 1, right))
        top, below = (edge - bisect_left(rows, edge) for edge in (top, bottom + 1))
        look.spans.setdefault(top, {})[left] = end - left, below - top
    return look


def _comments(archive: zipfile.ZipFile, name: str) -> dict[int, dict[int, str]]:
    """The comments on a sheet's cells, by row and column."""
    from lxml import etree
    from openpyxl.packaging.relationship import get_dependents, get_rels_path
    from openpyxl.utils.cell import coordinate_to_tuple
    from openpyxl.xml.constants import COMMENTS_NS

    comments, names = dict[int, dict[int, str]](), set(archive.namelist())
    relations = get_rels_path(name)
    parts = get_dependents(archive, relations).find(COMMENTS_NS) if relations in names else ()
    for part in (relation.target for relation in parts if relation.target in names):
        for comment in etree.fromstring(archive.read(part), xml_parser()).iter("{*}comment"):
            row, column = coordinate_to_tuple(comment.get("ref"))
            text = "".join(comment.itertext("{*}t"))
            comments.setdefault(row, {})[column - 1] = _THREADED.sub("", text).strip()
    return comments
