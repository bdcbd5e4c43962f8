"""PDF files to text, page by page."""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from .layout import BROKEN, arrange
from .text import PAGE_END, clean

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
