"""A batch of reads, made side by side here or on a Ray cluster, and the log of its rows.

A read that fails becomes a row; what is on record is not read again. Callers decide what an item is and what
its row says. On a cluster (the extra `ray`), one actor on each node has its own engine; every node needs
memagent and access to the files that the command names, and losing one ends the run.
"""

from __future__ import annotations

import asyncio
import importlib
import resource
import socket
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from memagent.concurrency import map_concurrent
from memagent.engines import choose, open_engine
from memagent.errors import EngineError, MemAgentError, SettingsError, extra_hint, without_secrets
from memagent.settings import EngineSettings
from memagent.storage import Log, read_log
from memagent.types import NOTHING_SPENT, Engine, Spent

Item = TypeVar("Item")
Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
Row = TypeVar("Row")

Work = Callable[[Engine, Any], Awaitable[Any]]
"""Does one item of work with an engine: on a cluster, that of a node."""

FindKeys = Callable[[Mapping[str, Any]], Mapping[Hashable, Any]]
"""The keys of a line, each with the value to keep in memory for it; None if the line is to be read again.

Raises `SettingsError` for a line that no such run has written.
"""

_CONNECT_SECONDS = 5.0
_OTHER_FILES, _FILES_A_READ = 64, 4
"""How many open files to leave for everything else, and how many one read may need at once."""


@dataclass(slots=True)
class ReadFailure:
    """Why a read failed: the error, without secrets, and its class. Both are None if it did not."""

    error: str | None = None
    cause: str | None = None

    def __bool__(self) -> bool:
        return self.error is not None


@contextmanager
def record_failure(*kinds: type[MemAgentError]) -> Iterator[ReadFailure]:
    """Record an error of these kinds and continue: only here does a failed read become part of a row."""
    failure = ReadFailure()
    try:
        yield failure
    except kinds as error:
        failure.error, failure.cause = without_secrets(str(error)), type(error).__name__


@dataclass(slots=True)
class RunProgress:
    """How far a run, or a part of it, has got.

    `done` of `total` rows are known, of which `kept` are from an earlier run and `failed` have no result.
    `spent` is what the others have taken, `max_calls` the most calls of a single row.
    """

    total: int = 0
    done: int = 0
    kept: int = 0
    failed: int = 0
    spent: Spent = NOTHING_SPENT
    max_calls: int = 0
    _since: float = field(default_factory=time.monotonic, compare=False)

    def add(self, spent: Spent, *, kept: bool = False, failed: bool = False) -> None:
        """Count a row."""
        self.done += 1
        self.kept += kept
        self.failed += failed
        if not kept:
            self.spent += spent
            self.max_calls = max(self.max_calls, spent.calls)

    @property
    def seconds_left(self) -> float | None:
        """The time that the other rows will take at the rate of this run so far; None if that is unknown."""
        return self._extrapolate(time.monotonic() - self._since)

    @property
    def cost_left(self) -> float | None:
        """What the other rows will cost at the mean of this run so far; None if that is unknown."""
        return self._extrapolate(self.spent.cost)

    def _extrapolate(self, spent: float | None) -> float | None:
        new = self.done - self.kept
        return spent / new * (self.total - self.done) if new and spent is not None else None


async def run_batch(
    items: Iterable[Item] | AsyncIterable[Item],
    read: Callable[[Engine, Task], Awaitable[Outcome]],
    take: Callable[[Callable[[Task], Awaitable[Outcome]], Item], Awaitable[Row]],
    engine: Engine,
    settings: EngineSettings,
    ray: str | None = None,
) -> AsyncGenerator[Row, None]:
    """Process all items, as many at a time as there are calls, and yield each row as soon as it is known.

    Args:
        items: what there is to read; one is taken only when there is room for it.
        read: makes a read, on a cluster in the process of a node.
        take: turns an item into a row and records it, in this process; it is given the function that reads.
        engine: what makes the reads here.
        settings: those with which the nodes of a cluster open engines of their own.
        ray: the address of the cluster, if the reads are to be made there.

    An error ends the run. Raises `SettingsError` without the extra `ray` or the cluster.
    """
    at_once = engine.model.calls
    here = nullcontext((partial(read, engine), min(at_once, room_for_reads())))
    async with (
        open_cluster(ray, settings, read, at_once) if ray else here as (reader, most),
        aclosing(map_concurrent(partial(take, reader), items, most, ordered=False)) as rows,
    ):
        async for row in rows:
            yield row


