"""The files of an evaluation: run.json says what was run, rows.jsonl is a log of one row per attempt.

A row is on disk as soon as its attempt has ended. See docs/evaluation.md for the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memagent.errors import SettingsError, reason, without_secrets
from memagent.reading.journal import difference
from memagent.runs.batch import RunLog
from memagent.storage import read_json, read_log, write_whole
from memagent.types import Spent, unflatten

FORMAT = 2
RUN_FILE = "run.json"
ROWS_FILE = "rows.jsonl"

_NEEDED = {"version": str, "created": str, "command": str, "attempts": int, "model": dict, "plan": dict}
"""What every run.json has, among other things."""

# Where and when a run took place, what follows from its plan, and its limits: no row depends on these.
_INCIDENTAL = ("command", "python", "attempts")
_INCIDENTAL_SETTINGS = (
    "engine", "base_url", "concurrency", "connect_seconds", "timeout_seconds", "retries", "threads",
    "discover",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """A task at one size: `length` in tokens, or `documents`; neither if examples have their own lengths."""

    task: str
    length: int | None = None
    documents: int | None = None

    @property
    def size(self) -> str:
        """The size, for display."""
        if self.documents is not None:
            return f"{self.documents:,} documents"
        return f"{self.length:,} tokens" if self.length is not None else "as it is"


Key = tuple[Cell, int, str, int]
"""A cell, an example's number in it, a workflow, and a sample's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """One attempt of one workflow at one example.

    `length` (tokens) or `documents` is the size asked for, `index` the example's number at that size. A
    failed attempt has an `error`, its `cause` (the error's class) and the score 0. The counts are those of
    `Progress` when it ended. `haystack` is the example's. `depth` is the answer's position in the document, 0
    to 1, if it occurs there exactly once. `captured` tells whether the memory ever held what the answer
    needs, `retained` whether it did at the end; None without a memory, or if that is unknown.
    """

    task: str
    length: int | None
    documents: int | None
    index: int
    workflow: str
    sample: int
    example_id: str
    problem: str
    score: float
    prediction: str
    answers: tuple[str, ...]
    error: str | None
    cause: str | None
    spent: Spent
    cut: int
    length_tokens: int
    depth: float | None
    captured: bool | None
    retained: bool | None
    seconds: float
    critical_path: int
    chunks: int
    passed_over: int = 0
    unused: int = 0
    haystack: str = ""

    @property
    def cell(self) -> Cell:
        """The task at the size asked for."""
        return Cell(self.task, self.length, self.documents)

    @property
    def key(self) -> Key:
        """Identifies the row within its run."""
        return (self.cell, self.index, self.workflow, self.sample)


_ROW = TypeAdapter(EvaluationRow)


def open_rows(folder: Path, header: Mapping[str, Any], resume: bool, dry_run: bool = False) -> RunLog:
    """The rows of a run by their keys: a new run or, with `resume`, the one that is in `folder`. Blocks.

    A `dry_run` reads what the run would continue from, and writes nothing. Raises `SettingsError` if the
    folder holds a run and `resume` is False, if that run's settings differ from those in `header`, if another
    process is writing there, or if the folder cannot be written.
    """
    header = json.loads(json.dumps({"format": FORMAT, **header}))
    exists = (folder / RUN_FILE).exists()
    if exists and not (resume or dry_run):
        raise SettingsError(
            f"{folder} holds an evaluation: add `resume` to continue it, or choose another `out`"
        )
    if exists and resume and (changed := difference(_identity(read_header(folder)), _identity(header))):
        raise SettingsError(
            f"{folder} cannot be resumed: {changed.removeprefix('plan.')}; choose another `out` for it"
        )
    path = None if dry_run and not (exists and resume) else folder / ROWS_FILE
    rows = RunLog(path, lambda line: {_row(line, folder / ROWS_FILE).key: None}, claim=not dry_run)
    if exists or dry_run:
        return rows
    try:
        if rows:
            raise SettingsError(
                f"{folder / RUN_FILE} cannot be read, but there are rows: restore it, or choose another `out`"
            )
        write_whole(folder / RUN_FILE, json.dumps(header, indent=2, ensure_ascii=False) + "\n")
    except (OSError, SettingsError) as error:
        rows.close()
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{folder} cannot be written: {reason(error)}") from error
    return rows


def storable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are stored: without the endpoint's key or the secrets in its address."""
    return {
        name: without_secrets(value) if isinstance(value, str) else value
        for name, value in settings.items()
        if name != "api_key"
    }


def _identity(header: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the rows depend on: a run can be continued only if this is the same."""
    identity = {name: value for name, value in header.items() if name not in _INCIDENTAL}
    settings = dict(identity.get("settings") or {})
    for name in _INCIDENTAL_SETTINGS:
        settings.pop(name, None)
    return {**identity, "settings": settings}


def read_header(folder: Path) -> dict[str, Any]:
    """Read a run's run.json. Raises `SettingsError` if it cannot be read."""
    path = folder / RUN_FILE
    try:
        header = read_json(path)
    except SettingsError as error:
        raise SettingsError(f"{error}: is it a folder of memagent eval?") from error
    stored = header.get("format") if isinstance(header, dict) else None
    if stored != FORMAT:
        raise SettingsError(f"{path} has format {stored}, this version reads {FORMAT}")
    for name, kind in _NEEDED.items():
        if not isinstance(value := header.get(name), kind):
            raise SettingsError(
                f"{path} is damaged ({name} is {value!r}): restore it, or evaluate again into another folder"
            )
    return dict(header)


def read_rows(folder: Path) -> Iterator[EvaluationRow]:
    """A run's rows, each attempt once; a torn last line is left out. Raises `SettingsError`."""
    seen: set[Key] = set()
    for line in read_log(folder / ROWS_FILE):
        row = _row(line, folder / ROWS_FILE)
        if row.key not in seen:
            seen.add(row.key)
            yield row


def _row(line: Mapping[str, Any], path: Path) -> EvaluationRow:
    try:
        values = unflatten(line)
        EvaluationRow(**values)  # refuses unknown names
        row = _ROW.validate_python(values)
        if not 0 <= row.score <= 1:
            raise ValueError(f"its score is {row.score}, not from 0 to 1")
    except (ValueError, TypeError) as error:  # a ValidationError is a ValueError
        what: object = error
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
        raise SettingsError(f"{path}: {str(line)[:60]}... is not a row of memagent eval: {what}") from error
    return row
