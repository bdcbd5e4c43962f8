"""What is known from earlier runs: the state of files, and the answers, by what was read and asked.

An append-only log next to the table (`memagent.storage`). An answer belongs to the bytes of a file, not to
its name: a file that is moved or restored is not read again. Of answers, only offsets are held in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from memagent.documents.files import FileState
from memagent.errors import SettingsError
from memagent.reading.many.rows import FileRow, recalled, recorded
from memagent.storage import Log, read_log

FORMAT = 1
_LOG_FILE = "record.jsonl"


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was when it was last read: its state, and its content.

    `content` identifies its bytes and how they are read; `error` says why it has no text.
    """

    state: FileState
    content: str = ""
    error: str = ""

    def line(self) -> dict[str, Any]:
        """The values that a line of the record holds."""
        return {**asdict(self.state), "content": self.content, "error": self.error}

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> Self:
        """Read what `line` returned. Raises `TypeError` or `KeyError` for anything else."""
        state = dict(line)
        content, error = state.pop("content"), state.pop("error")
        return cls(FileState(**state), content, error)


def key_of(content: str, identity: Mapping[str, Any]) -> str:
    """The key of an answer, made from the content that was read and everything that was asked of it."""
    whole = json.dumps([content, identity], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()[:32]


class Record:
    """The record in a folder, held by one process; without a folder, it is gone with the process."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.seen: dict[str, Seen] = {}
        self._places: dict[str, int] = {}  # offsets of answers in the log, by their keys
        self._rows: dict[str, FileRow] = {}  # if there is no log
        self._log = Log(folder / _LOG_FILE) if folder else None
        if self._log is None:
            return
        try:
            for line, place in self._log.lines():
                self._take(line, place)
            if not self._log.end:
                self._log.append({"type": "header", "format": FORMAT})
        except BaseException:
            self._log.close()
            raise

    @classmethod
    def peek(cls, folder: Path | None) -> Self:
        """What is on record, without claiming or creating anything: which answers exist, not their rows."""
        record = cls(None)
        if folder and (folder / _LOG_FILE).exists():
            for line in read_log(folder / _LOG_FILE):
                record._take(line, 0)
        return record

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._rows

    def row(self, key: str, file: str) -> FileRow:
        """The answer with this key, as a row for a file that has the content now."""
        if self._log is None:
            return recalled(recorded(self._rows[key]), file)
        return recalled(self._log.at(self._places[key])["row"], file)

    def see(self, file: str, seen: Seen) -> None:
        """Record the state of a file. Blocks."""
        if self.seen.get(file) != seen:
            self.seen[file] = seen
            if self._log:
                self._log.append({"type": "seen", "file": file, "seen": seen.line()})

    def add(self, key: str, row: FileRow, seen: Seen) -> None:
        """Write an answer to disk. Blocks."""
        self.seen[row.file] = seen
        if self._log is None:
            self._rows[key] = row
            return
        line = {"type": "row", "key": key, "row": recorded(row), "file": row.file, "seen": seen.line()}
        self._places[key] = self._log.append(line)

    def _take(self, line: Mapping[str, Any], place: int) -> None:
        try:
            match line["type"]:
                case "header":
                    if line["format"] != FORMAT:
                        raise SettingsError(
                            f"the record next to the table has format {line['format']}, this version reads "
                            f"{FORMAT}: name another table"
                        )
                case "row":
                    recalled(line["row"], line["file"])
                    self._places[line["key"]] = place
            if "seen" in line:
                self.seen[line["file"]] = Seen.of_line(line["seen"])
        except (TypeError, KeyError) as error:
            raise SettingsError(
                f"the record next to the table is from another memagent version ({error}): name another table"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._log:
            self._log.close()
