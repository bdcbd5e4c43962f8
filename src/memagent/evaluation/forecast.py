"""The most that an evaluation would cost, found by running each attempt without a model."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from memagent.documents.opening import text_document
from memagent.errors import MemAgentError
from memagent.evaluation.plan import Cell
from memagent.evaluation.rows import kept_keys
from memagent.evaluation.run import Evaluation, check, header_of
from memagent.reading.forecast import forecast
from memagent.reading.progress import Progress
from memagent.types import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most that attempts cost. `failing` of them would fail before their first call, at no cost."""

    attempts: int = 0
    failing: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None

    @classmethod
    def of(cls, read: Progress, attempts: int) -> Self:
        """The bound for `attempts` attempts that each cost as much as `read`."""
        return cls(
            attempts=attempts,
            calls=attempts * read.calls,
            prompt_tokens=attempts * read.prompt_tokens,
            completion_tokens=attempts * read.completion_tokens,
            cost=None if read.cost is None else attempts * read.cost,
        )

    def __add__(self, other: Bound) -> Bound:
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Bound(
            attempts=self.attempts + other.attempts,
            failing=self.failing + other.failing,
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=sum(costs) if costs else None,
        )


Bounds = Mapping[tuple[Cell, str], tuple[Bound, Bound]]
"""By cell and workflow: the strict bound, and the usual one, without questions about replies."""


async def forecast_evaluation(run: Evaluation, engine: Engine) -> Bounds:
    """The most that the run would cost, by cell and workflow; with `resume`, only the missing part of it.

    Every example is made, and every attempt runs with full memories and replies; nothing is written. Retries
    of failed calls are not counted. Raises as `evaluate` does.
    """
    workflows = await asyncio.to_thread(check, run, engine)
    totals = run.plan.totals()
    header = header_of(run, engine, totals.total(), workflows)
    done = await asyncio.to_thread(kept_keys, run.folder, header) if run.resume else set()
    count_tokens = engine.model.count_tokens
    found: defaultdict[tuple[Cell, str], tuple[Bound, Bound]] = defaultdict(lambda: (Bound(), Bound()))
    for work in run.plan.work(frozenset(done), count_tokens):
        example = await asyncio.to_thread(run.plan.make, work, count_tokens)
        document = await asyncio.to_thread(text_document, example.document)
        for workflow, samples in Counter(workflow for workflow, _ in work.attempts).items():
            place = work.cell, workflow
            settings = run.plan.settings_for(work.cell.task, workflow, 0, run.settings.read)
            try:
                reads = await forecast(example.problem, document, engine.model, settings)
            except MemAgentError:
                bounds = [Bound(attempts=samples, failing=samples)] * 2
            else:
                bounds = [Bound.of(read, samples) for read in reads]
            most, usual = (before + bound for before, bound in zip(found[place], bounds, strict=True))
            found[place] = most, usual
    return found
