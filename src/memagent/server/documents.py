"""Documents that clients send: each under the name that its client gave it, several read as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memagent.documents.files import DocumentFile, look_at
from memagent.documents.opening import Document


def opened(path: Path, name: str) -> Document:
    """A file as a document under the name that its client gave it, which determines the format.

    Raises `DocumentError`.
    """
    return Document((look_at(path, name, named=True),))


def joined(documents: Sequence[Document]) -> Document:
    """Several documents, read as one. Files of the same name are numbered, so that a name means one file."""
    sources: dict[str, DocumentFile] = {}
    for source in (source for document in documents for source in document.sources):
        name, number = source.name, 1
        while name in sources:
            number += 1
            name = f"({number}) {source.name}"
        sources[name] = source if number == 1 else replace(source, name=name, title=name)
    return Document(tuple(sources.values()))
