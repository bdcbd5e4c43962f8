"""The most that an evaluation would cost, found by running each attempt without a model."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

from memagent.documents.opening import text_document
from memagent.errors import MemAgentError
from memagent.evaluation.rows import Cell, kept_keys
from memagent.evaluation.run import Evaluation, header_of
from memagent.reading.forecast import forecast
from memagent.types import NOTHING_SPENT, Engine, Spent


@dataclass(slots=True)
class Bounds:
    """The most that attempts take; `failing` of them would fail before their first call, at no cost."""

    attempts: int = 0
    failing: int = 0
    most: Spent = NOTHING_SPENT


async def forecast_evaluation(run: Evaluation, engine: Engine) -> Mapping[tuple[Cell, str], Bounds]:
    """The most that the run would cost, by cell and workflow; with `resume`, only the missing part of it.

    Every example is made, and every attempt runs with full memories and replies; nothing is written. Retries
    of failed calls are not counted. Raises as `evaluate` does.
    """
    header = await asyncio.to_thread(header_of, run, engine, run.plan.totals().total())
    done = await asyncio.to_thread(kept_keys, run.folder, header) if run.resume else set()
    count_tokens = engine.model.count_tokens
    found: defaultdict[tuple[Cell, str], Bounds] = defaultdict(Bounds)
    for work in run.plan.work(frozenset(done), count_tokens):
        example = await asyncio.to_thread(run.plan.make, work, count_tokens)
        document = await asyncio.to_thread(text_document, example.document, is_example=True)
        for workflow, samples in Counter(workflow for workflow, _ in work.attempts).items():
            bounds = found[work.cell, workflow]
            bounds.attempts += samples
            settings = run.plan.settings_for(work.cell.task, workflow, 0, run.settings.read)
            try:
                most = await forecast(example.problem, document, engine.model, settings)
            except MemAgentError:
                bounds.failing += samples
            else:
                bounds.most = sum(repeat(most.spent, samples), bounds.most)
    return found
