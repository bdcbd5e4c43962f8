"""A training run's metrics: a JSON line a step in metrics.jsonl, shown in TensorBoard and W&B as well.

The file is the record; the others are for looking at. What the names mean stands in docs/training.md.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from memagent.errors import SettingsError
from memagent.evaluation.rows import write_whole
from memagent.reading.journal import claim
from memagent.training.trackers import Mirrors

METRICS_FILE = "metrics.jsonl"
SETTINGS_FILE = "settings.json"


class MetricsRow(NamedTuple):
    """What was measured at one step of a stage: "warm_start", "training" or "evaluation"."""

    stage: str
    step: int
    values: Mapping[str, float]


class Metrics:
    """The metrics of a run, open for appending; made by `open_metrics`."""

    def __init__(self, folder: Path, file: IO[bytes], mirrors: Mirrors) -> None:
        self.folder = folder
        self._file = file
        self._mirrors = mirrors

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Append a line, on the disk when this returns. Raises `SettingsError` if that cannot be."""
        # JSON has no NaN and no infinity; a loss that blew up is told as null, and read back as NaN.
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps({"stage": stage, "step": step, **finite}, allow_nan=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        self._mirrors.write(stage, step, values)

    def position(self) -> int:
        """The offset in bytes behind the last line: what a checkpoint keeps, to go on from here."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file and the mirrors."""
        self._mirrors.close()
        with suppress(OSError):  # what could not be written was told of already
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_metrics(folder: Path, settings_record: Mapping[str, Any], offset: int | None = None) -> Metrics:
    """The metrics of a run in `folder`: a new one, or one that goes on at `offset`.

    `offset` is the `position` that a checkpoint has kept. Lines behind it are cut off, since the steps that
    they tell of are taken again: so a resumed run has the very lines of one that went through. The
    settings go to settings.json. Raises `SettingsError` if the folder holds a run and `offset` is not
    given, if the file is shorter than that, if another process is writing there, or if it cannot be written.
    """
    path = folder / METRICS_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        try:
            claim(file, SettingsError(f"another training run is writing to {folder}: choose another --out"))
            _cut(file, path, offset)
            write_whole(folder / SETTINGS_FILE, json.dumps(settings_record, indent=2) + "\n")
            kept = read_metrics(folder)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise _unwritable(folder, error) from error
    return Metrics(folder, file, Mirrors(folder, settings_record, kept))


def _cut(file: IO[bytes], path: Path, offset: int | None) -> None:
    length = file.tell()
    if offset is None:
        if length:
            raise SettingsError(f"{path.parent} holds a training run: resume it, or choose another folder")
    elif offset > length:
        raise SettingsError(
            f"{path} has {length:,} bytes, {offset:,} when the checkpoint was written: "
            "put the run's own file back, or start another run"
        )
    else:
        os.truncate(file.fileno(), offset)
        file.seek(offset)


def read_metrics(folder: Path) -> list[MetricsRow]:
    """The rows of a run; a last line that was cut off by a crash is left out.

    Raises `SettingsError` if there is no file, or a line of it is no row.
    """
    path = folder / METRICS_FILE
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}: is it a folder of memagent train?"
        ) from error
    return [_row(raw, path, number) for number, raw in enumerate(lines, 1) if raw.endswith(b"\n")]


def _row(raw: bytes, path: Path, number: int) -> MetricsRow:
    try:
        values = json.loads(raw)
        stage, step = str(values.pop("stage")), int(values.pop("step"))
        return MetricsRow(
            stage, step, {name: math.nan if it is None else float(it) for name, it in values.items()}
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path}, line {number}: not a row of memagent train ({error})") from error


def _unwritable(folder: Path, error: OSError) -> SettingsError:
    return SettingsError(f"{folder} cannot be written: {error.strerror or error}")
