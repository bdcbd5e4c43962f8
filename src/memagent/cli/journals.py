"""Find the newest journal, and the text of a journal's document."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from memagent.cli.messages import warn
from memagent.documents.opening import Document, open_document
from memagent.errors import DocumentError, JournalError
from memagent.reading.lines import Header
from memagent.settings import user_cache_path

_ENCODING, _BYTES = "utf-32-le", 4  # a character


class Spans:
    """The text of a document by character span. It is kept in a file, since it may be large."""

    def __init__(self, document: Document) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this does
        for block in document.blocks():
            self._file.write(block.text.encode(_ENCODING, "surrogatepass"))

    def text(self, start: int, end: int) -> str:
        """The characters from `start` to `end`."""
        self._file.seek(_BYTES * start)
        return self._file.read(_BYTES * (end - start)).decode(_ENCODING, "surrogatepass")


def newest_journal(console: Console) -> Path:
    """The newest journal in the cache, which is named on stderr. Raises `JournalError` if there is none."""
    folder = user_cache_path() / "journals"
    journals = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not journals:
        raise JournalError(f"there is no journal in {folder}: name one that ask --trace has written")
    warn(console, f"journal: {journals[-1]}")
    return journals[-1]


def document_of(header: Header, console: Console) -> Document | None:
    """A journal's document; if it is missing or has changed, None and a warning."""
    try:
        document = open_document(*header.sources).unnamed()  # as when it was read
        if document.fingerprint == header.sha256:
            return document
        warn(console, "the document has changed since: only the places of the chunks are shown")
    except DocumentError as error:
        warn(console, f"only the places of the chunks are shown: {error}")
    return None
