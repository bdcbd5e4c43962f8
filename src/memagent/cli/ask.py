"""`memagent ask`: answer questions about a document."""

from __future__ import annotations

import asyncio
import glob
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from memagent.cli.dry_run import dry_run as forecast_all
from memagent.cli.each import ask_each, each_flags
from memagent.cli.finding import with_found_model
from memagent.cli.flags import PATH, Command, complete_files, quiet_and_verbose, with_settings
from memagent.cli.memories import citations
from memagent.cli.messages import exit_code, print_error, say, say_json, warn
from memagent.cli.progress import ReadDisplay, describe_opening
from memagent.concurrency import side_by_side
from memagent.documents.opening import Document, Pass, open_document
from memagent.engines import choose, open_engine
from memagent.engines.wrappers import Spending
from memagent.errors import EngineError, JournalError, MemAgentError, SettingsError, reason
from memagent.reading.journal import earlier_paths, new_path
from memagent.reading.lockstep import Seat, Together
from memagent.reading.nearest import find_sources
from memagent.reading.read import Read, Result
from memagent.reading.sources import Statement, statements_of
from memagent.settings import Settings, user_cache_path
from memagent.types import Engine, flatten

_MAX_TOGETHER = 32
"""Questions that are read together: each holds a chunk of the document."""

_Item = tuple[int, tuple[str, Sequence[Path]]]
"""A question's number, the question, and where its journal may be."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks for."""

    questions: Sequence[str]
    document: Document
    settings: Settings
    trace: Path | None
    resume: bool
    spending: Spending
    passes: list[Pass] = field(default_factory=list)
    """What each read found in the document, once it has ended."""


@click.command(cls=Command, options_metavar="[OPTIONS]", short_help="Answer questions about documents.")
@click.argument("words", nargs=-1, metavar="QUESTION PATH...", shell_complete=complete_files)
@click.option("-q", "--question", multiple=True, metavar="QUESTION", help="a question; may be repeated")
@click.option("--questions", type=PATH, metavar="FILE", help="a text file with one question per line")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per question")
@click.option("--trace", type=PATH, metavar="FILE", help="where to keep the journal (in the cache); "
              "with --each, the folder for all of them")  # fmt: skip
