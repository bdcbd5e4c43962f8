"""The files to ask one by one, and what is known about each before it is read."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.documents.files import FileState, NoTextError, look_at
from memagent.documents.opening import Document
from memagent.documents.paths import find_files, shown, unreadable
from memagent.errors import DocumentError
from memagent.reading.many.record import Record, Seen, key_of


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file's path and its name in the table; `refusal` says why it must not be read, if so."""

    path: Path
    name: str
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known about a file: the `key` of its answer, unless it has no text.

    `document` is set if the file has to be read; `error` says why it has no text.
    """

    seen: Seen
    key: str = ""
    document: Document | None = None
    error: str = ""


def find(paths: Sequence[str], follow_links: bool, but: Collection[Path]) -> list[FoundFile]:
    """The files that the paths stand for, each once and in order, without those in or below `but`.

    Raises `DocumentError` if there are none, or for a path that does not exist.
    """
    left_out = [os.path.realpath(path) for path in but]
    found: dict[str, FoundFile] = {}
    for path in paths:
        if path == "-":
            raise DocumentError("standard input is one document: name files or folders to ask each")
        for file in find_files(path, follow_links):
            if file.named and not os.path.lexists(file.path):
                raise DocumentError(f"{shown(file.path)} cannot be read: No such file or directory")
            real = os.path.realpath(file.path)
            if not any(Path(real).is_relative_to(it) for it in left_out):
                found.setdefault(real, FoundFile(file.path.absolute(), shown(file.path), file.refusal))
    if not found:
        raise DocumentError(
            f"no file in {', '.join(map(shown, paths)) or 'the arguments'}: name another folder"
        )
    return list(found.values())


def unchanged(file: FoundFile, now: FileState, identity: Mapping[str, Any], record: Record) -> Look | None:
    """What is on record for a file in an unchanged state; None if it has to be read."""
    seen = record.seen.get(file.name)
    if seen is None or seen.state != now:
        return None
    if seen.error:
        return Look(seen, error=seen.error)
    key = key_of(seen.content, identity)
    return Look(seen, key) if key in record else None


def look(file: FoundFile, identity: Mapping[str, Any], record: Record, verify: bool) -> Look:
    """What can be known about a file without a model. Blocks. Raises `DocumentError`.

    The file is read whole only if its state has changed or the record has no answer. With `verify`,
    it is read in any case.
    """
    try:
        now = FileState.of(file.path)
    except OSError as error:
        raise unreadable(file.name, error) from error
    state = now.to_keep()
    if not verify and (known := unchanged(file, now, identity, record)):
        return known
    try:
        source = look_at(file.path, file.name, named=True)
    except NoTextError as error:
        return Look(Seen(state, error=str(error)), error=str(error))
    document = Document((source,))
    content = f"{document.fingerprint} {source.format} {source.encoding} {source.gzipped}"
    key = key_of(content, identity)
    return Look(Seen(state, content), key, None if key in record else document)
