"""Spread reads over a Ray cluster (the extra `ray`): one actor with its own engine on each node.

Every node needs memagent and access to the files that the command names. Losing a node ends the run.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from math import ceil
from typing import Any

from memagent.engines import choose, open_engine
from memagent.errors import EngineError, MemAgentError, SettingsError, extra_hint
from memagent.settings import EngineSettings
from memagent.types import Engine

_CONNECT_SECONDS = 5.0

Do = Callable[[Engine, Any], Awaitable[Any]]
"""Does one item of work on a node."""


class Dealer:
    """Hands each item of work to a free one of the actors, of which each has up to `items` in progress."""

    def __init__(self, ray: Any, actors: list[Any], items: int) -> None:
        self._ray, self._actors = ray, actors
        self.size = len(actors) * items
        """How many items may be in progress at once."""
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        for actor in actors * items:
            self._free.put_nowait(actor)

    async def __call__(self, item: object) -> Any:
        """Do an item and return its result. Raises what it raised there, `EngineError` for a lost node."""
        actor = await self._free.get()
        try:
            return await _outcome(self._ray, actor.do.remote(item))
        finally:
            self._free.put_nowait(actor)

    async def __aenter__(self) -> Dealer:
        """Open the engines."""
        try:
            opened = (_outcome(self._ray, actor.open.remote()) for actor in self._actors)
            await asyncio.gather(*opened)
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._end()

    def _end(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


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
        self.settings, self.work = settings, work
        self.stack = AsyncExitStack()

    async def open(self) -> None:
        """Open the engine. Call this once."""
        self.engine: Engine = await self.stack.enter_async_context(open_engine(self.settings))

    async def do(self, item: object) -> Any:
        """Do an item of work and return its result."""
        return await self.work(self.engine, item)


def connect(address: str, settings: EngineSettings, work: Do, calls: int, calls_an_item: int = 1) -> Dealer:
    """Start an actor on each node of the cluster, each to have `calls` in flight.

    Raises `SettingsError` without the extra or the cluster.
    """
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
    return Dealer(ray, _actors(ray, settings, work), ceil(calls / calls_an_item))


def _actors(ray: Any, settings: EngineSettings, work: Do) -> list[Any]:
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
