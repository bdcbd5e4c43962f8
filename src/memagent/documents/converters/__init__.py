"""Converters from each format to text; `converter_program.py` runs them in a separate process.

They import nothing else from memagent, and their libraries only when called, so that this process starts
quickly. There the package is called `converters`, hence the relative imports. In PDF files and slides, a form
feed ends each page.

Neither kreuzberg nor markitdown reads mailboxes, ODT, filled-in PDF forms or the units of numbers as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import IO

from .books import epub
from .mail import eml, mbox
from .open_document import odt
from .pages import pdf
from .rich_text import rtf
from .sheets import xlsx
from .slides import pptx
from .word import docx

HTML = frozenset({"docx", "eml", "epub", "mbox", "odt"})
PAGED = frozenset({"pdf", "pptx"})

Converter = Callable[[IO[bytes]], Iterator[str]]
"""Makes text of a file, piece by piece."""

CONVERTERS: dict[str, Converter] = {
    "pdf": pdf, "pptx": pptx, "xlsx": xlsx, "docx": docx, "odt": odt, "epub": epub, "rtf": rtf,
    "eml": eml, "mbox": mbox,
}  # fmt: skip


def converter(format: str) -> Converter:
    """What makes text of a format, ours or an installed package's."""
    if ours := CONVERTERS.get(format):
        return ours
    (point, *_) = entry_points(group="memagent.formats", name=format)
    made: Converter = point.load()
    return made
