"""PDF files to text, page by page, with the columns and tables that the places of their words show.

Columns are looked for only where three lines below each other have wide gaps. All other text keeps its order.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import IO, Any, NamedTuple

from .tables import as_table
from .text import PAGE_END, clean

BROKEN = "\ufffe"
"""Stands for a hyphen at the end of a line."""

_LINE = re.compile(rf"[^\r\n{BROKEN}]+{BROKEN}?")
_WORD = re.compile(r"\S+")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-$")
_LINES = 3  # the fewest of a table, or of running text in columns
_GAP = 1.5  # between columns, in widths of a character
_WORDS = 3  # a line, on average: in columns with more, the text runs from line to line
_SAMPLED = 30  # characters of a page
_BROKEN_WORD = re.compile(rf"(-?)(\w{{0,40}}){BROKEN}(\w?)")
_COMPOUNDS = ("well", "self", "long", "short", "high", "half", "full")
"""Before a hyphen at the end of a line, these are mostly words of their own: "well-known"."""


def pdf(file: IO[bytes]) -> Iterator[str]:
    """Each page's text, in the order of the file, followed by what was written on it or into its form."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    document = pypdfium2.PdfDocument(file)
    with suppress(pypdfium2.PdfiumError):  # even if the form cannot be read, the pages can
        document.init_forms()
    for number, page in enumerate(document):
        if pdfium.FPDFPage_GetAnnotCount(page):
            pdfium.FPDFPage_Flatten(page, pdfium.FLAT_NORMALDISPLAY)  # the page must then be reloaded
            page.close()
            page = document[number]
        lines = _BROKEN_WORD.sub(_mend, _text_of(page)).replace("\r\n", "\n").split("\n")
        text = clean("\n".join(line.rstrip() for line in lines)).strip("\n")
        yield (text + "\n\n" if text.strip() else "") + PAGE_END
        page.close()


def _text_of(page: Any) -> str:
    """The text, read with most of it upright: of a page that lies on its side, pdfium mixes up the lines."""
    import pypdfium2.raw as pdfium

    page_text = page.get_textpage()
    count = page_text.count_chars()
    angles = (pdfium.FPDFText_GetCharAngle(page_text, it) for it in range(0, count, count // _SAMPLED + 1))
    turns = Counter(round(angle / math.pi * 2) % 4 for angle in angles if angle >= 0)
    turn = next((turn for turn, _ in turns.most_common(1)), 0)
    if turns and (upright := -turn % 4 * 90) != page.get_rotation():
        page.set_rotation(upright)
        page_text = page.get_textpage()
    text = str(page_text.get_text_range())
    if turn or len(text) != count:  # the places of characters are then not those in the text
        return text
    box = pdfium.FS_RECTF()
    look, raw, pointer = pdfium.FPDFText_GetLooseCharBox, page_text.raw, ctypes.byref(box)

    def edges(place: int) -> tuple[float, float]:
        look(raw, place, pointer)
        return box.left, box.right

    return arrange(text, edges)


def _mend(word: re.Match[str]) -> str:
    """A word that was broken at the end of a line, without the hyphen unless it is a part of the word."""
    before, begin, end = word.groups()
    parted = not before and end.islower() and (begin.islower() or begin.istitle())
    parted = parted and begin.isalpha() and begin.lower() not in _COMPOUNDS
    return before + begin + ("" if parted else "-") + end


class _Run(NamedTuple):
    """Words of a line without a wide gap between them, and where they begin and end."""

    left: float
    right: float
    text: str


def arrange(text: str, edges: Callable[[int], tuple[float, float]]) -> str:
    """The text of a page, column after column, with its tables as such.

    `edges` says where a character begins and ends, from the left.
    """
    lines = list(_LINE.finditer(text))
    runs = cache(lambda number: _runs(lines[number], edges))
    written, place, first, seen = list[str](), 0, 0, 0  # up to a character, or a line
    while first <= len(lines) - _LINES:
        if narrow := next((it for it in range(first + _LINES, first, -1) if len(runs(it - 1)) < 2), 0):
            first = narrow
            continue
        start = end = first
        bands: list[tuple[float, float]] = []
        while end < len(lines) and (widened := _widen(bands, runs(end))):
            bands, end = widened, end + 1
        while start > seen and (widened := _widen(bands, runs(start - 1))):
            bands, start = widened, start - 1
        if block := _write([runs(it) for it in range(start, end)], bands):
            written += text[place : lines[start].start()], "\n".join(block).replace(f"{BROKEN}\n", BROKEN)
            place = lines[end - 1].end()
        first = seen = end
    return "".join(written) + text[place:]


def _runs(line: re.Match[str], edges: Callable[[int], tuple[float, float]]) -> list[_Run]:
    """The runs of words in a line."""
    spans = [it.span() for it in _WORD.finditer(line.string, *line.span())]
    lefts, rights = [edges(start)[0] for start, _ in spans], [edges(end - 1)[1] for _, end in spans]
    sizes = [end - start for start, end in spans]
    words = [it for it, size in enumerate(sizes) if size > 1]  # dots that lead to a number are narrow
    width = sum(rights[it] - lefts[it] for it in words) / max(sum(sizes[it] for it in words), 1)
    gaps = [it for it in range(1, len(spans)) if lefts[it] - rights[it - 1] > _GAP * width]
    ends = [0, *gaps, len(spans)] if spans else []
    return [
        _Run(lefts[first], rights[last - 1], line.string[spans[first][0] : spans[last - 1][1]])
        for first, last in pairwise(ends)
    ]


def _widen(bands: list[tuple[float, float]], line: list[_Run]) -> list[tuple[float, float]] | None:
    """The bands of the page's columns, with those of a line; None if it does not stand in these columns."""
    apart, wider = list(bands), list[tuple[float, float]]()
    for run in line:
        over = [band for band in bands if band[0] < run.right and run.left < band[1]]
        if len(over) > 1 or any(band not in apart for band in over):
            return None
        apart = [band for band in apart if band not in over]
        wider.append((min([run.left, *(it[0] for it in over)]), max([run.right, *(it[1] for it in over)])))
    return sorted(apart + wider)


def _write(block: list[list[_Run]], bands: list[tuple[float, float]]) -> list[str]:
    """Lines that stand in the same columns as running text or a table; none if they are neither."""
    plain = [" ".join(run.text for run in line) for line in block]
    wide = [number for number, line in enumerate(block) if len(line) > 1]
    if len(wide) < _LINES:
        return []
    rows = [[" ".join(it.text for it in line if a <= it.left < b) for a, b in bands] for line in block]
    columns = [column for column in zip(*rows, strict=True) if any(column[number] for number in wide)]
    if all(len(" ".join(it).split()) >= _WORDS * len([*filter(None, it)]) for it in columns):
        others = [column for column in zip(*rows, strict=True) if column not in columns]
        return [_HYPHEN.sub(BROKEN, text) for column in (*columns, *others) for text in column if text]
    if len(columns) < 3:  # what stands beside what is clear without a table
        return []
    first, last = wide[0], wide[-1] + 1
    table = zip(*filter(any, zip(*rows[first:last], strict=True)), strict=True)
    shown = as_table([[text.replace(BROKEN, "-") for text in row] for row in table])
    return [*plain[:first], "", *shown.splitlines(), "", *plain[last:]]
