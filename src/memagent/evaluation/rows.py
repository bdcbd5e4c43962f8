"""What an evaluation leaves on disk: run.json says what was run, rows.jsonl holds one row an attempt.

A row is appended as soon as its attempt has ended. A crash can tear the last line only; it is cut
off when the run goes on. See docs/evaluation.md for the fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from memagent.errors import SettingsError, without_secrets
from memagent.reading.journal import claim, difference

FORMAT = 1
RUN_FILE = "run.json"
ROWS_FILE = "rows.jsonl"

# Where and when a run took place, what follows from its plan, what only bounds it: no row depends on these.
_INCIDENTAL = ("command", "python", "attempts")
_INCIDENTAL_SETTINGS = ("engine", "base_url", "concurrency", "timeout_seconds", "retries", "threads")
_SECRET_SETTINGS = ("api_key",)

Key = tuple[str, int | None, int | None, int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """One attempt of one reader at one example.

    `length` (tokens) or `documents` is the size asked for, `index` the example's number at that
    size. A failed attempt has an `error`, its `cause` (the error's class) and the score 0; its
    counts are those of what it did before. `cut` counts replies that ended at their token budget.
    `depth` is where in the document the answer stands, 0 to 1, if it stands there just once.
    """

    task: str
    length: int | None
    documents: int | None
    index: int
    reader: str
    sample: int
    example_id: str
    score: float
    prediction: str
    answers: tuple[str, ...]
    error: str | None
    cause: str | None
    calls: int
    cut: int
    prompt_tokens: int
    completion_tokens: int
    length_tokens: int
    depth: float | None
    seconds: float

    @property
    def key(self) -> Key:
        """What a run has only one row of."""
        return (self.task, self.length, self.documents, self.index, self.reader, self.sample)


class RowLog:
    """The rows of a run, open for appending; `done` has the keys of those that are there."""

    def __init__(self, folder: Path, done: set[Key], file: IO[str]) -> None:
        self.folder = folder
        self.done = done
        self._file = file

    def append(self, row: EvaluationRow) -> None:
        """Write a row, whole, to the operating system. Raises `SettingsError` if that cannot be."""
        try:
            self._file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise SettingsError(
                f"{self.folder} cannot be written: {error.strerror}; once it can, --resume goes on"
            ) from error
        self.done.add(row.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what could not be written was told of already
            self._file.close()


def open_rows(folder: Path, header: Mapping[str, Any], resume: bool) -> RowLog:
    """The rows of a run in `folder`, new or, with `resume`, those that are there already.

    Raises `SettingsError` if the folder holds a run and `resume` is not asked for, if its run had
    other settings than `header` has, if another process is writing there, or if it cannot be written.
    """
    header = json.loads(json.dumps({"format": FORMAT, **header}))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ROWS_FILE).open("a", encoding="utf-8", errors="backslashreplace", newline="\n")
        try:
            claim(file, SettingsError(f"another evaluation is writing to {folder}: choose another --out"))
            done = _go_on(folder, header, file, resume)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror or error}") from error
    return RowLog(folder, done, file)


def _go_on(folder: Path, header: Mapping[str, Any], file: IO[str], resume: bool) -> set[Key]:
    """Check that the folder is free or holds this run; returns what is done, the torn end cut off."""
    path = folder / RUN_FILE
    if not path.exists() and file.tell() == 0:
        write_whole(path, json.dumps(header, indent=2, ensure_ascii=False) + "\n")
        return set()
    if not resume:
        raise SettingsError(
            f"{folder} holds an evaluation: add --resume to go on with it, or choose another --out"
        )
    if changed := difference(_identity(read_header(folder)), _identity(header)):
        raise SettingsError(f"{folder} cannot be resumed: {changed}")
    done: set[Key] = set()
    kept = 0
    for row, end in _lines(folder / ROWS_FILE):
        done.add(row.key)
        kept = end
    os.truncate(file.fileno(), kept)
    return done


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, "utf-8")
    beside.replace(path)


def storable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are kept: without the endpoint's key, and with no secrets in its address."""
    kept = {name: value for name, value in settings.items() if name not in _SECRET_SETTINGS}
    return {name: without_secrets(value) if isinstance(value, str) else value for name, value in kept.items()}


def _identity(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the rows depend on: a run goes on only where this is the same."""
    kept = {name: value for name, value in header.items() if name not in _INCIDENTAL}
    settings = dict(kept.get("settings") or {})
    for name in _INCIDENTAL_SETTINGS:
        settings.pop(name, None)
    return {**kept, "settings": settings}


def read_header(folder: Path) -> dict[str, Any]:
    """A run's run.json. Raises `SettingsError` if there is none that can be read."""
    path = folder / RUN_FILE
    try:
        header = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}: is it a folder of memagent eval?"
        ) from error
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        raise SettingsError(f"{path} has format {found}, this version reads {FORMAT}")
    return dict(header)


def read_rows(folder: Path) -> Iterator[EvaluationRow]:
    """A run's rows; a torn last line is left out. Raises `SettingsError` for a line that is no row."""
    return (row for row, _ in _lines(folder / ROWS_FILE))


def _lines(path: Path) -> Iterator[tuple[EvaluationRow, int]]:
    """The rows, each with the offset of its end in bytes."""
    end = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    return
                end += len(raw)
                yield _row(raw, path, number), end
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error


def _row(raw: bytes, path: Path, number: int) -> EvaluationRow:
    try:
        values = json.loads(raw)
        return EvaluationRow(**{**values, "answers": tuple(values["answers"])})
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{path}, line {number}: not a row of memagent eval ({error})") from error
