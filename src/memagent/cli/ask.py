"""`memagent ask`: answer questions about a document."""

from __future__ import annotations

import asyncio
import glob
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from memagent.cli.each import ask_each, each_flags
from memagent.cli.flags import PATH, Command, complete_files, quiet_and_verbose, with_settings
from memagent.cli.follow_up import check_words, documents_of, last_read, settings_of, warn_of_another
from memagent.cli.messages import (
    citations,
    exit_code,
    print_error,
    say,
    say_json,
    warn,
    warn_left_out,
    warn_undecoded,
)
from memagent.cli.models import with_found_model
from memagent.cli.previews import dry_run_questions
from memagent.cli.progress import ReadDisplay, describe_opening
from memagent.concurrency import map_concurrent
from memagent.documents.opening import Document, Pass, open_document
from memagent.engines import choose, open_engine
from memagent.engines.wrappers import Spending
from memagent.errors import EngineError, JournalError, MemAgentError, SettingsError
from memagent.reading.doubts import doubt_words, doubts_of
from memagent.reading.journal import earlier_paths, new_path
from memagent.reading.lines import Header
from memagent.reading.lockstep import Seat, Together
from memagent.reading.progress import Result
from memagent.reading.read import Read
from memagent.reading.tally.questions import asks_to_count
from memagent.runs.each import Survey
from memagent.settings import Settings, user_cache_path
from memagent.storage import read_utf8
from memagent.types import Engine, flatten

_MAX_TOGETHER = 32
"""Questions that are read together: each holds a chunk of the document."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A question, its number from 1 on, and where its journal may be."""

    number: int
    text: str
    traces: Sequence[Path]


@dataclass(frozen=True, slots=True)
class AskRequest:
    """What a command line asks for, with the read that it follows up, if any.

    `passes` are those of reads that have ended, over the document. `on_result` is called with each result.
    """

    questions: Sequence[str]
    document: Document
    settings: Settings
    trace: Path | None
    resume: bool
    spending: Spending
    display: ReadDisplay
    before: Header | None = None
    passes: list[Pass] = field(default_factory=list)
    on_result: Callable[[Result], None] = lambda _result: None


@click.command(cls=Command, options_metavar="[OPTIONS]", short_help="Answer questions about documents.")
@click.argument("words", nargs=-1, metavar="QUESTION PATH...", shell_complete=complete_files)
@click.option("-q", "--question", multiple=True, metavar="QUESTION", help="a question; may be repeated")
@click.option("--questions", type=PATH, metavar="FILE", help="a text file with one question per line")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per question")
@click.option("--trace", type=PATH, metavar="FILE", help="where to keep the journal (in the cache); "
              "with --each, the folder for all of them")  # fmt: skip
@click.option("--resume", is_flag=True, help="continue an interrupted read")
@click.option("--continue", "follow_up", is_flag=True,
              help="ask about the documents of the last read, read again in the same way")  # fmt: skip
@click.option("--follow-links", is_flag=True, help="also read what a folder only links to")
@click.option("--dry-run", is_flag=True, help="show what would be read and its maximum cost; ask no model")
@each_flags
@quiet_and_verbose
@with_settings()
def command(
    words: tuple[str, ...],
    question: tuple[str, ...],
    questions: Path | None,
    as_json: bool,
    trace: Path | None,
    resume: bool,
    follow_up: bool,
    follow_links: bool,
    dry_run: bool,
    quiet: bool,
    settings: Settings,
    **each: Any,
) -> int:
    """Read a document of any length in chunks, keeping a memory, and answer from it.

    A PATH is a file, a folder, a pattern, or - for standard input. With -q or --questions, all arguments are
    paths. All paths form one document; with --each, every file is a document, and its answer a table row.
    """
    given = [*question, *_lines(questions)]
    if follow_up and each["each"]:
        raise SettingsError("--continue is for one document, not for --each: drop one")
    before = last_read() if follow_up else None
    if before:
        problems, paths = check_words(given, words), list(before.sources)
    else:
        problems, paths = _questions_and_paths(given, words)
    if each.pop("each"):
        survey = Survey(
            problems=tuple(problems), paths=tuple(paths), settings=settings,
            journals=trace, follow_links=follow_links, dry_run=dry_run, **each,
        )  # fmt: skip
        return ask_each(survey, quiet, as_json)
    if needless := [name for name in ("out", "verify", "ray") if each[name]]:
        raise SettingsError(f"--{needless[0]} is for --each: add it, or drop --{needless[0]}")
    spending = Spending(settings.read, each["max_tokens"], each["max_cost"])
    document = _open(before, paths, trace, follow_links)
    settings = settings_of(before, settings, quiet) if before else settings
    settings = with_found_model(settings, quiet, dry_run)
    if dry_run:
        warn_left_out(asyncio.run(dry_run_questions(problems, document, settings, as_json)))
        return 0
    with ReadDisplay(quiet, problems) as display:
        request = AskRequest(problems, document, settings, trace, resume, spending, display, before)
        return answer(request, as_json)


