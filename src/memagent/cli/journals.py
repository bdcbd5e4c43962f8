"""Find the newest journal, and the text of a journal's document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from memagent.cli.messages import warn
from memagent.documents.opening import Document, open_document
from memagent.errors import DocumentError, JournalError
from memagent.settings import user_cache_path
from memagent.types import Chunk, Part


class DocumentText:
    """The text of a document by character span; it holds little more than the requested span."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._begin()

    def at(self, start: int, end: int, index: int = 0) -> Chunk:
        """A span as a chunk, without a token count. Spans in ascending order need only one pass."""
        if start < self._start:
            self._begin()
        while self._start + len(self._held) < end and (block := next(self._blocks, None)) is not None:
            place = self._start + len(self._held)
            self._note(block.source.name, block.page, place, place + len(block.text))
            self._held += block.text
            self._forget(start)
        text = self._held[start - self._start : end - self._start]
        return Chunk(index, text, start, end, 0, tuple(self._parts_of(start, end)))

    def _begin(self) -> None:
        self._blocks = iter(self.document.blocks())
        self._held, self._start = "", 0
        self._parts: list[Part] = []

    def _note(self, source: str, page: int | None, start: int, end: int) -> None:
        last = self._parts[-1] if self._parts else None
        offset = last.offset if last and last.source == source else start
        if last and (last.source, last.page) == (source, page):
            self._parts[-1] = Part(source, last.start, end, page, offset)
        else:
            self._parts.append(Part(source, start, end, page, offset))

    def _forget(self, start: int) -> None:
        """Drop the text before `start`."""
        gone = min(start - self._start, len(self._held))
        self._held, self._start = self._held[gone:], self._start + gone
        self._parts = [*(part for part in self._parts[:-1] if part.end > self._start), *self._parts[-1:]]

    def _parts_of(self, start: int, end: int) -> list[Part]:
        return [
            Part(part.source, max(part.start, start), min(part.end, end), part.page, part.offset)
            for part in self._parts
            if part.start < end and start < part.end
        ]


def newest_journal(console: Console) -> Path:
    """The newest journal in the cache, which is named on stderr. Raises `JournalError` if there is none."""
    folder = user_cache_path() / "journals"
    journals = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not journals:
        raise JournalError(f"there is no journal in {folder}: name one that ask --trace has written")
    warn(console, f"journal: {journals[-1]}")
    return journals[-1]


def document_text(header: Mapping[str, Any], console: Console) -> DocumentText | None:
    """The text of a journal's document; if it is missing or has changed, None and a warning."""
    recorded = header["document"]
    try:
        document = open_document(*recorded["sources"]).unnamed()  # as when it was read
        if document.fingerprint == recorded["sha256"]:
            return DocumentText(document)
        warn(console, "the document has changed since: only the places of the chunks are shown")
    except DocumentError as error:
        warn(console, f"only the places of the chunks are shown: {error}")
    return None
