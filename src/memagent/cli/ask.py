"""`memagent ask`: answer questions about a document."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from memagent.cli import flags
from memagent.cli.messages import exit_code, print_error, warn
from memagent.cli.progress import progress_on
from memagent.documents.opening import Document, open_document
from memagent.engines import open_engine
from memagent.errors import EngineError, JournalError, MemAgentError, SettingsError
from memagent.reading.journal import earlier_paths, new_path
from memagent.reading.read import Read, Result
from memagent.settings import Settings, user_cache_path


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "ask",
        help="answer a question about a document",
        description="Read a document of any length in chunks, keeping a memory, and answer from it.",
        usage="memagent ask [options] QUESTION PATH...\n"
        "       memagent ask [options] -q QUESTION [-q QUESTION]... PATH...",
    )
    parser.add_argument("words", nargs="*", metavar="QUESTION PATH", help='"-" reads standard input')
    parser.add_argument("-q", "--question", action="append", metavar="QUESTION", default=[],
                        help="a question; several are read concurrently")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object for each question")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="where to keep the journal")
    parser.add_argument("--resume", action="store_true", help="go on with a read that was interrupted")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--verbose", action="store_true", help="tell about retries")
    flags.add_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Read, print the answers, and return the exit code."""
    questions, paths = _questions_and_paths(options)
    settings = flags.settings_from(options)
    document = open_document(*paths)
    found = document.skipped
    for skipped in found:
        warn(console, f"left out: {skipped}")
    outcomes = asyncio.run(_ask_all(questions, document, settings, options, console))
    for skipped in document.skipped[len(found) :]:  # what turned out to be broken when it was read
        warn(console, f"left out: {skipped}")
    for name, count in document.replaced.items():
        if count:
            warn(console, f"{name}: {count} characters could not be decoded and were read as U+FFFD")
    code = 0
    for question, outcome in zip(questions, outcomes, strict=True):
        if isinstance(outcome, MemAgentError):
            print_error(console, outcome)
            code = code or exit_code(outcome)
        elif options.json:
            print(json.dumps(asdict(outcome), ensure_ascii=False))
        else:
            print(f"{question}\n{outcome.answer}\n" if len(questions) > 1 else outcome.answer)
    return code


def _questions_and_paths(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    words = list(options.words)
    questions = options.question or words[:1]
    paths = words if options.question else words[1:]
    if not questions:
        raise SettingsError('what is the question? memagent ask "QUESTION" PATH...')
    if not paths and sys.stdin and not sys.stdin.isatty():  # a closed stdin is None
        paths = ["-"]
    if not paths:
        raise SettingsError("which document? name a file, a directory, a glob, or - for standard input")
    return questions, paths


async def _ask_all(
    questions: Sequence[str],
    document: Document,
    settings: Settings,
    options: argparse.Namespace,
    console: Console,
) -> list[Result | MemAgentError]:
    """One read a question, side by side; the failure of one leaves the others going."""
    engine = await open_engine(settings)

    async def ask(number: int, question: str) -> Result | MemAgentError:
        try:
            traces = _traces(options, number, question, document, of=len(questions))
            reading = _first_that_fits(
                traces, lambda trace: Read(question, document, engine, settings, trace, options.resume)
            )
        except MemAgentError as error:
            return error
        try:
            async for conversation in reading:
                show(reading, conversation)
        except EngineError as error:
            kept = reading.result.trace
            return EngineError(f"{error}\nthe read is kept in {kept}: the same command with --resume goes on")
        except MemAgentError as error:
            return error
        if reading.cut:
            warn(console, f"{reading.cut} of {reading.calls} replies were cut at their token budget")
        return reading.result

    try:
        with progress_on(console, options.quiet) as show:
            return await asyncio.gather(*(ask(*item) for item in enumerate(questions, 1)))
    finally:
        await engine.aclose()


def _traces(
    options: argparse.Namespace, number: int, question: str, document: Document, of: int
) -> list[Path]:
    """Where a question's journal is, or may be; several questions number the file that was named."""
    named: Path | None = options.trace
    if named is not None:
        return [named if of == 1 else named.with_stem(f"{named.stem}-{number}")]
    folder = user_cache_path() / "journals"
    if options.resume:
        return earlier_paths(folder, document.fingerprint, question)
    return [new_path(folder, document.fingerprint, question)]


def _first_that_fits(traces: Sequence[Path], begin: Callable[[Path], Read]) -> Read:
    """The read with the first journal that is one of it. Raises the first one's `JournalError` if none is."""
    errors: list[JournalError] = []
    for trace in traces:
        try:
            return begin(trace)
        except JournalError as error:
            errors.append(error)
    raise errors[0]