def answer(request: AskRequest, as_json: bool) -> int:
    """Read for all questions and print the answers; at the end, say what could not be read."""
    code = asyncio.run(answer_all(request, as_json))
    warn_left_out(dict.fromkeys(file for blocks in request.passes for file in blocks.skipped))
    warn_undecoded(dict(item for blocks in request.passes for item in blocks.replaced.items()))
    return code


def _open(before: Header | None, paths: Sequence[str], trace: Path | None, follow_links: bool) -> Document:
    """The document, with warnings of what is not as it seems. Raises `SettingsError`, `DocumentError`."""
    within = (path for path in paths if trace and trace.resolve().is_relative_to(Path(path).resolve()))
    if folder := next(within, None):
        raise SettingsError(
            f"--trace {trace} would be part of the document {folder}: name a place outside of it"
        )
    document = documents_of(before) if before else open_document(*paths, follow_links=follow_links)
    warn_left_out(document.skipped)
    _warn_of_guesses(document)
    return document


def _warn_of_guesses(document: Document) -> None:
    for source in document.sources:
        if source.doubtful:
            name = source.encoding.replace("_", "-").upper()
            hint = "if characters are wrong, save it as UTF-8"
            warn(f"{source.name}: read as {name} (a guess): {hint}")


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    lines = read_utf8(file, "--questions").splitlines()
    if not (questions := [line.strip() for line in lines if line.strip()]):
        raise SettingsError(f"--questions {file}: the file has no question")
    return questions


def _questions_and_paths(questions: list[str], words: Sequence[str]) -> tuple[list[str], list[str]]:
    paths = list(words)
    if not questions:
        questions, paths = paths[:1], paths[1:]
        if not questions or (_is_there(questions[0]) and not paths):
            raise SettingsError('what is the question? memagent ask "QUESTION" PATH...')
    missing = next((path for path in paths if not (_is_there(path) or Path(path).suffix)), None)
    if missing and any(map(_is_there, words)):
        raise SettingsError(
            f"there is no file {missing!r}; a question comes first and in quotes, or after -q: "
            'memagent ask "QUESTION" PATH...'
        )
    if not paths and sys.stdin and not sys.stdin.isatty():  # a closed stdin is None
        paths = ["-"]
    if not paths:
        raise SettingsError("which document? name a file, a folder, a pattern, or - for standard input")
    return questions, paths


def _is_there(word: str) -> bool:
    if word == "-":
        return True
    try:
        return Path(word).exists() or (glob.has_magic(word) and any(glob.iglob(word)))  # noqa: PTH207
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False


async def answer_all(request: AskRequest, as_json: bool) -> int:
    """Print each answer as it comes; if one question fails, the others continue."""
    code, separator = 0, ""
    questions = await asyncio.to_thread(_with_traces, request)
    request.display.waiting(describe_opening(choose(request.settings.engine)))
    async with open_engine(request.settings.engine) as engine:
        request.display.waiting("")
        if request.before:
            warn_of_another(engine.model.name, request.before)
        async with aclosing(_outcomes(request, request.spending.limit(engine), questions)) as outcomes:
            async for question, outcome in outcomes:
                with request.display.pause(last=question.number == len(questions)):
                    if isinstance(outcome, MemAgentError):
                        print_error(outcome)
                        code = code or exit_code(outcome)
                        continue
                    request.on_result(outcome)
                    if as_json:
                        say_json(flatten(outcome))
                    else:
                        cited = citations(outcome.statements) if request.settings.read.cite else ()
                        head = [separator + question.text] if len(questions) > 1 else []
                        say("\n".join([*head, outcome.answer, *cited]))
                        separator = "\n"
    return code