def room_for_reads() -> int:
    """How many reads may run at once without exceeding the limit of open files."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return 10_000
    return max(1, (allowed - _OTHER_FILES) // _FILES_A_READ)


@asynccontextmanager
async def open_cluster(
    address: str, settings: EngineSettings, work: Work, at_once: int
) -> AsyncGenerator[tuple[Callable[[Any], Awaitable[Any]], int], None]:
    """Start an actor on each node of the cluster; each does up to `at_once` items of work at a time.

    Yields what does an item on a free node, and how many items may be in progress. It raises what was raised
    on the node, and `EngineError` for a lost node. Raises `SettingsError` without the extra or the cluster.
    """
    ray = _connect(address)
    nodes = _start_nodes(ray, settings, work)
    free: asyncio.Queue[Any] = asyncio.Queue()
    for node in nodes * at_once:
        free.put_nowait(node)

    async def do(item: object) -> Any:
        node = await free.get()
        try:
            return await _outcome(ray, node.do.remote(item))
        finally:
            free.put_nowait(node)

    try:
        await asyncio.gather(*(_outcome(ray, node.open.remote()) for node in nodes))
        yield do, len(nodes) * at_once
    finally:
        for node in nodes:
            ray.kill(node)


async def _outcome(ray: Any, call: Any) -> Any:
    """The result of a call to an actor; errors are raised as they were raised there."""
    try:
        return await call
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, MemAgentError) else error from None
    except ray.exceptions.RayActorError as error:
        raise EngineError(f"a node of the cluster was lost: continue with `resume` ({error})") from error


class Node:
    """The actor on a node: it has its own engine, and `do` may run for several items at once."""

    def __init__(self, settings: EngineSettings, work: Work) -> None:
        self.opening, self.work = open_engine(settings), work

    async def open(self) -> None:
        """Open the engine. Call this once."""
        self.engine: Engine = await self.opening.__aenter__()

    async def do(self, item: object) -> Any:
        """Do an item of work and return its result."""
        return await self.work(self.engine, item)


def _connect(address: str) -> Any:
    """Ray, connected to the cluster. Raises `SettingsError`."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise SettingsError(f"`ray` needs more packages: {extra_hint('ray')}") from error
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingsError(f"there is no Ray cluster at {address}: {error}") from error
    return ray


def _start_nodes(ray: Any, settings: EngineSettings, work: Work) -> list[Any]:
    """One actor on each live node with CPUs; if the model runs in the actor, it gets the node's GPUs."""
    affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote = ray.remote(Node)
    embedded = choose(settings).embedded
    return [
        remote.options(
            num_cpus=0,
            num_gpus=node["Resources"].get("GPU", 0) if embedded else 0,
            max_concurrency=1000,
            scheduling_strategy=affinity(node_id=node["NodeID"], soft=False),
        ).remote(settings, work)
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    ]


class RunLog:
    """A log whose lines are looked up by their keys; the last line with a key counts.

    One process at a time locks it, and keeps the offsets of the lines in memory. Without `claim`, another
    process may have it locked, and nothing is created or written; without a `path`, there is nothing on disk
    at all. What is appended then stays in memory.
    """

    def __init__(self, path: Path | None, find_keys: FindKeys, claim: bool = True) -> None:
        self._find_keys = find_keys
        self._entries: dict[Hashable, Any] = {}  # the value of a key, or else its line or the line's offset
        self._log = Log(path) if path and claim else None
        try:
            if self._log:
                for line, offset in self._log.lines():
                    self._take(find_keys(line), offset)
            elif path and path.exists():
                for line in read_log(path):
                    self._take(find_keys(line), line)
        except BaseException:
            self.close()
            raise

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """The value in memory for a key, or else its line; None if there is none. Blocks."""
        entry = self._entries.get(key)
        return self._log.at(entry) if self._log and isinstance(entry, int) else entry

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line to disk. Blocks. Raises `SettingsError`, also for a line that has no keys."""
        keys = self._find_keys(line)
        self._take(keys, self._log.append(line) if self._log else line)

    def _take(self, keys: Mapping[Hashable, Any], location: int | Mapping[str, Any]) -> None:
        self._entries.update((key, location if value is None else value) for key, value in keys.items())

    def close(self) -> None:
        """Release the log."""
        if self._log:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
