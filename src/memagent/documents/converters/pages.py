"""PDF files to text, page by page, with the columns and tables that the positions of words reveal.

Columns are looked for only where three lines below each other have wide gaps. All other text keeps its order.
A character that the file maps to nothing, as some do with ligatures, is shown as U+FFFD.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import compress, groupby, pairwise, product
from operator import not_
from typing import IO, Any, NamedTuple

from .tables import as_table, names_columns
from .text import PAGE_END, Remark, clean

BROKEN = "\ufffe"
"""Stands for a hyphen at the end of a line."""
UNKNOWN = "\ufffd"

_LINE = re.compile(rf"[^\r\n{BROKEN}]+{BROKEN}?")
_WORD = re.compile(r"\S+")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-$")
_LINES = 3  # the fewest of a table, or of running text in columns
_GAP = 1.5  # between columns, in widths of a character
_WORDS = 3  # a line, on average: in columns with more, the text runs from line to line
_EDGES = 2  # lines of a page's head or foot
_SAMPLED = 30  # characters of a page
_MAX_WORD = 80
_BROKEN_NUMBER = re.compile(r"(?<=\d)-\r?\n(?=\w)")
_ADDRESS = re.compile(r"[@/_\\]|\w\.\w")
_COMPOUNDS = ("well", "self", "long", "short", "high", "half", "full")
"""Before a hyphen at the end of a line, these are mostly words of their own: "well-known"."""
_SECOND = (
    "based", "bearing", "driven", "free", "friendly", "funded", "minded", "oriented", "owned", "related",
    "specific", "term", "wide", "year",
)  # fmt: skip
"""And so are these after it: "cost-bearing"."""


def pdf(file: IO[bytes]) -> Iterator[str]:
    """Each page's text, in the order of the file, followed by what was written on it or into its form.

    The pages without text are named, unless all are.
    """
    import pypdfium2
    import pypdfium2.raw as pdfium

    document = pypdfium2.PdfDocument(file)
    with suppress(pypdfium2.PdfiumError):  # even if the form cannot be read, the pages can
        document.init_forms()
    empty, table = list[int](), None
    for number, page in enumerate(document):
        if pdfium.FPDFPage_GetAnnotCount(page):
            pdfium.FPDFPage_Flatten(page, pdfium.FLAT_NORMALDISPLAY)  # the page must then be reloaded
            page.close()
            page = document[number]
        text, table = _text_of(page, table)
        lines = _mend(_BROKEN_NUMBER.sub(BROKEN, text)).replace("\r\n", "\n").split("\n")
        text = clean("\n".join(line.rstrip() for line in lines)).strip("\n")
        empty += [] if text.strip() else [number + 1]
        yield (text + "\n\n" if text.strip() else "") + PAGE_END
        page.close()
    if 0 < len(empty) < len(document):
        subject = f"page {empty[0]} has" if len(empty) == 1 else f"pages {_ranges(empty)} have"
        yield Remark(f"{subject} no text (scanned? run OCR first)")


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers, those in a row as a range: "2, 4-7"."""
    groups = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = ([number for _, number in group] for _, group in groups)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _text_of(page: Any, before: _PageTable | None) -> tuple[str, _PageTable | None]:
    """The text, and its last table, given that of the page before.

    The page is turned first so that most of its text is upright: otherwise pdfium mixes up the lines.
    """
    import pypdfium2.raw as pdfium

    page_text = page.get_textpage()
    count = page_text.count_chars()
    samples = range(0, count, count // _SAMPLED + 1)
    angles = (pdfium.FPDFText_GetCharAngle(page_text, index) for index in samples)
    turns = Counter(round(angle / math.pi * 2) % 4 for angle in angles if angle >= 0)
    turn = next((turn for turn, _ in turns.most_common(1)), 0)
    if turns and (upright := -turn % 4 * 90) != page.get_rotation():
        page.set_rotation(upright)
        page_text = page.get_textpage()
    text = str(page_text.get_text_range())
    if turn or len(text) != count:  # then characters have other positions than in the text
        return text, None
    text = re.sub(
        BROKEN,
        lambda match: match[0] if pdfium.FPDFText_IsHyphen(page_text, match.start()) else UNKNOWN,
        text,
    )
    box = pdfium.FS_RECTF()
    look, raw, pointer = pdfium.FPDFText_GetLooseCharBox, page_text.raw, ctypes.byref(box)

    def edges(index: int) -> tuple[float, float]:
        look(raw, index, pointer)
        return box.left, box.right

    return arrange(text, edges, before)


def _mend(text: str) -> str:
    """The text with words joined that were broken at the ends of lines; their own hyphens stay."""
    parts = text.split(BROKEN)
    return parts[0] + "".join(_hyphen(*pair, text) + pair[1] for pair in pairwise(parts))


def _hyphen(before: str, after: str, text: str) -> str:
    """The hyphen between two halves of a word, if it is a part of an address or a compound."""
    token, rest = re.split(r"\s", before[-_MAX_WORD:])[-1], re.split(r"\s", after[:_MAX_WORD])[0]
    begin, end = re.split(r"\W", token)[-1], re.split(r"\W", rest)[0]
    in_word = begin.isalpha() and (begin.islower() or begin.istitle()) and end[:1].islower()
    own = (
        token.endswith(f"-{begin}")
        or begin.lower() in _COMPOUNDS
        or end in _SECOND
        or _ADDRESS.search(token + rest)
        or f"{begin}-{end}" in text
    )
    return "" if in_word and not own else "-"


class _WordRun(NamedTuple):
    """Words of a line without a wide gap between them, and where they begin and end."""

    left: float
    right: float
    text: str


class _PageTable(NamedTuple):
    """The names of a table's columns, and where they stand: the table may continue on the next page."""

    names: list[str]
    bands: list[tuple[float, float]]

    def continues(self, rows: list[list[str]], bands: list[tuple[float, float]]) -> bool:
        """Whether these rows stand in the same columns, and do not begin with names of their own."""
        same = len(bands) == len(self.bands) and all(
            left < end and begin < right
            for (left, right), (begin, end) in zip(bands, self.bands, strict=True)
        )
        return same and rows[0] != self.names and names_columns(rows[0], rows[1:]) is not True


def arrange(
    text: str, edges: Callable[[int], tuple[float, float]], before: _PageTable | None
) -> tuple[str, _PageTable | None]:
    """The text of a page, column after column, with its tables as such, and the last of them.

    `edges` says where a character begins and ends, from the left. The page's first table may continue the one
    `before`.
    """
    lines = list(_LINE.finditer(text))
    runs = cache(lambda number: _runs(lines[number], edges))
    written, position, first, seen = list[str](), 0, 0, 0  # up to a character, or a line
    table: _PageTable | None = None
    while first <= len(lines) - _LINES:
        if narrow := next((end for end in range(first + _LINES, first, -1) if len(runs(end - 1)) < 2), 0):
            first = narrow
            continue
        start = end = first
        bands: list[tuple[float, float]] = []
        while end < len(lines) and (widened := _widen(bands, runs(end))):
            bands, end = widened, end + 1
        while start > seen and (widened := _widen(bands, runs(start - 1))):
            bands, start = widened, start - 1
        rows = [
            [" ".join(run.text for run in runs(index) if left <= run.left < right) for left, right in bands]
            for index in range(start, end)
        ]
        if not (rendered := _columns(rows)) and (tabular := _as_table(rows, bands, before)):
            rendered, table = tabular
            before = None
        if rendered:
            written.append(text[position : lines[start].start()])
            written.append("\n".join(rendered).replace(f"{BROKEN}\n", BROKEN))
            position = lines[end - 1].end()
        first = seen = end
    return "".join(written) + text[position:], table


def _runs(line: re.Match[str], edges: Callable[[int], tuple[float, float]]) -> list[_WordRun]:
    """The runs of words in a line."""
    spans = [match.span() for match in _WORD.finditer(line.string, *line.span())]
    lefts, rights = [edges(start)[0] for start, _ in spans], [edges(end - 1)[1] for _, end in spans]
    sizes = [end - start for start, end in spans]
    # Dots that lead to a page number are narrow: single characters do not count.
    words = [index for index, size in enumerate(sizes) if size > 1] or range(len(spans))
    characters = sum(sizes[index] for index in words)
    width = sum(rights[index] - lefts[index] for index in words) / max(characters, 1)
    gaps = [index for index in range(1, len(spans)) if lefts[index] - rights[index - 1] > _GAP * width]
    ends = [0, *gaps, len(spans)] if spans else []
    return [
        _WordRun(lefts[first], rights[last - 1], line.string[spans[first][0] : spans[last - 1][1]])
        for first, last in pairwise(ends)
    ]


def _widen(bands: list[tuple[float, float]], line: list[_WordRun]) -> list[tuple[float, float]] | None:
    """The bands of the page's columns, with those of a line; None if it does not stand in these columns."""
    apart, wider = list(bands), list[tuple[float, float]]()
    for run in line:
        over = [band for band in bands if band[0] < run.right and run.left < band[1]]
        if len(over) > 1 or any(band not in apart for band in over):
            return None
        apart = [band for band in apart if band not in over]
        left = min([run.left, *(band[0] for band in over)])
        wider.append((left, max([run.right, *(band[1] for band in over)])))
    return sorted(apart + wider)


def _columns(rows: list[list[str]]) -> list[str]:
    """Running text in columns, column after column; empty if it is not such text.

    Lines above and below it that stand between the columns too, such as a page's foot in three parts, are not
    a part of the columns.
    """
    for top, bottom in sorted(product(range(_EDGES + 1), repeat=2), key=sum):
        body, above, below = rows[top : len(rows) - bottom], rows[:top], rows[len(rows) - bottom :]
        wide = [row for row in body if _is_wide(row)]
        if len(wide) < _LINES:
            continue
        within = [any(cells) for cells in zip(*wide, strict=True)]
        columns = [[*filter(None, cells)] for cells in zip(*body, strict=True)]
        runs_on = all(
            len(" ".join(cells).split()) >= _WORDS * len(cells) for cells in compress(columns, within)
        )
        if runs_on and all(any(compress(row, map(not_, within))) for row in (*above, *below)):
            others = compress(columns, map(not_, within))
            texts = [text for cells in (*compress(columns, within), *others) for text in cells]
            lines = [_HYPHEN.sub(BROKEN, text) for text in texts]
            return [*map(_plain, above), *lines, *map(_plain, below)]
    return []


def _as_table(
    rows: list[list[str]], bands: list[tuple[float, float]], before: _PageTable | None
) -> tuple[list[str], _PageTable] | None:
    """The lines of a table, and what the next page needs of it; None for what is clear without a table."""
    wide = [number for number, row in enumerate(rows) if _is_wide(row)]
    within = [any(cells[number] for number in wide) for cells in zip(*rows, strict=True)]
    if len(wide) < _LINES or sum(within) < 3:
        return None
    first, last = wide[0], wide[-1] + 1
    filled = [any(cells) for cells in zip(*rows[first:last], strict=True)]
    table = [[text.replace(BROKEN, "-") for text in compress(row, filled)] for row in rows[first:last]]
    own = [*compress(bands, filled)]
    if before and before.continues(table, own):
        table.insert(0, before.names)
    above, below = map(_plain, rows[:first]), map(_plain, rows[last:])
    return [*above, "", *as_table(table).splitlines(), "", *below], _PageTable(table[0], own)


def _is_wide(row: list[str]) -> bool:
    return len([*filter(None, row)]) > 1


def _plain(row: list[str]) -> str:
    return " ".join(filter(None, row))
