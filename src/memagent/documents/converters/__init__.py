"""Converters from each format to text; `converter_program.py` runs them in a separate process.

They import nothing else from memagent, and are imported only when needed, so that this process starts
quickly. There the package is called `converters`, hence the relative imports. In PDF files and slides, a form
feed ends each page.

Neither kreuzberg nor markitdown reads mailboxes, ODT, filled-in PDF forms or the units of numbers as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import IO

from .text import frame as frame

HTML = frozenset({"docx", "eml", "epub", "mbox", "odt"})
PAGED = frozenset({"pdf", "pptx"})

Converter = Callable[[IO[bytes]], Iterator[str]]
"""Makes text of a file, piece by piece; a `Remark` among the pieces is for the user."""

_MODULES = {
    "pdf": "pages", "pptx": "slides", "xlsx": "sheets", "docx": "word", "odt": "books",
    "epub": "books", "rtf": "plain", "eml": "mail", "mbox": "mail", "ipynb": "plain",
}  # fmt: skip
"""The module of each format's converter, which has the format's name."""


def converter(format: str) -> Converter:
    """What makes text of a format, ours or an installed package's."""
    if module := _MODULES.get(format):
        convert: Converter = getattr(import_module(f".{module}", __package__), format)
    else:
        from importlib.metadata import entry_points  # slow to import

        (point, *_) = entry_points(group="memagent.formats", name=format)
        convert = point.load()
    return convert
