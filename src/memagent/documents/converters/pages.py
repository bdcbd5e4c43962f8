"""PDF files to text, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from .text import PAGE_END, clean


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
        lines = page.get_textpage().get_text_range().replace("\ufffe", "-").split("\r\n")
        text = clean("\n".join(line.rstrip() for line in lines)).strip("\n")
        yield (text + "\n\n" if text.strip() else "") + PAGE_END
        page.close()
