"""A training run's metrics: a JSON line per step in metrics.jsonl, also shown in TensorBoard and W&B.

The file is the record; the trackers are for viewing. docs/training.md explains the names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from memagent.errors import SettingsError, reason
from memagent.storage import Log, read_log, write_whole
from memagent.training.trackers import MetricsRow, Trackers

METRICS_FILE = "metrics.jsonl"
SETTINGS_FILE = "settings.json"


class MetricsLog:
    """The metrics of a run, open for appending; made by `open_metrics`."""

    def __init__(self, log: Log, trackers: Trackers) -> None:
        self._log = log
        self._trackers = trackers

    def write(self, stage: str, step: int, values: Mapping[str, float], haystack: str = "") -> None:
        """Append a line; it is on disk when this returns. Raises `SettingsError` if it cannot be written.

        `haystack` names what the documents of an evaluation were made from, if they were.
        """
        # JSON has neither NaN nor infinity; a loss that blew up is written as null, and read as NaN.
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        made_from = {"haystack": haystack} if haystack else {}
        self._log.append({"stage": stage, "step": step, **finite, **made_from})
        self._trackers.write(stage, step, values)

    def position(self) -> int:
        """The byte offset where the last line ends. A checkpoint stores it to continue from there."""
        return self._log.end


@contextmanager
def open_metrics(
    folder: Path, settings_record: Mapping[str, Any], offset: int | None = None
) -> Iterator[MetricsLog]:
    """Open the metrics of the run in `folder`: a new run, or one that continues at `offset`.

    `offset` is the `position` stored in a checkpoint. Lines after it are cut off, because their steps are
    repeated: a resumed run has exactly the lines of an uninterrupted one. The settings go to settings.json.
    Raises `SettingsError` if the folder holds a run and `offset` is not given, if the file is shorter than
    `offset`, if another process is writing to it, or if it cannot be written.
    """
    with Log(folder / METRICS_FILE) as log:
        if offset is None and log.size():
            raise SettingsError(f"{folder} holds a training run: use `resume`, or choose another `out`")
        if (offset or 0) > log.size():
            raise SettingsError(
                f"{log.path} has {log.size():,} bytes, {offset:,} when the checkpoint was written: "
                "restore the run's own file, or start another run"
            )
        try:
            log.cut(offset or 0)
            kept = [_parse_row(line, log.path) for line, _ in log.lines()]
            write_whole(folder / SETTINGS_FILE, json.dumps(settings_record, indent=2) + "\n")
        except OSError as error:
            raise SettingsError(f"{folder} cannot be written: {reason(error)}") from error
        with closing(Trackers(folder, settings_record, kept)) as trackers:
            yield MetricsLog(log, trackers)


def read_metrics(folder: Path) -> list[MetricsRow]:
    """The rows of a run, which may still be in progress.

    Raises `SettingsError` if there is no file, or if one of its lines is not a row.
    """
    path = folder / METRICS_FILE
    if not path.is_file():
        raise SettingsError(f"there is no {path}: is {folder} a folder of memagent train?")
    return [_parse_row(line, path) for line in read_log(path)]


def _parse_row(line: dict[str, Any], path: Path) -> MetricsRow:
    try:
        stage, step = str(line.pop("stage")), int(line.pop("step"))
        line.pop("haystack", None)
        values = {name: math.nan if it is None else float(it) for name, it in line.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{path} has a line that is not a row of memagent train ({error})") from error
    return MetricsRow(stage, step, values)
