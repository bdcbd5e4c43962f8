"""Run readers over examples: side by side, a row as soon as an attempt ends, only what is missing.

Examples are made one at a time, each when there is room for an attempt, so that no more are held
than are being read. An error of a read makes a row with the score 0; an error of anything else ends the run,
and the same command with --resume goes on.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memagent import __version__
from memagent.documents.tokens import estimate_tokens
from memagent.engines import open_engine
from memagent.evaluation.attempts import attempt_row, slots
from memagent.evaluation.cluster import run_on_cluster
from memagent.evaluation.plan import Cell, Plan, Work
from memagent.evaluation.readers import Attempt, prompts_of
from memagent.evaluation.rows import EvaluationRow, RowLog, open_rows, storable
from memagent.settings import Settings
from memagent.types import Engine, Example, TokenCounter, model_of

CellCounts = Counter[tuple[Cell, str]]
"""Attempts by cell and reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A plan, the settings of its reads, the folder of its rows.

    `command` is kept with the rows. `ray` is the address of a Ray cluster to spread the work over.
    `on_begin` is called with the attempts of all cells and with those already done, `on_row` with each
    new row.
    """

    plan: Plan
    settings: Settings
    folder: Path
    resume: bool = False
    command: str = ""
    ray: str | None = None
    on_begin: Callable[[CellCounts, CellCounts], None] = lambda _all, _done: None
    on_row: Callable[[EvaluationRow], None] = lambda _row: None


async def evaluate(run: Evaluation, engine: Engine | None = None) -> None:
    """Run what is missing, and append its rows.

    Without an `engine` the one that the settings ask for is opened, and closed at the end. Raises
    `SettingsError` before the first call if something cannot be used, and `MemAgentError` if an example
    cannot be made; the rows up to there are kept.
    """
    if engine is None:
        engine = await open_engine(run.settings)
        try:
            await evaluate(run, engine)
        finally:
            await engine.aclose()
        return
    check(run.plan, run.settings, engine)
    totals = run.plan.totals()
    with open_rows(run.folder, _header(run, engine, totals.total()), run.resume) as rows:
        run.on_begin(totals, _counted(rows))

        def take(row: EvaluationRow) -> None:
            rows.append(row)
            run.on_row(row)

        count_tokens = model_of(engine).count_tokens or estimate_tokens
        work = run.plan.work(frozenset(rows.done), count_tokens)
        if run.ray is None:
            examples = _examples(run.plan, work, count_tokens)
            await _run_here(run, engine, examples, take)
        else:
            await run_on_cluster(run.plan, run.settings, run.ray, work, take)


def check(plan: Plan, settings: Settings, engine: Engine) -> None:
    """Raise `SettingsError` for what would fail every attempt: budgets, templates."""
    for cell in plan.cells or (Cell(""),):
        for name in plan.readers:
            reader_settings = plan.settings_for(cell.task, 0, settings)
            Attempt(problem="?", document="", engine=engine, settings=reader_settings).reader(
                prompts_of(name, settings)
            )


Examples = AsyncGenerator[tuple[Work, Example], None]


async def _run_here(
    run: Evaluation, engine: Engine, examples: Examples, take: Callable[[EvaluationRow], None]
) -> None:
    free = asyncio.Semaphore(slots(run.settings))

    async def attempt(work: Work, example: Example, reader: str, sample: int) -> None:
        try:
            item = (work, example, reader, sample)
            take(await attempt_row(run.plan, run.settings, engine, item))
        finally:
            free.release()

    try:
        async with asyncio.TaskGroup() as tasks, aclosing(examples):
            async for work, example in examples:
                for reader, sample in work.attempts:
                    await free.acquire()
                    tasks.create_task(attempt(work, example, reader, sample))
    except ExceptionGroup as group:  # the first of them says enough
        raise group.exceptions[0] from None


async def _examples(plan: Plan, work: Iterator[Work], count_tokens: TokenCounter) -> Examples:
    """The examples of the work, each made in a thread while others are being read."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "memagent-examples") as thread:
        for item in work:
            yield item, await loop.run_in_executor(thread, plan.make, item, count_tokens)


def _counted(rows: RowLog) -> CellCounts:
    return Counter(
        (Cell(task, length, documents), reader) for task, length, documents, _, reader, _ in rows.done
    )


def _header(run: Evaluation, engine: Engine, attempts: int) -> dict[str, Any]:
    """Everything that the rows depend on, and where they come from."""
    model = model_of(engine)
    return {
        "version": __version__,
        "python": platform.python_version(),
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": run.command,
        "plan": run.plan.recorded(),
        "attempts": attempts,
        "settings": storable(asdict(run.settings)),
        "model": {
            "name": model.name,
            "window_tokens": model.window_tokens,
            "tokenizer": model.tokenizer,
        },
        "prompts": {name: prompts_of(name, run.settings).fingerprint for name in run.plan.readers},
    }
