"""Metrics in TensorBoard and W&B, each if it is installed.

A tracker is a convenience: if it is missing or fails, training continues.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

_log = logging.getLogger("memagent")
_PROJECT = "memagent"


class MetricsRow(NamedTuple):
    """What was measured at one step of a stage: "warm_start", "training" or "evaluation"."""

    stage: str
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Tracker:
    write: Callable[[str, int, Mapping[str, float]], None]
    close: Callable[[], None]


class Trackers:
    """The trackers of a run. `kept` are the rows of a resumed run."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        kept: Iterable[MetricsRow] = (),
    ) -> None:
        self._used: dict[str, _Tracker] = {}
        starts = {
            "TensorBoard": partial(_tensorboard, folder / "tensorboard", kept),
            "W&B": partial(_wandb, folder, settings),
        }
        for name, start in starts.items():
            with self._guard(name):
                self._used[name] = start()

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Show a row."""
        for name, tracker in list(self._used.items()):
            with self._guard(name):
                tracker.write(stage, step, values)

    def close(self) -> None:
        """Flush and close the trackers."""
        for name, tracker in list(self._used.items()):
            with self._guard(name):
                tracker.close()
        self._used.clear()

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """Turn off a tracker that fails, instead of ending the training run."""
        try:
            yield
        except ModuleNotFoundError:
            self._used.pop(name, None)
        except Exception as error:  # noqa: BLE001 - the boundary: these packages may raise anything
            self._used.pop(name, None)
            _log.warning("%s is turned off: %s: %s", name, type(error).__name__, error)


def _tensorboard(folder: Path, kept: Iterable[MetricsRow]) -> _Tracker:
    """Event files, rewritten from the kept rows, so that a resumed run has no step twice.

    Uses TensorBoard's own writer: torch's is the same, but imports torch.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(folder))

    def add(stage: str, step: int, values: Mapping[str, float]) -> None:
        points = [Summary.Value(tag=f"{stage}/{name}", simple_value=it) for name, it in values.items()]
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))

    def write(stage: str, step: int, values: Mapping[str, float]) -> None:
        add(stage, step, values)
        writer.flush()

    for row in kept:
        add(*row)
    writer.flush()
    return _Tracker(write, writer.close)


def _wandb(folder: Path, settings: Mapping[str, Any]) -> _Tracker:
    """A run with its own id, offline unless WANDB_API_KEY or WANDB_MODE is set.

    Each stage has its own step axis, on which a repeated step replaces the first one.
    """
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        name=folder.resolve().name,
        id=_wandb_id(folder / "wandb" / "id"),
        resume="allow",
        dir=str(folder),
        config=dict(settings),
        mode="offline" if not os.environ.keys() & {"WANDB_API_KEY", "WANDB_MODE"} else None,
        settings=wandb.Settings(silent=True, console="off"),
    )
    stages: set[str] = set()

    def write(stage: str, step: int, values: Mapping[str, float]) -> None:
        if stage not in stages:
            stages.add(stage)
            run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        run.log({f"{stage}/step": step, **{f"{stage}/{name}": it for name, it in values.items()}})

    return _Tracker(write, run.finish)


def _wandb_id(path: Path) -> str:
    """The id of the run, made once and kept in its folder."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12], "utf-8")
    return path.read_text("utf-8")
