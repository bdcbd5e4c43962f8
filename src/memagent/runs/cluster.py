"""Spread reads over a Ray cluster (the extra `ray`): one actor with its own engine on each node.

Every node needs memagent and access to the files that the command names. Losing a node ends the run.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from memagent.engines import choose, open_engine
from memagent.errors import EngineError, MemAgentError, SettingsError, extra_hint
from memagent.settings import EngineSettings
from memagent.types import Engine

_CONNECT_SECONDS = 5.0

Do = Callable[[Engine, Any], Awaitable[Any]]
"""Does one item of work on a node."""


@asynccontextmanager
async def open_cluster(
    address: str, settings: EngineSettings, work: Do, at_once: int
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

    def __init__(self, settings: EngineSettings, work: Do) -> None:
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


def _start_nodes(ray: Any, settings: EngineSettings, work: Do) -> list[Any]:
    """One actor on each live node with CPUs; if the model runs in the actor, it gets the node's GPUs."""
    affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote = ray.remote(Node)
    embedded = choose(settings).engine != "openai"
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
