"""Run one attempt of a workflow at an example, and record it as a row."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from memagent.documents.opening import text_document
from memagent.errors import MemAgentError, without_secrets
from memagent.evaluation.plan import Plan, Work
from memagent.evaluation.retention import Needed
from memagent.evaluation.rows import EvaluationRow
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.settings import ReadSettings
from memagent.tasks.scoring import score_reply
from memagent.types import Engine, Example


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is attempted: the example of a piece of work, one of its workflows, and the sample's number."""

    work: Work
    example: Example
    workflow: str
    sample: int

    @property
    def file_name(self) -> str:
        """The name of its journal, unique within the run."""
        cell = self.work.cell
        whole = repr((cell, self.work.index, self.workflow, self.sample))
        parts = (cell.task, cell.length or cell.documents or "", self.work.index, self.workflow, self.sample)
        name = re.sub(r"[^\w.-]+", "-", "-".join(map(str, parts)))[:100]
        return f"{name}-{hashlib.sha256(whole.encode('utf-8', 'replace')).hexdigest()[:8]}.jsonl"


async def attempts_of(plan: Plan, work: Iterator[Work], engine: Engine) -> AsyncGenerator[Attempt, None]:
    """The attempts of the work; each example is made in a thread while others are being read."""
    for item in work:
        example = await asyncio.to_thread(plan.make, item, engine.model.count_tokens)
        for workflow, sample in item.attempts:
            yield Attempt(item, example, workflow, sample)


async def attempt_row(
    plan: Plan, settings: ReadSettings, engine: Engine, attempt: Attempt, traces: Path | None = None
) -> EvaluationRow:
    """Make one attempt and return its row. Only here is a failed read recorded while the run goes on.

    With `traces`, a folder, the attempt keeps its journal there, and continues one that a crash has left.
    """
    work, example = attempt.work, attempt.example
    task, trace = work.cell.task, traces and traces / attempt.file_name
    needed = Needed.of(example, plan.scorer_of(task))
    failure: MemAgentError | None = None
    started = time.perf_counter()
    read: Read | None = None
    try:
        read = Read(
            example.problem,
            await asyncio.to_thread(text_document, example.document, is_example=True),
            engine,
            plan.settings_for(task, attempt.workflow, attempt.sample, settings),
            trace=trace,
            resume=trace is not None and trace.exists(),
        )
        async with aclosing(aiter(read)) as conversations:
            async for conversation in conversations:
                if conversation.kind == "update" and not read.takes_notes:
                    needed.see(conversation.memory)
    except MemAgentError as error:
        failure = error
    done = read.progress if read else Progress()
    answer = read.answer if read and not failure else ""
    return EvaluationRow(
        task=task,
        length=work.cell.length,
        documents=work.cell.documents,
        index=work.index,
        workflow=attempt.workflow,
        sample=attempt.sample,
        example_id=example.id,
        problem=example.problem,
        score=0.0 if failure else score_reply(plan.scorer_of(task), answer, example.answers),
        prediction=answer,
        answers=example.answers,
        error=without_secrets(str(failure)) if failure else None,
        cause=type(failure).__name__ if failure else None,
        spent=done.spent,
        cut=done.cut,
        critical_path=done.critical_path,
        chunks=done.chunks,
        passed_over=done.passed_over,
        unused=done.unused,
        length_tokens=example.length_tokens,
        depth=depth(example),
        captured=needed.captured,
        retained=needed.retained,
        seconds=round(time.perf_counter() - started, 3),
        haystack=example.haystack,
    )


def depth(example: Example) -> float | None:
    """The answer's position in the document, 0 to 1; None unless one answer occurs there exactly once."""
    if len(example.answers) != 1 or not example.answers[0]:
        return None
    first = example.document.find(example.answers[0])
    if first < 0 or example.document.find(example.answers[0], first + 1) >= 0:
        return None
    return round(first / len(example.document), 4)
