"""Spread an evaluation over a Ray cluster (the extra `ray`): an actor a node, examples dealt out to them.

The rows are those of a run on one machine, times aside, and only the driver writes them. Every node
needs memagent, and sees the files that the command names. Leaves out: continuing when a node is lost.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from memagent.concurrency import side_by_side
from memagent.engines import choose, open_engine
from memagent.errors import EngineError, MemAgentError, SettingsError, extra_hint
from memagent.evaluation.attempts import Attempt, attempt_row, attempts_of
from memagent.evaluation.plan import Plan, Work
from memagent.evaluation.rows import EvaluationRow
from memagent.settings import Settings
from memagent.types import Engine

_CONNECT_SECONDS = 5.0

Take = Callable[[EvaluationRow], Awaitable[None]]
"""What is done with each new row."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The module `ray`, an actor on each node, and how many attempts there are at an example."""

    ray: Any
    actors: list[Any]
    attempts: int


async def run_on_cluster(nodes: Nodes, calls: int, work: Iterator[Work], take: Take) -> None:
    """Have the work done on the nodes, `calls` attempts at a time on each, and give `take` each row.

    Raises `EngineError` if a node is lost, and what keeps an example from being made.
    """
    free: asyncio.Queue[Any] = asyncio.Queue()
    for actor in nodes.actors * ceil(calls / nodes.attempts):
        free.put_nowait(actor)

    async def deal(item: Work) -> None:
        actor = await free.get()
        for row in await _outcome(nodes.ray, actor.read.remote(item)):
            await take(row)
        free.put_nowait(actor)

    try:
        await asyncio.gather(*(_outcome(nodes.ray, actor.open.remote()) for actor in nodes.actors))
        async with aclosing(side_by_side(deal, work, free.qsize(), ordered=False)) as dealt:
            async for _ in dealt:
                pass
    finally:
        for actor in nodes.actors:
            nodes.ray.kill(actor)


async def _outcome(ray: Any, call: Any) -> Any:
    """What a call to an actor comes to, its errors as they were raised there."""
    try:
        return await call
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, MemAgentError) else error from None
    except ray.exceptions.RayActorError as error:
        raise EngineError(f"a node of the cluster was lost: continue with --resume ({error})") from error


class Node:
    """What runs on a node: an engine of its own, and the attempts at one example after another."""

    def __init__(self, plan: Plan, settings: Settings, traces: Path | None) -> None:
        self.plan, self.settings, self.traces = plan, settings, traces
        self.stack = AsyncExitStack()

    async def open(self) -> None:
        """Open the engine, once."""
        opened = open_engine(self.settings.engine)
        self.engine: Engine = await self.stack.enter_async_context(opened)

    async def read(self, work: Work) -> list[EvaluationRow]:
        """The rows of one example."""

        async def attempt(item: Attempt) -> EvaluationRow:
            return await attempt_row(self.plan, self.settings.read, self.engine, item, self.traces)

        attempts = attempts_of(self.plan, iter([work]), self.engine)
        return [row async for row in side_by_side(attempt, attempts, self.engine.model.calls)]


def connect(address: str, plan: Plan, settings: Settings, traces: Path | None) -> Nodes:
    """An actor on each node of the cluster. Raises `SettingsError` without the extra or the cluster."""
    ray = _connect(address)
    actors = _actors(ray, settings, (plan, settings, traces))
    return Nodes(ray, actors, len(plan.workflows) * plan.samples)


def _connect(address: str) -> Any:
    """The module `ray`, connected to the cluster."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise SettingsError(f"--ray needs more packages: {extra_hint('ray')}") from error
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingsError(f"there is no Ray cluster at {address}: {error}") from error
    return ray


def _actors(ray: Any, settings: Settings, given: tuple[Any, ...]) -> list[Any]:
    """One actor on each node that computes; a model that runs there gets the node's GPUs."""
    affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote = ray.remote(Node)
    embedded = choose(settings.engine).engine != "openai"
    return [
        remote.options(
            num_cpus=0,
            num_gpus=node["Resources"].get("GPU", 0) if embedded else 0,
            max_concurrency=1000,
            scheduling_strategy=affinity(node_id=node["NodeID"], soft=False),
        ).remote(*given)
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    ]
