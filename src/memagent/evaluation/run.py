"""Run the missing attempts of workflows at examples, concurrently; each row is written as its attempt ends.

An example is made when there is room for an attempt, so only those being read are in memory. A failed read
makes a row with the score 0. Any other error ends the run, and the same run with `resume` continues it.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from memagent.concurrency import drain, in_thread
from memagent.documents.opening import text_document
from memagent.engines import open_engine
from memagent.errors import MemAgentError, SettingsError
from memagent.evaluation.plan import Attempt, EvaluationPlan
from memagent.evaluation.rows import RUN_FILE, Cell, EvaluationRow, open_rows, storable
from memagent.reading.api import begin_forecast
from memagent.reading.excerpts import escape
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.reading.workflow import Workflow
from memagent.reading.workflows import choose_workflow
from memagent.runs.batch import RunProgress, record_failure, run_batch
from memagent.settings import Settings
from memagent.tasks.scoring import is_absent, score_reply, substring_match
from memagent.types import Engine, Example, flatten
from memagent.version import __version__

CellCounts = Counter[tuple[Cell, str]]
"""Attempts by cell and workflow."""

_FROM_PROGRESS = ("spent", "cut", "critical_path", "chunks", "passed_over", "unused")
"""The fields that a row takes from the progress of its read."""

_TOO_COMMON = ("yes", "no")  # words that every document has


def _ignore(*_values: object) -> None:
    """The callback if nobody watches a run; unlike a lambda, it can be sent to a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A plan, the settings of its reads, and the folder of its rows.

    `command` is stored with the rows. With `traces`, every attempt keeps its journal in the folder `traces`.
    `ray` is the address of a Ray cluster to spread the work over. In a `dry_run`, no model is asked and
    nothing is written: rows say what attempts take at most. `on_begin` is called with the numbers of all
    attempts and of those already done, `on_row` with each new row.
    """

    plan: EvaluationPlan
    settings: Settings
    folder: Path
    resume: bool = False
    command: str = ""
    traces: bool = False
    ray: str | None = None
    dry_run: bool = False
    on_begin: Callable[[CellCounts, CellCounts], None] = _ignore
    on_row: Callable[[EvaluationRow], None] = _ignore

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
        if not run.plan.workflows:
            usual, _ = choose_workflow(run.settings.read, opened.model.trained)
            run = replace(run, plan=replace(run.plan, workflows=(usual,)))
        plan = run.plan
        totals = plan.totals()
        header = await asyncio.to_thread(header_of, run, opened, totals.total())
        traces = run.traces_folder
        if traces and not (run.folder / RUN_FILE).exists() and any(traces.glob("*.jsonl")):
            raise SettingsError(f"{traces} holds journals of another run: delete it, or choose another `out`")
        with await asyncio.to_thread(open_rows, run.folder, header, run.resume, run.dry_run) as rows:
            run.on_begin(totals, Counter((cell, workflow) for cell, _, workflow, _ in rows))

            async def take(
                attempt: Callable[[Attempt], Awaitable[EvaluationRow]], item: Attempt
            ) -> EvaluationRow:
                row = await attempt(item)
                if not run.dry_run:
                    await asyncio.to_thread(rows.append, flatten(row))
                run.on_row(row)
                return row

            attempt = partial(make_attempt, run=replace(run, on_begin=_ignore, on_row=_ignore))
            # one example at a time, so that only those being read are in memory
            left = in_thread(plan.attempts(frozenset(rows), opened.model.count_tokens), is_slow=lambda: True)
            ray = None if run.dry_run else run.ray
            await drain(run_batch(left, attempt, take, opened, run.settings.engine, ray))


async def forecast_evaluation(
    run: Evaluation, engine: Engine | None = None
) -> Mapping[tuple[Cell, str], RunProgress]:
    """What the run would cost at most, by cell and workflow; with `resume`, only the missing part of it.

    Every example is made, and every attempt runs with full memories and replies; nothing is written. Those
    that `failed` would do so before their first call, at no cost. Retries of failed calls are not counted.
    Raises what `evaluate` raises.
    """
    forecasts: dict[tuple[Cell, str], RunProgress] = {}

    def begin(totals: CellCounts, _done: CellCounts) -> None:
        forecasts.update((part, RunProgress()) for part in totals)

    def add(row: EvaluationRow) -> None:
        forecasts[row.cell, row.workflow].add(row.spent, failed=row.error is not None)

    await evaluate(replace(run, dry_run=True, on_begin=begin, on_row=add), engine)
    return {part: progress for part, progress in forecasts.items() if progress.done}


async def make_attempt(engine: Engine, attempt: Attempt, run: Evaluation) -> EvaluationRow:
    """Make one attempt, on a node of a cluster too; a failed read becomes a row with the score 0."""
    cell, example, scorer = attempt.cell, attempt.example, run.plan.scorer_of(attempt.cell.task)
    needed, started = Needed.of(example, scorer), time.perf_counter()
    read: Read | None = None
    with record_failure(MemAgentError) as failure:
        read = await asyncio.to_thread(_begin, engine, attempt, run)
        async with aclosing(aiter(read)) as conversations:
            async for conversation in conversations:
                if conversation.kind == "update" and not read.takes_notes:
                    needed.see(conversation.memory)
    done = read.progress if read else Progress()
    answer = read.answer if read and not failure else ""
    return EvaluationRow(
        **asdict(cell),
        **{name: getattr(done, name) for name in _FROM_PROGRESS},
        index=attempt.index,
        workflow=attempt.workflow,
        sample=attempt.sample,
        example_id=example.id,
        problem=example.problem,
        score=0.0 if failure else score_reply(scorer, answer, example.answers),
        prediction=answer,
        answers=example.answers,
        error=failure.error,
        cause=failure.cause,
        length_tokens=example.length_tokens,
        depth=depth(example),
        captured=needed.captured,
        retained=needed.retained,
        seconds=round(time.perf_counter() - started, 3),
        haystack=example.haystack,
    )


def _begin(engine: Engine, attempt: Attempt, run: Evaluation) -> Read:
    """The read of an attempt, which continues the journal that a crash has left. Blocks."""
    problem, document = attempt.example.problem, text_document(attempt.example.document, is_example=True)
    settings = run.plan.settings_for(attempt.cell.task, attempt.workflow, attempt.sample, run.settings.read)
    if run.dry_run:
        return begin_forecast(problem, document, engine.model, settings)
    trace = run.traces_folder and run.traces_folder / attempt.file_name
    return Read(problem, document, engine, settings, trace=trace, resume=bool(trace and trace.exists()))


def header_of(run: Evaluation, engine: Engine, attempts: int) -> dict[str, Any]:
    """Everything that the rows depend on, and where they come from. Blocks.

    Raises `SettingsError` for budgets or templates that fail every attempt, and for files that are not there.
    """
    model, workflows = engine.model, dict[str, Workflow]()
    for name in run.plan.workflows:
        for cell in run.plan.cells or (Cell(""),):
            settings = run.plan.settings_for(cell.task, name, 0, run.settings.read)
            _, workflows[name] = choose_workflow(settings, model.trained)
            workflows[name].budgets(settings, model)
    read = run.settings.read.fill_from(model.trained)
    stored = storable(run.settings.engine.model_dump() | read.model_dump(exclude={"workflow"}))
    return {
        "version": __version__,
        "python": platform.python_version(),
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": run.command,
        "plan": run.plan.describe(),
        "attempts": attempts,
        "settings": stored,
        "model": {"name": model.name, "window_tokens": model.window_tokens, "tokenizer": model.tokenizer},
        "prompts": {name: workflow.prompts.fingerprint for name, workflow in workflows.items()},
        "workflows": {
            name: own
            for name, workflow in workflows.items()
            if (own := workflow.options_in_force(run.settings.read, model))
        },
    }


@dataclass(slots=True)
class Needed:
    """What the memory must keep, each item in any of its wordings, and which items the memories so far had.

    An answer needs its own words if the document has them verbatim, or else the example's evidence.
    Paraphrases are not recognised, so that figures are too low rather than too high.
    """

    items: Sequence[tuple[str, ...]]
    _ever: set[int] = field(default_factory=set)
    _last: set[int] | None = None

    @classmethod
    def of(cls, example: Example, scorer: str) -> Self:
        """What an example needs: all of its answers or any of them, depending on its scorer."""
        absent = is_absent(example.answers)
        verbatim = tuple(
            answer
            for answer in example.answers
            if answer.lower() not in _TOO_COMMON and answer in example.document and not absent
        )
        if verbatim:
            return cls([(answer,) for answer in verbatim] if scorer == "string_match_all" else [verbatim])
        return cls([tuple({passage: 0, escape(passage): 0}) for passage in example.evidence])

    def see(self, memory: str) -> None:
        """Check the next memory of the attempt."""
        self._last = {index for index, wordings in enumerate(self.items) if substring_match(memory, wordings)}
        self._ever |= self._last

    @property
    def captured(self) -> bool | None:
        """Whether every item was in a memory at some time; None without a memory or without items."""
        return len(self._ever) == len(self.items) if self.items and self._last is not None else None

    @property
    def retained(self) -> bool | None:
        """Whether every item is in the last memory; None as for `captured`."""
        return len(self._last) == len(self.items) if self.items and self._last is not None else None


def depth(example: Example) -> float | None:
    """The answer's position in the document, 0 to 1; None unless one answer occurs there exactly once."""
    if len(example.answers) != 1 or not example.answers[0]:
        return None
    first = example.document.find(example.answers[0])
    if first < 0 or example.document.find(example.answers[0], first + 1) >= 0:
        return None
    return round(first / len(example.document), 4)
