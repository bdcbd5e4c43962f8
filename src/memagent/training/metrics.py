"""A training run's metrics: a JSON line per step in metrics.jsonl, also shown in TensorBoard and W&B.

The file is the record; the trackers are for viewing: one that is not installed or fails is left out, and
training continues. docs/training.md explains the names.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from memagent.errors import SettingsError, reason
from memagent.storage import Log, read_log, write_whole
from memagent.types import Group

METRICS_FILE = "metrics.jsonl"
SETTINGS_FILE = "settings.json"

_log = logging.getLogger("memagent")
_TOKEN_MEANS = ("loss", "kl", "entropy", "clip_low", "clip_high", "clip_dual", "mismatch")


class MetricsRow(NamedTuple):
    """What was measured at one step of a stage: "warm_start", "training" or "evaluation"."""

    stage: str
    step: int
    values: Mapping[str, float]


class _Tracker(NamedTuple):
    write: Callable[[MetricsRow], None]
    close: Callable[[], None]


class MetricsLog:
    """The metrics of a run, open for appending; made by `open_metrics`."""

    def __init__(self, log: Log, trackers: Mapping[str, Callable[[], _Tracker]]) -> None:
        self._log = log
        self._trackers: dict[str, _Tracker] = {}
        for name, start in trackers.items():
            with self._guard(name):
                self._trackers[name] = start()

    def write(self, stage: str, step: int, values: Mapping[str, float], haystack: str = "") -> None:
        """Append a line; it is on disk when this returns. Raises `SettingsError` if it cannot be written.

        `haystack` names what the documents of an evaluation were made from, if anything.
        """
        # JSON has neither NaN nor infinity; a loss that blew up is written as null, and read as NaN.
        finite = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
        made_from = {"haystack": haystack} if haystack else {}
        self._log.append({"stage": stage, "step": step, **finite, **made_from})
        for name, tracker in list(self._trackers.items()):
            with self._guard(name):
                tracker.write(MetricsRow(stage, step, values))

    def position(self) -> int:
        """The byte offset where the last line ends. A checkpoint stores it to continue from there."""
        return self._log.end

    def close(self) -> None:
        """Flush and close the trackers."""
        for name, tracker in list(self._trackers.items()):
            with self._guard(name):
                tracker.close()

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """Turn off a tracker that fails, instead of ending the training run."""
        try:
            yield
        except ModuleNotFoundError:
            self._trackers.pop(name, None)
        except Exception as error:  # noqa: BLE001 - the boundary: these packages may raise anything
            self._trackers.pop(name, None)
            _log.warning("%s is turned off: %s: %s", name, type(error).__name__, error)


@contextmanager
def open_metrics(
    folder: Path, settings_record: Mapping[str, Any], offset: int | None = None
) -> Iterator[MetricsLog]:
    """Open the metrics of the run in `folder`: a new run, or one that continues at a checkpoint's `offset`.

    Lines after it are cut off, because their steps are repeated: a resumed run has exactly the lines of an
    uninterrupted one. The settings go to settings.json. Raises `SettingsError` if the folder holds a run and
    `offset` is not given, if the file is shorter, or if it cannot be written or is in use.
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
            rows = [_parse_row(line, log.path) for line, _ in log.lines()]
            write_whole(folder / SETTINGS_FILE, json.dumps(settings_record, indent=2) + "\n")
        except OSError as error:
            raise SettingsError(f"{folder} cannot be written: {reason(error)}") from error
        trackers = {
            "TensorBoard": partial(_start_tensorboard, folder / "tensorboard", rows),
            "W&B": partial(_start_wandb, folder, settings_record),
        }
        with closing(MetricsLog(log, trackers)) as metrics:
            yield metrics


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
        values = {name: math.nan if value is None else float(value) for name, value in line.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"{path} has a line that is not a row of memagent train ({error})") from error
    return MetricsRow(stage, step, values)


