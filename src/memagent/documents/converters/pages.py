"""PDF files to text, page by page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from .text import PAGE_END, clean

_SAMPLED = 100  # characters of a page


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
        lines = _text_of(page).replace("\ufffe", "-").split("\r\n")
        text = clean("\n".join(line.rstrip() for line in lines)).strip("\n")
        yield (text + "\n\n" if text.strip() else "") + PAGE_END
        page.close()


def _text_of(page: Any) -> str:
    """The text, read with most of it upright: of a page that lies on its side, pdfium mixes up the lines."""
    import pypdfium2.raw as pdfium

    text = page.get_textpage()
    count = text.count_chars()
    angles = (pdfium.FPDFText_GetCharAngle(text, it) for it in range(0, count, count // _SAMPLED + 1))
    turns = Counter(round(angle / math.pi * 2) % 4 for angle in angles if angle >= 0)
    for turn, _ in turns.most_common(1):
        if (upright := -turn % 4 * 90) != page.get_rotation():
            page.set_rotation(upright)
            text = page.get_textpage()
    return str(text.get_text_range())