@click.option("--resume", is_flag=True, help="continue an interrupted read")
@click.option("--follow-links", is_flag=True, help="also read what a folder only links to")
@click.option("--dry-run", is_flag=True, help="show what would be read and its maximum cost; ask no model")
@each_flags
@quiet_and_verbose
@with_settings("engine", "read")
@click.pass_obj
def command(
    console: Console,
    /,
    words: tuple[str, ...],
    question: tuple[str, ...],
    questions: Path | None,
    as_json: bool,
    trace: Path | None,
    resume: bool,
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
    asked_for = [*question, *_lines(questions)]
    asked_for, paths = _questions_and_paths(asked_for, words)
    if each.pop("each"):
        if not each["ray"]:  # the machines of a cluster have their own servers and caches
            settings = with_found_model(settings, console, quiet)
        return ask_each(
            console,
            quiet,
            as_json,
            dry_run,
            problems=tuple(asked_for),
            paths=tuple(paths),
            settings=settings,
            journals=trace,
            follow_links=follow_links,
            **each,
        )
    if needless := [name for name in ("out", "verify", "ray") if each[name]]:
        raise SettingsError(f"--{needless[0]} is for --each: add it, or drop --{needless[0]}")
    spending = Spending(settings.read, each["max_tokens"], each["max_cost"])
    if trace:
        _check_place(trace, paths)
    document = open_document(*paths, follow_links=follow_links)
    _say_left_out(document.skipped, console)
    _say_doubtful(document, console)
    settings = with_found_model(settings, console, quiet)
    if dry_run:
        left_out = asyncio.run(forecast_all(asked_for, document, settings, as_json))
        _say_left_out(left_out, console)
        return 0
    asked = Asked(asked_for, document, settings, trace, resume, spending)
    with ReadDisplay(console, quiet, asked_for) as display:
        code = asyncio.run(_answer_all(asked, display, as_json, console))
    _say_left_out(dict.fromkeys(it for found in asked.passes for it in found.skipped), console)
    for name, count in dict(it for found in asked.passes for it in found.replaced.items() if it[1]).items():
        warn(console, f"{name}: {count} characters could not be decoded and were read as U+FFFD")
    return code


def _say_doubtful(document: Document, console: Console) -> None:
    for source in document.sources:
        if source.doubtful:
            name = source.encoding.replace("_", "-").upper()
            hint = "if characters are wrong, save it as UTF-8"
            warn(console, f"{source.name}: read as {name} (a guess): {hint}")


def _say_left_out(skipped: Iterable[str], console: Console) -> None:
    for file in skipped:
        warn(console, f"left out: {file}")


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeError as error:
        raise SettingsError(f"--questions {file} is not text in UTF-8") from error
    except OSError as error:
        raise SettingsError(f"--questions {file} cannot be read: {reason(error)}") from error
    if not (questions := [line.strip() for line in lines if line.strip()]):
        raise SettingsError(f"--questions {file}: the file has no question")
    return questions


def _questions_and_paths(questions: list[str], words: Sequence[str]) -> tuple[list[str], list[str]]:
    paths = list(words)
    if not questions:
        questions, paths = paths[:1], paths[1:]
        if not questions or (_is_there(questions[0]) and not paths):
            raise SettingsError('what is the question? memagent ask "QUESTION" PATH...')
    odd = next((it for it in paths if not (_is_there(it) or Path(it).suffix)), None)
    if odd and any(map(_is_there, words)):
        raise SettingsError(
            f"there is no file {odd!r}; a question comes first and in quotes, or after -q: "
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


async def _answer_all(asked: Asked, display: ReadDisplay, as_json: bool, console: Console) -> int:
    """Print each answer as it comes; if one question fails, the others continue."""
    code = 0
    traces = await asyncio.to_thread(_traces, asked)
    display.waiting(describe_opening(choose(asked.settings.engine).engine))
    async with open_engine(asked.settings.engine) as engine:
        display.waiting("")
        limited, separator = asked.spending.limit(engine), ""
        items = list(enumerate(zip(asked.questions, traces, strict=True), 1))
        async with aclosing(_outcomes(asked, limited, display, console, items)) as outcomes:
            async for number, question, outcome in outcomes:
                with display.pause(last=number == len(asked.questions)):
                    if isinstance(outcome, MemAgentError):
                        print_error(console, outcome)
                        code = code or exit_code(outcome)
                    elif as_json:
                        say_json(flatten(outcome))
                    else:
                        cited = citations(outcome.statements) if asked.settings.read.cite else ()
                        answer_text = "\n".join([outcome.answer, *cited])
                        several = len(asked.questions) > 1
                        say(f"{separator}{question}\n{answer_text}" if several else answer_text)
                        separator = "\n"
    return code


async def _outcomes(
    asked: Asked, engine: Engine, display: ReadDisplay, console: Console, items: Sequence[_Item]
) -> AsyncGenerator[tuple[int, str, Result | MemAgentError], None]:
    """Yield the outcome of each question, in order; up to `_MAX_TOGETHER` are read together."""
    for start in range(0, len(items), _MAX_TOGETHER):
        some = items[start : start + _MAX_TOGETHER]
        seats = Together(engine, len(some)).seats
        work = partial(_answer, asked, display, console)
        async with aclosing(side_by_side(work, zip(some, seats, strict=True), len(some))) as outcomes:
            number = start
            async for question, outcome in outcomes:
                number += 1
                yield number, question, outcome


async def _answer(
    asked: Asked, display: ReadDisplay, console: Console, seated: tuple[_Item, Seat]
) -> tuple[str, Result | MemAgentError]:
    """Read for one question; an error is returned, not raised."""
    (number, (question, traces)), seat = seated
    read: Read | None = None
    noted = False
    try:
        read = Read(question, asked.document, seat, asked.settings.read, trace=traces, resume=asked.resume)
        seat.progress = partial(getattr, read, "progress")
        display.begin(number, read)
        async for conversation in read:
            noted |= conversation.kind == "update"
            display.show(number, conversation)
    except EngineError as error:
        if read is None or read.trace is None:
            return question, error
        kept = f"the read is kept in {read.trace}: run the same command with --resume to continue"
        return question, EngineError(f"{error}\n{kept}")
    except JournalError as error:
        if asked.trace or asked.resume or (read and read.trace):
            return question, error
        return question, JournalError(f"{error}; --trace names another place")
    except MemAgentError as error:
        return question, error
    finally:
        seat.leave()
        display.end(number)
        if read:
            asked.passes.append(read.found)
    if read.workflow == "auto" and not noted:
        display.remark("read in one prompt: it takes less than half the window (or --workflow notes)")
    if not read.has_answer:
        warn(console, f"no answer was found: {_why(read.memory, noted)}")
    elif read.doubtful:
        warn(console, "the document has little of what the question names: check the answer")
    elif doubt := await asyncio.to_thread(_doubt_words, read):
        warn(console, doubt)
    if cut := read.progress.cut:
        warn(console, f"{cut} of {read.progress.spent.calls} replies were cut at their token budget")
    if refused := read.progress.refused:
        warn(console, f"refused, because the document does not have them: {refused} passages of replies")
    if passed_over := read.progress.passed_over:
        warn(console, f"{passed_over} of {read.progress.chunks} chunks were passed over (--screen)")
    return question, read.result


def _why(memory: str, noted: bool) -> str:
    if noted and not memory:
        return "nothing was noted, so no model was asked"
    return f"the model says that {'what was noted' if noted else 'the document'} does not hold it"


def _doubt_words(read: Read) -> str:
    """A warning if the document says nothing of the answer word for word. Blocks: the text is searched."""
    told = read.statements
    if not read.settings.cite and not any(it.source for it in told):  # else it was searched already
        bare = [Statement(text, None) for text in statements_of(read.answer)]
        told = find_sources(bare, read.problem, read.document, read.budgets.chunk_tokens)
    if any(it.source for it in told):
        return ""
    if any(it.nearest for it in told):
        how = "the nearest passage" if read.settings.cite else "its nearest passage (--cite shows it)"
        return f"the document does not say this in these words: compare {how}"
    return "the document does not say this, and no passage comes near it: check it"


def _check_place(trace: Path, paths: Sequence[str]) -> None:
    """Raise `SettingsError` for a journal that would be part of the document."""
    place = trace.resolve()
    if folder := next((it for it in paths if place.is_relative_to(Path(it).resolve())), None):
        raise SettingsError(
            f"--trace {trace} would be part of the document {folder}: name a place outside of it"
        )


def _traces(asked: Asked) -> list[Sequence[Path]]:
    """Where the journal of each question goes; with --resume, its earlier journals. Blocks.

    With --resume, a question without a journal starts afresh. Raises `JournalError` if none has one.
    """
    folder, questions = user_cache_path() / "journals", asked.questions
    digest = asked.document.fingerprint
    if (named := asked.trace) is None:
        new = [new_path(folder, digest, question) for question in questions]
    elif len(questions) == 1:
        new = [named]
    else:
        new = [named.with_stem(f"{named.stem}-{number}") for number in range(1, len(questions) + 1)]
    if not asked.resume:
        return [[path] for path in new]
    if named is None:
        earlier = [earlier_paths(folder, digest, question) for question in questions]
    else:
        earlier = [[path] if path.exists() else [] for path in new]
    if not any(earlier):
        place = (
            f"no journal of this document and problem in {folder}"
            if named is None
            else f"no journal {new[0]}"
        )
        raise JournalError(f"there is {place}: check the command, or leave out --resume")
    return [paths or [path] for path, paths in zip(new, earlier, strict=True)]
