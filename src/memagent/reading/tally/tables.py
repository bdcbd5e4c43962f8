"""Tables that are tables: their rows are read by code, once a model has said which column is which field.

They are files of separated values, and tables in Markdown, which sheets and the tables of other formats are
converted to.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass

from memagent.documents.chunking import cut_at, cut_out
from memagent.documents.cutting import TABLE_HEAD, is_separated, row_cells
from memagent.reading.sources import HEADING, source_at
from memagent.reading.tally.plan import Plan, find_objects
from memagent.reading.tally.rows import Row
from memagent.reading.tally.values import NOTHING, fold
from memagent.types import Chunk, TokenCounter

MAX_SHOWN = 3
"""How many rows of a table a model is shown to tell its columns."""

_TABLE = re.compile(r"(?:^\|[^\n]*(?:\n|\Z))+", re.MULTILINE)
_RULE = re.compile(r"[ \t:|-]*-[ \t:|-]*")
_TOTALS = frozenset({"total", "totals", "grand total", "subtotal", "sum", "summe", "gesamt", "gesamtsumme"})


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: its cells, and where it is in the whole document."""

    cells: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TablePiece:
    """The part of a table in a chunk: the names of its columns, and its rows."""

    chunk: Chunk
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def shown(self) -> str:
        """The table's head and first rows, for a model."""
        rows = [self.columns, *(line.cells for line in self.lines[:MAX_SHOWN])]
        return "\n".join(" | ".join(row) for row in rows)


def divide(
    chunk: Chunk, heads: MutableMapping[str, tuple[str, ...]], count_tokens: TokenCounter
) -> list[Chunk | TablePiece]:
    """The tables of a chunk, and the text between them. Blocks.

    `heads` are those of the files of separated values so far, by the file's name.
    """
    pieces = list[Chunk | TablePiece]()
    for piece in _by_file(chunk, count_tokens):
        name = piece.parts[0].source
        if is_separated(name):
            pieces.append(_separated(piece, heads))
            continue
        rest: Chunk | None = piece
        while rest:
            grid, before, rest = _first_table(rest, count_tokens)
            pieces += [before] if before and HEADING.sub("", before.text).strip() else []
            pieces += [grid] if grid else []
    return pieces


def match_columns(grid: TablePiece, plan: Plan, reply: str | None) -> dict[str, int] | None:
    """The column of each field, by a model's `reply`; without one, by their names, if all are the same.

    None for a reply that is no use: it is no JSON, or names columns that the table does not have.
    """
    places = {fold(name): number for number, name in reversed(list(enumerate(grid.columns)))}
    named = {field.name: fold(field.name.replace("_", " ")) for field in plan.fields}
    if reply is None:
        own = {name: places[folded] for name, folded in named.items() if folded in places}
        return own if len(own) == len(named) else {}
    chosen = next(find_objects(reply), None)
    if chosen is None:
        return None
    columns = {name: fold(str(chosen[name])) for name in named if chosen.get(name)}
    matched = {name: places[folded] for name, folded in columns.items() if folded in places}
    return matched if matched or NOTHING.issuperset(columns.values()) else None


def rows_of(grid: TablePiece, columns: Mapping[str, int]) -> Iterator[Row]:
    """The rows of a table, given the column of each field; sums below it are no rows. Blocks."""
    for line in grid.lines:
        cells = {
            name: line.cells[number].strip() for name, number in columns.items() if number < len(line.cells)
        }
        values = {name: cell for name, cell in cells.items() if fold(cell) not in NOTHING}
        if values and not _TOTALS.intersection(map(fold, line.cells)):
            yield Row(values, source_at(grid.chunk, line.start, line.end), (line.start, line.end))


def _by_file(chunk: Chunk, count_tokens: TokenCounter) -> Iterator[Chunk]:
    """The chunk in pieces of one file each."""
    files = [(part.source, part.offset) for part in chunk.parts]
    border = next((n for n in range(1, len(files)) if files[n] != files[0]), None)
    if border is None:
        yield chunk
        return
    first, rest = cut_at(chunk, chunk.parts[border].start - chunk.start, count_tokens)
    yield first
    yield from _by_file(rest, count_tokens)


def _separated(chunk: Chunk, heads: MutableMapping[str, tuple[str, ...]]) -> TablePiece:
    """A piece of a file of separated values, whose first line names the columns."""
    name, lines = chunk.parts[0].source, list[Line]()
    head = next((line for line in (chunk.parts[0].columns or chunk.text).splitlines() if line.strip()), "")
    separator = max(",;\t|", key=head.count)
    end, texts = chunk.start, chunk.text.splitlines(keepends=True)
    ends = [end := end + len(text) for text in texts]
    reader, first = csv.reader(texts, delimiter=separator), 0
    for cells in reader:
        start, end = ends[first] - len(texts[first]), ends[reader.line_num - 1]
        first = reader.line_num
        bare = chunk.text[start - chunk.start : end - chunk.start].rstrip()
        if any(map(str.strip, cells)):
            lines.append(Line(tuple(cells), start, start + len(bare)))
    if name not in heads and lines:
        heads[name] = lines.pop(0).cells
    return TablePiece(chunk, heads.get(name, ()), tuple(lines))


def _first_table(
    chunk: Chunk, count_tokens: TokenCounter
) -> tuple[TablePiece | None, Chunk | None, Chunk | None]:
    """The first table of a chunk whose columns have names, the text before it, and all that follows it."""
    for table in _TABLE.finditer(chunk.text):
        start, end = table.span()
        head = TABLE_HEAD.match(chunk.text, start)
        above = head[0] if head else ("" if start else chunk.parts[0].columns)
        if not above:
            continue
        before, own, after = cut_out(chunk, start, end, count_tokens)
        columns = tuple(_cells(above.splitlines()[0]))
        return TablePiece(own, columns, tuple(_lines(own, len(head[0]) if head else 0))), before, after
    return None, chunk, None


def _lines(chunk: Chunk, begin: int) -> Iterator[Line]:
    start = chunk.start + begin
    for text in chunk.text[begin:].splitlines(keepends=True):
        bare = text.rstrip()
        if bare and not _RULE.fullmatch(bare):
            yield Line(tuple(_cells(bare)), start, start + len(bare))
        start += len(text)


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in row_cells(line)]