def _start_tensorboard(folder: Path, rows: Iterable[MetricsRow]) -> _Tracker:
    """Event files, rewritten from the `rows` so far, so that a resumed run has no step twice.

    Uses TensorBoard's own writer: torch's is the same, but imports torch.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(folder))

    def write(row: MetricsRow) -> None:
        points = [
            Summary.Value(tag=f"{row.stage}/{name}", simple_value=row.values[name]) for name in row.values
        ]
        writer.add_event(Event(wall_time=time.time(), step=row.step, summary=Summary(value=points)))
        writer.flush()

    for row in rows:
        write(row)
    return _Tracker(write, writer.close)


def _start_wandb(folder: Path, settings: Mapping[str, Any]) -> _Tracker:
    """A run with its own id, offline unless WANDB_API_KEY or WANDB_MODE is set.

    Each stage has its own step axis, on which a repeated step replaces the first one.
    """
    import wandb

    path = folder / "wandb" / "id"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12], "utf-8")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "memagent"),
        name=folder.resolve().name,
        id=path.read_text("utf-8"),
        resume="allow",
        dir=str(folder),
        config=dict(settings),
        mode="offline" if not os.environ.keys() & {"WANDB_API_KEY", "WANDB_MODE"} else None,
        settings=wandb.Settings(silent=True, console="off"),
    )
    stages: set[str] = set()

    def write(row: MetricsRow) -> None:
        if row.stage not in stages:
            stages.add(row.stage)
            run.define_metric(f"{row.stage}/*", step_metric=f"{row.stage}/step")
        values = {"step": row.step, **row.values}
        run.log({f"{row.stage}/{name}": value for name, value in values.items()})

    return _Tracker(write, run.finish)


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """The counts of one group: `position` is its example's in the data, `sums` are over all conversations."""

    position: int
    task: str
    rewards: tuple[float, ...]
    longest_reply_tokens: int
    sums: Counter[str]

    @property
    def equal(self) -> bool:
        """Whether all rewards are the same, so that there is nothing to learn from them."""
        return len(set(self.rewards)) == 1


def count_group(group: Group, position: int) -> GroupCounts:
    """Count one group."""
    sums: Counter[str] = Counter()
    longest = 0
    for trajectory in group.trajectories:
        before, cut = "", False
        for conversation in trajectory.conversations:
            completion = conversation.completion
            tokens, cut = len(completion.completion_ids), completion.finish_reason == "length"
            longest = max(longest, tokens)
            sums.update(conversations=1, completion_tokens=tokens)
            if conversation.kind == "update":
                sums.update(updates=1, memory_tokens=tokens, cut=cut, unchanged=conversation.memory == before)
            else:
                sums.update(answer_tokens=tokens)
            before = conversation.memory
        if trajectory.error is not None:
            sums.update(failed=1, failed_cut=cut)
    rewards = tuple(trajectory.reward or 0.0 for trajectory in group.trajectories)
    return GroupCounts(position, group.example.task, rewards, longest, sums)


def compute_means(
    counts: Sequence[GroupCounts], rounds: int, skipped: int, drop_equal: bool
) -> dict[str, float]:
    """The metrics of a step, over all its groups, including those that were dropped; some also by task."""
    rewards = [reward for group in counts for reward in group.rewards]
    sums = sum((group.sums for group in counts), Counter[str]())
    updates, answers = max(sums["updates"], 1), max(sums["conversations"] - sums["updates"], 1)
    by_task: defaultdict[str, list[GroupCounts]] = defaultdict(list)
    for group in counts:
        by_task[group.task].append(group)
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "groups": len(counts),
        "groups_dropped": len(counts) - len(select_groups(counts, drop_equal)),
        "equal_groups": fmean(group.equal for group in counts),
        "rounds": rounds,
        "examples_skipped": skipped,
        **{name: sums[name] for name in ("failed", "failed_cut", "conversations", "completion_tokens")},
        "memory_tokens": sums["memory_tokens"] / updates,
        "answer_tokens": sums["answer_tokens"] / answers,
        "longest_reply_tokens": max(group.longest_reply_tokens for group in counts),
        "cut": sums["cut"] / updates,
        "unchanged": sums["unchanged"] / updates,
        **{
            f"{name}/{task}": value
            for task, groups in sorted(by_task.items())
            for name, value in (
                ("reward", fmean(reward for group in groups for reward in group.rewards)),
                ("equal_groups", fmean(group.equal for group in groups)),
            )
        },
    }


def compute_update_means(everywhere: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means over all tokens and updates of a step, from the learner's sums in each process."""
    first, sums = defaultdict(float, everywhere[0]), defaultdict[str, float](float)
    for process in everywhere:
        for name, value in process.items():
            sums[name] += value
    tokens, updates, seconds = max(sums["tokens"], 1.0), max(first["steps"], 1.0), first["seconds"]
    return {name: sums[name] / tokens for name in _TOKEN_MEANS if name in sums} | {
        "tokens": sums["tokens"],
        "sequence_tokens": sums["sequence_tokens"],
        "gradient_norm": first["gradient_norm"] / updates,
        "learning_rate": first["learning_rate"] / updates,
        "updates_skipped": first["skipped"],
        "update_seconds": seconds,
        "update_tokens_per_second": sums["sequence_tokens"] / seconds if seconds else 0.0,
    }


def select_groups(counts: Iterable[GroupCounts], drop_equal: bool) -> list[int]:
    """The positions of the groups that are trained on, task by task, each in the data's order."""
    chosen = (group for group in counts if not (drop_equal and group.equal))
    return [group.position for group in sorted(chosen, key=lambda group: (group.task, group.position))]