async def _outcomes(
    request: AskRequest, engine: Engine, questions: Sequence[_Question]
) -> AsyncGenerator[tuple[_Question, Result | MemAgentError], None]:
    """Yield each question with its outcome, in order; up to `_MAX_TOGETHER` are read together."""
    for start in range(0, len(questions), _MAX_TOGETHER):
        some = questions[start : start + _MAX_TOGETHER]
        seated = zip(some, Together(engine, len(some)).seats, strict=True)
        async with aclosing(map_concurrent(partial(_answer, request), seated, len(some))) as outcomes:
            async for outcome in outcomes:
                yield outcome


async def _answer(
    request: AskRequest, seated: tuple[_Question, Seat]
) -> tuple[_Question, Result | MemAgentError]:
    """Read for one question; an error is returned, not raised."""
    (question, seat), display = seated, request.display
    read: Read | None = None
    try:
        read = Read(
            question.text, request.document, seat, request.settings.read,
            trace=question.traces, resume=request.resume,
        )  # fmt: skip
        display.begin(question.number, read)
        if asks_to_count(question.text) and not read.counts:
            display.remark("this asks for something to be counted up: memagent tally has code count it")
        async for conversation in read:
            display.show(question.number, conversation)
            if read.counts and conversation.chunk_index is None and conversation.memory:  # the plan
                display.remark(conversation.memory.rstrip())
    except MemAgentError as error:
        return question, _with_advice(error, read.trace if read else None, request)
    finally:
        seat.leave()
        display.end(question.number)
        if read:
            request.passes.append(read.blocks)
    if read.keeps_memory and not read.noted and read.progress.spent.calls:  # answered at once, from all of it
        display.remark("read in one prompt: it takes less than half the window (or --workflow notes)")
    if read.stopped_early:
        all_chunks = f" of about {count}" if (count := read.progress.chunks_in_all) else ""
        chunks = f"{read.progress.chunks}{all_chunks} chunks"
        display.remark(f"{chunks} were enough, the others were not read (--likeliest-chunks, --early-exit)")
    if (given_up := read.progress.given_up) and read.memory:
        display.remark(f"the memory had no room for {given_up} passages (--memory-tokens)")
    for doubt in filter(None, (await asyncio.to_thread(doubt_words, read), *doubts_of(read))):
        warn(doubt)
    return question, read.result


def _with_advice(error: MemAgentError, trace: Path | None, request: AskRequest) -> MemAgentError:
    """The error of a read with what to do next."""
    if isinstance(error, EngineError) and trace:
        advice = f"the read is kept in {trace}: run the same command with --resume to continue"
        return EngineError(f"{error}\n{advice}")
    if isinstance(error, JournalError) and not (request.trace or request.resume or trace):
        return JournalError(f"{error}; --trace names another place")
    return error


def _with_traces(request: AskRequest) -> list[_Question]:
    """The questions, each with where its journal goes; with --resume, its earlier journals. Blocks.

    With --resume, a question without a journal starts afresh. Raises `JournalError` if none has one.
    """
    folder, digest, named = user_cache_path() / "journals", request.document.fingerprint, request.trace
    questions: list[_Question] = []
    resumed = False
    for number, text in enumerate(request.questions, 1):
        if named is None:
            new = new_path(folder, digest, text)
            earlier = earlier_paths(folder, digest, text) if request.resume else []
        else:
            new = named if len(request.questions) == 1 else named.with_stem(f"{named.stem}-{number}")
            earlier = [new] if request.resume and new.exists() else []
        resumed |= bool(earlier)
        questions.append(_Question(number, text, earlier or [new]))
    if request.resume and not resumed:
        where = f" {questions[0].traces[0]}" if named else f" of this document and problem in {folder}"
        raise JournalError(f"there is no journal{where}: check the command, or leave out --resume")
    return questions
