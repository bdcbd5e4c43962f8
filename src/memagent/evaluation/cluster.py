"""Spread an evaluation over a Ray cluster (the extra `ray`): an actor a node, examples dealt out to them.

The rows are those of a run on one machine, times aside, and only the driver writes them. Every node
needs memagent, and sees the files that the command names. Leaves out: going on when a node is lost.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable, Iterable
from math import ceil
from typing import Any

from memagent.documents.tokens import estimate_tokens
from memagent.engines import choose, open_engine
from memagent.errors import EngineError, MemAgentError, SettingsError
from memagent.evaluation.attempts import attempt_row, slots
from memagent.evaluation.plan import Plan, Work
from memagent.evaluation.rows import EvaluationRow
from memagent.settings import Settings
from memagent.types import Engine, model_of

_CONNECT_SECONDS = 5.0


async def run_on_cluster(
    plan: Plan, settings: Settings, address: str, work: Iterable[Work], take: Callable[[EvaluationRow], None]
) -> None:
    """Have the work done on the cluster at `address`, and give `take` each row as it comes.

    Raises `SettingsError` without the extra or the cluster, `EngineError` if a node is lost, and what
    keeps an example from being made.
    """
    ray = _connect(address)
    actors = _actors(ray, plan, settings)
    held = ceil(slots(settings) / (len(plan.readers) * plan.samples))  # examples at once, for each actor
    free: asyncio.Queue[Any] = asyncio.Queue()
    for actor in actors * held:
        free.put_nowait(actor)

    async def deal(actor: Any, item: Work) -> None:
        for row in await _outcome(ray, actor.read.remote(item)):
            take(row)
        free.put_nowait(actor)

    try:
        async with asyncio.TaskGroup() as tasks:
            for actor in actors:
                tasks.create_task(_outcome(ray, actor.open.remote()))
        async with asyncio.TaskGroup() as tasks:
            for item in work:
                tasks.create_task(deal(await free.get(), item))
    except ExceptionGroup as group:  # the first of them says enough
        raise group.exceptions[0] from None
    finally:
        for actor in actors:
            ray.kill(actor)


async def _outcome(ray: Any, call: Any) -> Any:
    """What a call to an actor comes to, its errors as they were raised there."""
    try:
        return await call
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, MemAgentError) else error from None
    except ray.exceptions.RayActorError as error:
        raise EngineError(f"a node of the cluster was lost: --resume goes on ({error})") from error


class Node:
    """What runs on a node: an engine of its own, and the attempts at one example after another."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.plan, self.settings = plan, settings
        self.free = asyncio.Semaphore(slots(settings))

    async def open(self) -> None:
        """Open the engine, once."""
        self.engine: Engine = await open_engine(self.settings)

    async def read(self, work: Work) -> list[EvaluationRow]:
        """The rows of one example."""
        count_tokens = model_of(self.engine).count_tokens or estimate_tokens
        example = await asyncio.to_thread(self.plan.make, work, count_tokens)

        async def attempt(reader: str, sample: int) -> EvaluationRow:
            async with self.free:
                return await attempt_row(
                    self.plan, self.settings, self.engine, (work, example, reader, sample)
                )

        return list(await asyncio.gather(*(attempt(*item) for item in work.attempts)))


def _connect(address: str) -> Any:
    """The module `ray`, connected to the cluster."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise SettingsError("--ray needs the extra: pip install 'memagent[ray]'") from error
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingsError(f"there is no Ray cluster at {address}: {error}") from error
    return ray


def _actors(ray: Any, plan: Plan, settings: Settings) -> list[Any]:
    """One actor on each node that computes; a model that runs there gets the node's GPUs."""
    affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    remote = ray.remote(Node)
    embedded = choose(settings).engine != "openai"
    return [
        remote.options(
            num_cpus=0,
            num_gpus=node["Resources"].get("GPU", 0) if embedded else 0,
            max_concurrency=1000,
            scheduling_strategy=affinity(node_id=node["NodeID"], soft=False),
        ).remote(plan, settings)
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    ]
