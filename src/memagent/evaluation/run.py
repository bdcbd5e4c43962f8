"""Run the missing attempts of workflows at examples, concurrently; each row is written as its attempt ends.

An example is made when there is room for an attempt, so only those being read are in memory. A failed read
makes a row with the score 0. Any other error ends the run, and the same run with `resume` continues it.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from memagent.concurrency import drain, side_by_side
from memagent.engines import open_engine
from memagent.engines.cluster import connect
from memagent.errors import SettingsError
from memagent.evaluation.attempts import Attempt, attempt_row, attempts_of
from memagent.evaluation.plan import Plan, Work
from memagent.evaluation.rows import RUN_FILE, Cell, EvaluationRow, open_rows, storable
from memagent.reading.workflow import Workflow
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings, Settings
from memagent.types import Engine
from memagent.version import __version__

Take = Callable[[EvaluationRow], Awaitable[None]]
"""Called with each new row."""

CellCounts = Counter[tuple[Cell, str]]
"""Attempts by cell and workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A plan, the settings of its reads, and the folder of its rows.

    `command` is stored with the rows. With `traces`, every attempt keeps its journal in the folder `traces`.
    `ray` is the address of a Ray cluster to spread the work over. `on_begin` is called with the numbers of
    all attempts and of those already done, `on_row` with each new row.
    """

    plan: Plan
    settings: Settings
    folder: Path
    resume: bool = False
    command: str = ""
    traces: bool = False
    ray: str | None = None
    on_begin: Callable[[CellCounts, CellCounts], None] = lambda _all, _done: None
    on_row: Callable[[EvaluationRow], None] = lambda _row: None

    @property
    def traces_folder(self) -> Path | None:
        """The folder for journals, or None if they are not kept."""
        return self.folder / "traces" if self.traces else None


async def evaluate(run: Evaluation, engine: Engine | None = None) -> None:
    """Run the missing attempts and append their rows.

    Without an `engine`, the one that the settings ask for is opened, and closed at the end. Raises
    `SettingsError` before the first call if something cannot be used, and `MemAgentError` if an example
    cannot be made; the rows so far are kept.
    """
    async with nullcontext(engine) if engine else open_engine(run.settings.engine) as opened:
        totals = run.plan.totals()
        header = await asyncio.to_thread(header_of, run, opened, totals.total())
        _check_traces(run)
        with open_rows(run.folder, header, run.resume) as rows:
            run.on_begin(totals, Counter((cell, workflow) for cell, _, workflow, _ in rows.done))

            async def take(row: EvaluationRow) -> None:
                await asyncio.to_thread(rows.append, row)
                run.on_row(row)

            work = run.plan.work(frozenset(rows.done), opened.model.count_tokens)
            if run.ray is None:
                await _run_here(run, opened, work, take)
            else:
                await _run_on_cluster(run, run.ray, opened.model.calls, work, take)


def _check_traces(run: Evaluation) -> None:
    """Raise `SettingsError` if a new run would take its replies from the journals of another one."""
    folder = run.traces_folder
    if folder and not (run.folder / RUN_FILE).exists() and any(folder.glob("*.jsonl")):
        raise SettingsError(f"{folder} holds journals of another run: delete it, or choose another `out`")


def _workflows(run: Evaluation, engine: Engine) -> dict[str, Workflow]:
    """The workflows by name. Raises `SettingsError` for budgets or templates that fail every attempt."""
    found: dict[str, Workflow] = {}
    for name in run.plan.workflows:
        for cell in run.plan.cells or (Cell(""),):
            settings = run.plan.settings_for(cell.task, name, 0, run.settings.read)
            _, found[name] = choose_workflow(settings, engine.model.trained)
            found[name].budgets(settings, engine.model)
    return found


async def _run_here(run: Evaluation, engine: Engine, work: Iterator[Work], take: Take) -> None:
    async def attempt(item: Attempt) -> None:
        await take(await attempt_row(run.plan, run.settings.read, engine, item, run.traces_folder))

    attempts = attempts_of(run.plan, work, engine)
    await drain(side_by_side(attempt, attempts, engine.model.calls, ordered=False))


async def _run_on_cluster(
    run: Evaluation, address: str, calls: int, work: Iterator[Work], take: Take
) -> None:
    """Run each example's attempts on one node; this process writes the rows, the same as on one machine."""
    here = partial(_rows_of, plan=run.plan, settings=run.settings.read, traces=run.traces_folder)
    attempts_an_example = len(run.plan.workflows) * run.plan.samples

    async with connect(address, run.settings.engine, here, calls, attempts_an_example) as dealer:

        async def attempts(item: Work) -> None:
            for row in await dealer(item):
                await take(row)

        await drain(side_by_side(attempts, work, dealer.size, ordered=False))


async def _rows_of(
    engine: Engine, work: Work, *, plan: Plan, settings: ReadSettings, traces: Path | None
) -> list[EvaluationRow]:
    """The rows of one example."""

    async def attempt(item: Attempt) -> EvaluationRow:
        return await attempt_row(plan, settings, engine, item, traces)

    attempts = attempts_of(plan, iter([work]), engine)
    return [row async for row in side_by_side(attempt, attempts, engine.model.calls)]


def header_of(run: Evaluation, engine: Engine, attempts: int) -> dict[str, Any]:
    """Everything that the rows depend on, and where they come from. Blocks.

    Raises `SettingsError` for budgets or templates that fail every attempt, and for files that are not there.
    """
    model, workflows = engine.model, _workflows(run, engine)
    read = run.settings.read.fill_from(model.trained)
    settings = run.settings.engine.model_dump() | read.model_dump(exclude={"workflow"})
    return {
        "version": __version__,
        "python": platform.python_version(),
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": run.command,
        "plan": run.plan.recorded(),
        "attempts": attempts,
        "settings": storable(settings),
        "model": {
            "name": model.name,
            "window_tokens": model.window_tokens,
            "tokenizer": model.tokenizer,
        },
        "prompts": {name: workflow.prompts.fingerprint for name, workflow in workflows.items()},
        "workflows": {
            name: own
            for name, workflow in workflows.items()
            if (own := workflow.options_in_force(run.settings.read, model))
        },
    }
