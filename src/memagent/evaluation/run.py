"""Run readers over examples: side by side, a row as soon as an attempt ends, only what is missing.

Examples are made one at a time, each when there is room for an attempt, so that no more are held
than are being read. An error of a read makes a row with the score 0; an error of anything else ends the run,
and the same command with --resume goes on.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memagent import __version__
from memagent.config import Settings
from memagent.engines import choose, open_engine
from memagent.errors import MemAgentError
from memagent.evaluation.plan import Cell, Plan, Work
from memagent.evaluation.readers import READERS, Attempt, answer_of, prompts_of
from memagent.evaluation.retrieval import require_bm25
from memagent.evaluation.rows import Row, Rows, open_rows, storable
from memagent.tasks.scoring import SCORERS, extract_answer
from memagent.tokens import TokenEstimate
from memagent.types import Conversation, Engine, Example, model_of

# Scorers that compare whole answers want the answer alone; the others look for it in the reply.
_SCORED_WHOLE = ("string_match_all", "string_match_part", "rouge_l")
_SLOTS = {"openai": 16}  # what engines take where --concurrency is not given; 1 elsewhere


@dataclass(frozen=True, slots=True)
class Watch:
    """What is told how a run goes on: the attempts of all cells, those that are there, each new row."""

    begin: Callable[[Counter[tuple[Cell, str]], Counter[tuple[Cell, str]]], None] = lambda _all, _done: None
    row: Callable[[Row], None] = lambda _row: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One evaluation: a plan, the settings of its reads, the folder of its rows.

    `command` is kept with the rows. `ray` is the address of a Ray cluster to spread the run over.
    """

    plan: Plan
    settings: Settings
    folder: Path
    resume: bool = False
    command: str = ""
    ray: str | None = None
    watch: Watch = field(default_factory=Watch)


async def evaluate(run: Run) -> None:
    """Run what is missing, and append its rows.

    Raises `SettingsError` before the first call if something cannot be used, and `MemAgentError`
    if an example cannot be made; the rows up to there are kept.
    """
    engine = await open_engine(run.settings)
    try:
        check(run.plan, run.settings, engine)
        totals = run.plan.totals()
        with open_rows(run.folder, _header(run, engine, totals.total()), run.resume) as rows:
            run.watch.begin(totals, _counted(rows))
            if run.ray is None:
                await _run_here(run, engine, rows)
            else:
                from memagent.evaluation.cluster import run_on_cluster

                await run_on_cluster(run, rows)
    finally:
        await engine.aclose()


def check(plan: Plan, settings: Settings, engine: Engine) -> None:
    """Raise `SettingsError` for what would fail every attempt: budgets, templates, a missing library."""
    if "rag" in plan.readers:
        require_bm25()
    for cell in plan.cells or (Cell(""),):
        for name in plan.readers:
            reader_settings = plan.settings_for(cell.task, 0, settings)
            Attempt(problem="?", document="", engine=engine, settings=reader_settings).reader(
                prompts_of(name, settings)
            )


def slots(settings: Settings) -> int:
    """How many attempts go on side by side: as many as the engine takes calls."""
    return settings.concurrency or _SLOTS.get(choose(settings).engine, 1)


async def _run_here(run: Run, engine: Engine, rows: Rows) -> None:
    async def attempt(work: Work, example: Example, reader: str, sample: int) -> None:
        try:
            row = await attempt_row(run.plan, run.settings, engine, (work, example, reader, sample))
            rows.append(row)
            run.watch.row(row)
        finally:
            free.release()

    free = asyncio.Semaphore(slots(run.settings))
    try:
        async with asyncio.TaskGroup() as tasks, aclosing(_examples(run.plan, engine, rows)) as examples:
            async for work, example in examples:
                for reader, sample in work.attempts:
                    await free.acquire()
                    tasks.create_task(attempt(work, example, reader, sample))
    except ExceptionGroup as group:  # the first of them says enough
        raise group.exceptions[0] from None


async def _examples(plan: Plan, engine: Engine, rows: Rows) -> AsyncGenerator[tuple[Work, Example], None]:
    """The examples that are left, each made in a thread while others are being read."""
    count_tokens = model_of(engine).count_tokens or TokenEstimate()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "memagent-examples") as thread:
        for work in plan.work(frozenset(rows.done), count_tokens):
            yield work, await loop.run_in_executor(thread, plan.make, work, count_tokens)


async def attempt_row(
    plan: Plan, settings: Settings, engine: Engine, item: tuple[Work, Example, str, int]
) -> Row:
    """One attempt, as a row. The one place where the failure of a read is recorded and the run goes on."""
    work, example, reader, sample = item
    counts, last, prediction = _Counts(), None, ""
    failure: MemAgentError | None = None
    started = time.perf_counter()
    attempt = Attempt(
        problem=example.problem,
        document=example.document,
        engine=engine,
        settings=plan.settings_for(work.cell.task, sample, settings),
        retrieval=plan.retrieval,
    )
    try:
        async with aclosing(READERS[reader].run(attempt)) as conversations:
            async for last in conversations:
                counts.add(last)
        prediction = answer_of(last)
    except MemAgentError as error:
        failure = error
    seconds = time.perf_counter() - started
    return Row(
        task=work.cell.task,
        length=work.cell.length,
        documents=work.cell.documents,
        index=work.index,
        reader=reader,
        sample=sample,
        example_id=example.id,
        score=0.0 if failure else score(plan.scorer_of(work.cell.task), prediction, example.answers),
        prediction=prediction,
        answers=example.answers,
        error=str(failure) if failure else None,
        cause=type(failure).__name__ if failure else None,
        length_tokens=example.length_tokens,
        depth=depth(example),
        seconds=round(seconds, 3),
        **asdict(counts),
    )


@dataclass(slots=True)
class _Counts:
    """What the conversations of an attempt cost."""

    calls: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, conversation: Conversation) -> None:
        completion = conversation.completion
        self.calls += 1
        self.cut += completion.finish_reason == "length"
        self.prompt_tokens += completion.usage.prompt_tokens
        self.completion_tokens += completion.usage.completion_tokens


def score(scorer: str, prediction: str, answers: tuple[str, ...]) -> float:
    """What a prediction is worth, 0 to 1; scorers of whole answers see just the answer in the reply."""
    text = prediction if scorer in _SCORED_WHOLE else extract_answer(prediction)
    return SCORERS[scorer](text, answers)


def depth(example: Example) -> float | None:
    """Where the one answer stands in the document, 0 to 1; None if not just once, or not literally."""
    if len(example.answers) != 1 or not example.answers[0]:
        return None
    first = example.document.find(example.answers[0])
    if first < 0 or example.document.find(example.answers[0], first + 1) >= 0:
        return None
    return round(first / len(example.document), 4)


def _counted(rows: Rows) -> Counter[tuple[Cell, str]]:
    return Counter(
        (Cell(task, length, documents), reader) for task, length, documents, _, reader, _ in rows.done
    )


def _header(run: Run, engine: Engine, attempts: int) -> dict[str, Any]:
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
