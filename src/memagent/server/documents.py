"""Documents that clients send: each under the name that its client gave it, several read as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memagent.documents.files import DocumentFile, look_at
from memagent.documents.opening import Document
from memagent.documents.paths import unreadable


def open_text(path: Path, name: str) -> Document:
    """Open a text that a client sent: it is plain text, whatever it begins with. Raises `DocumentError`."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(name, error) from error
    return Document((DocumentFile(name, path, "text", "utf-8", size, title=name),))


def open_file(path: Path, name: str) -> Document:
    """Open a file under the name that its client gave it, which determines the format.

    Raises `DocumentError`.
    """
    return Document((look_at(path, name, named=True),))


def join(documents: Sequence[Document]) -> Document:
    """Join documents to be read as one. Files of the same name are numbered, so each name means one file."""
    sources: dict[str, DocumentFile] = {}
    for source in (source for document in documents for source in document.sources):
        name, number = source.name, 1
        while name in sources:
            number += 1
            name = f"({number}) {source.name}"
        sources[name] = source if number == 1 else replace(source, name=name, title=name)
    return Document(tuple(sources.values()))
