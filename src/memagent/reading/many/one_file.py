"""Read one file for one question and make a row of it: here, or on a machine of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from memagent.concurrency import drain
from memagent.documents.files import NoTextError
from memagent.documents.opening import Document
from memagent.errors import DocumentError, EngineError, JournalError, without_secrets
from memagent.reading.many.rows import FileRow, Status
from memagent.reading.read import Read
from memagent.settings import ReadSettings
from memagent.types import Engine


@dataclass(frozen=True, slots=True)
class OneFile:
    """A file to read for a question; its journal goes to `trace`, or is continued there."""

    document: Document
    problem: str
    settings: ReadSettings
    trace: Path | None


ReadFile = Callable[[OneFile], Awaitable[FileRow]]
"""Reads one file."""


async def read_file(engine: Engine, file: OneFile) -> FileRow:
    """Read one file for one question. Only here does a read's failure become a row, so that the run goes on.

    Raises `SettingsError` for what concerns all files.
    """
    document, problem = file.document, file.problem
    source = document.sources[0]
    read = Read(problem, document, engine, file.settings, trace=file.trace, resume=True)
    failure: DocumentError | EngineError | JournalError | None = None
    try:
        await drain(aiter(read))
    except (DocumentError, EngineError, JournalError) as error:
        failure = error
    done = read.result
    status: Status = "no text" if isinstance(failure, NoTextError) else "failed" if failure else "answered"
    warnings = list(read.found.skipped)
    if count := sum(read.found.replaced.values()):
        warnings.append(f"{count} characters could not be decoded and were read as U+FFFD")
    if not (failure or done.found):
        warnings.append("no answer was found")
    elif done.doubtful:
        warnings.append("the file has little of what the question names")
    if done.cut:
        warnings.append(f"{done.cut} of {done.spent.calls} replies were cut at their token budget")
    if done.passed_over:
        warnings.append(f"{done.passed_over} of {done.chunks} chunks were passed over (screen)")
    if done.spent.estimated:
        warnings.append("the endpoint reported no token usage: tokens and cost are estimates")
    return FileRow(
        file=source.name,
        problem=problem,
        status=status,
        answer="" if failure else done.answer,
        statements=() if failure else done.statements,
        error=without_secrets(str(failure)) if failure else None,
        cause=type(failure).__name__ if failure else None,
        warnings=tuple(warnings),
        workflow=done.workflow,
        model=done.model,
        chunks=done.chunks,
        document_tokens=done.document_tokens,
        spent=done.spent,
        cut=done.cut,
        seconds=done.seconds,
        stopped_early=done.stopped_early,
        trace=done.trace,
    )
