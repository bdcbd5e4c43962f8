"""The files to ask one by one, and the record of what they hold and of the answers found.

The record is a log next to the table. An answer belongs to the bytes of a file, not to its name: a file that
is moved or restored is not read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from memagent.documents.files import FileState, NoTextError, look_at
from memagent.documents.opening import Document
from memagent.documents.paths import find_files, shown
from memagent.errors import DocumentError, SettingsError
from memagent.runs.each.rows import FileRow, recalled, recorded
from memagent.runs.log import RunLog

FORMAT = 1


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file's path and its name in the table; `refusal` says why it must not be read, if so."""

    path: Path
    name: str
    refusal: str = ""


class Seen(NamedTuple):
    """A file as it was when it was last read: its state, and its content.

    `content` identifies its bytes and how they are read; `error` says why it has no text.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    content: str = ""
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


def identify(file: FoundFile, now: FileState) -> tuple[Seen, Document]:
    """What a file in this state holds, and the document that it is, which is empty if it has no text.

    Reads the whole file. Blocks. Raises `DocumentError`.
    """
    state = asdict(now.to_keep())
    try:
        source = look_at(file.path, file.name, named=True)
    except NoTextError as error:
        return Seen(**state, error=str(error)), Document(())
    document = Document((source,))
    content = f"{document.fingerprint} {source.format} {source.encoding} {source.gzipped}"
    return Seen(**state, content=content), document


def key_of(content: str, identity: Mapping[str, Any]) -> str:
    """The key of an answer, made from the content that was read and everything that was asked of it."""
    whole = json.dumps([content, identity], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def open_record(folder: Path | None, claim: bool = True) -> RunLog:
    """The record in a folder, whose lines are found by the keys of answers and by files. Blocks.

    Without a folder, it is gone with the process. Raises `SettingsError`.
    """
    record = RunLog(folder and folder / "record.jsonl", _find_keys, claim)
    if "header" not in record:
        record.append({"type": "header", "format": FORMAT})
    return record


def find_seen(record: RunLog, file: str) -> Seen | None:
    """The state of a file that is on record."""
    seen: Seen | None = record.get(("file", file))
    return seen


def see(record: RunLog, file: str, seen: Seen) -> None:
    """Record the state of a file. Blocks."""
    if find_seen(record, file) != seen:
        record.append({"type": "seen", "file": file, "seen": seen._asdict()})


def add_row(record: RunLog, key: str, row: FileRow, seen: Seen) -> None:
    """Record an answer, and the state of its file. Blocks."""
    line = {"type": "row", "key": key, "row": recorded(row), "file": row.file, "seen": seen._asdict()}
    record.append(line)


def _find_keys(line: Mapping[str, Any]) -> Mapping[Hashable, Any]:
    try:
        if line["type"] == "header":
            if line["format"] == FORMAT:
                return {"header": None}
            raise SettingsError(
                f"the record next to the table has format {line['format']}, this version reads {FORMAT}: "
                "name another table"
            )
        seen: dict[Hashable, Any] = {("file", line["file"]): Seen(**line["seen"])}
        if line["type"] == "seen":
            return seen
        recalled(line["row"], line["file"])
        return {**seen, line["key"]: None}
    except (TypeError, KeyError) as error:
        raise SettingsError(
            f"the record next to the table is from another memagent version ({error}): name another table"
        ) from error
