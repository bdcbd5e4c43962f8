"""`memagent notes`: memories that live on, fed by a note a day or a growing folder."""

from __future__ import annotations

import asyncio
import functools
import shlex
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from memagent.cli.flags import PATH, Command, Function, complete_files, quiet_and_verbose, with_settings
from memagent.cli.messages import (
    MAX_NAMED,
    citations,
    describe,
    name_some,
    say,
    say_changes,
    say_json,
    say_styled,
    tell,
    warn,
    warn_left_out,
)
from memagent.cli.models import with_found_model
from memagent.cli.progress import ReadDisplay
from memagent.documents.opening import Document, open_document
from memagent.engines import open_engine
from memagent.errors import EngineError, SettingsError
from memagent.notebooks import Addition, Notebook, NotebookAnswer, Notebooks, Version, note_document
from memagent.reading.workflows import workflows
from memagent.settings import Settings, option_kinds
from memagent.types import flatten

_MEMORY_OPTIONS = {
    kind for workflow in workflows().values() if workflow.keeps_memory for kind in workflow.options
}
_NOT_FOR_NOTES = (
    "screen",
    *(name for name, kind in option_kinds().items() if kind.skip or kind not in _MEMORY_OPTIONS),
)
"""A notebook reads all that is new, into a memory."""


@click.group(short_help="Keep a memory that lives on: add to it, ask it, undo.")
def command() -> None:
    """Keep notebooks: memories that live on, and are fed with a note a day or a growing folder."""


_of_notebooks = click.option(
    "--notebooks", type=PATH, metavar="FOLDER", callback=lambda _context, _option, folder: Notebooks(folder),
    help="where notebooks are kept (in the user's data folder)",
)  # fmt: skip


def _of_notebook(function: Function) -> Function:
    """Add --notebooks to a command with a NAME; its function receives `notebook`."""

    @functools.wraps(function)
    def command(name: str, notebooks: Notebooks, **values: Any) -> Any:
        return function(notebook=Notebook(name, notebooks), **values)

    return _of_notebooks(command)  # type: ignore[return-value]


_AS_JSON = click.option("--json", "as_json", is_flag=True, help="print JSON")
_NAME = click.argument("name", metavar="NAME")


def _version(least: int) -> Callable[[Any], Any]:
    text = "an earlier version (the current one)"
    return click.option("--version", type=click.IntRange(least), metavar="N", help=text)


@command.command(short_help="Make a notebook with a standing instruction.")
@_NAME
@click.option("--about", required=True, metavar="TEXT", help="what the notebook should keep of what it reads")
@_of_notebooks
def new(name: str, about: str, notebooks: Notebooks) -> None:
    """Make a notebook with a standing instruction, such as "who decided what, and when"."""
    notebook = Notebook.new(name, about, notebooks)
    say(f"{notebook.entry.name}: made")
    tell(f"add to it with memagent notes add {shlex.quote(notebook.entry.name)} PATH...")


@command.command(name="list")
@_AS_JSON
@_of_notebooks
def list_notebooks(as_json: bool, notebooks: Notebooks) -> None:
    """List the notebooks, with what each is about."""
    entries = notebooks.entries()
    for entry in entries:
        if as_json:
            say_json({name: value for name, value in asdict(entry).items() if name != "id"})
        else:
            say(f"{entry.name}: version {entry.current}, about {_on_one_line(entry.about)!r}")
    if not entries:
        tell('there are no notebooks yet: memagent notes new NAME --about "what to keep"')


@command.command(cls=Command, short_help="Read what is new into a notebook.")
@_NAME
@click.argument("paths", nargs=-1, metavar="PATH...", shell_complete=complete_files)
@click.option("--text", metavar="TEXT", help="a note, instead of paths")
@click.option("--follow-links", is_flag=True, help="also read what a folder only links to")
@_AS_JSON
@_of_notebook
@quiet_and_verbose
@with_settings(leave_out=(*_NOT_FOR_NOTES, "answer_tokens", "cite"))
def add(
    paths: tuple[str, ...],
    text: str | None,
    follow_links: bool,
    as_json: bool,
    notebook: Notebook,
    quiet: bool,
    settings: Settings,
) -> None:
    """Read what is new in files, folders and patterns, or in - for standard input, into a notebook.

    What it has read before is passed over; of a text file that has only grown, just the new end is read. An
    interrupted command continues when it is run again.
    """
    if text is not None and paths:
        raise SettingsError("what should be read, the --text or the files? give one of the two")
    if text is None and not paths:
        raise SettingsError("what should be read? name files or folders, - for standard input, or --text")
    document = open_document(*paths, follow_links=follow_links) if text is None else note_document(text)
    settings, name = with_found_model(settings, quiet), notebook.entry.name
    warn_left_out(document.skipped)
    with ReadDisplay(quiet, [name]) as display:
        addition = asyncio.run(_add(notebook, document, settings, display))
    warn_left_out(addition.skipped[len(document.skipped) :])
    if cut := sum(version.cut for version in addition.versions):
        warn(f"{cut} replies were cut at their token budget")
    for version in addition.versions:
        if as_json:
            say_json(flatten(version))
        else:
            say(f"{name}: version {_describe(version)}")
        before = notebook.version(version.parent)
        if version.memory == before.memory:
            files = name_some([portion.name for portion in version.portions])
            same = f"version {version.number} has the memory of version {before.number}"
            again = f"to read it again, memagent notes undo {shlex.quote(name)}"
            warn(f"nothing was noted of {files}: {same}; {again}")
    if addition.known:
        tell(f"read before: {name_some(addition.known)}", quiet=quiet)
    if addition.unnoted:
        what, advice = "nothing was noted of", "try another model, or --about"
        if addition.progress.given_up:
            what, advice = "the memory has no room for what was noted of", "raise --memory-tokens"
        warn(f"{what} {name_some(addition.unnoted)}, which still counts as new: {advice}")
    elif not addition.versions and not as_json:
        say(f"{name}: nothing new")


async def _add(notebook: Notebook, document: Document, settings: Settings, display: ReadDisplay) -> Addition:
    waiting = "another process is changing the notebook: waiting for it"
    async with open_engine(settings.engine) as engine:
        addition = notebook.add(document, engine, settings.read, waiting=lambda: tell(waiting))
        displayed = None
        try:
            async with aclosing(aiter(addition)) as conversations:
                async for conversation in conversations:
                    if addition.read and addition.read is not displayed:
                        displayed = addition.read
                        display.begin(1, displayed)
                    display.show(1, conversation)
        except EngineError as error:
            advice = "what was read is kept: run the same command again to continue"
            raise type(error)(f"{error}\n{advice}") from error
    return addition


@command.command(cls=Command, short_help="Ask a notebook: one call, from its memory alone.")
@_NAME
@click.argument("question", metavar="QUESTION")
@_version(1)
@_AS_JSON
@_of_notebook
@quiet_and_verbose
@with_settings(leave_out=(*_NOT_FOR_NOTES, "chunk_tokens", "max_calls"))
def ask(
    question: str, version: int | None, as_json: bool, notebook: Notebook, quiet: bool, settings: Settings
) -> None:
    """Answer a question from a notebook's memory alone."""
    settings = with_found_model(settings, quiet)

    reply = asyncio.run(_ask(notebook, question, settings, version))
    if as_json:
        say_json(flatten(reply))
        return
    unsupported = "the memory names no source for it"
    cited = citations(reply.statements, unsupported) if settings.read.cite else ()
    say("\n".join([reply.answer, *cited]))
    tell(f"from version {reply.version}; {describe(reply.spent)}", quiet=quiet)


async def _ask(notebook: Notebook, question: str, settings: Settings, version: int | None) -> NotebookAnswer:
    async with open_engine(settings.engine) as engine:
        return await notebook.ask(question, engine, settings.read, version)


@command.command(short_help="Print a notebook's memory.")
@_NAME
@_version(0)
@_AS_JSON
@_of_notebook
def show(version: int | None, as_json: bool, notebook: Notebook) -> None:
    """Print a notebook's memory; with --json, everything known about the version."""
    chosen, entry = notebook.version(version), notebook.entry
    if as_json:
        say_json({"notebook": entry.name, "about": entry.about, **flatten(chosen)})
    elif chosen.memory:
        say(chosen.memory)
    else:
        tell(f"the memory of version {chosen.number} is empty")


@command.command(short_help="List the versions of a notebook.")
@_NAME
@_AS_JSON
@_of_notebook
def log(as_json: bool, notebook: Notebook) -> None:
    """List the versions of a notebook: what was read for each, when, with which model, at what cost."""
    entry, versions = notebook.entry, notebook.versions()
    lineage = {version.number for version in notebook.lineage()}
    if as_json:
        for version in versions:
            say_json({**flatten(version), "undone": version.number not in lineage})
        return
    say_styled(f"about: {_on_one_line(entry.about)}", "bold")
    for version in versions:
        undone = version.number not in lineage
        mark = " (undone)" if undone else " (current)" if version.number == entry.current else ""
        say_styled(f"{_describe(version)}{mark}", "dim" if undone else "")
        portions = [
            f"{portion.name}, from byte {portion.start:,}" if portion.start else portion.name
            for portion in version.portions
        ]
        more = [f"and {len(portions) - MAX_NAMED:,} more"] if len(portions) > MAX_NAMED else []
        for line in portions[:MAX_NAMED] + more:
            say_styled(f"   {line}", "dim")
    if not versions:
        tell("nothing has been read yet")


@command.command(short_help="Show what a version changed.")
@_NAME
@click.argument("first", metavar="[A]", type=click.IntRange(0), required=False)
@click.argument("second", metavar="[B]", type=click.IntRange(0), required=False)
@_of_notebook
def diff(first: int | None, second: int | None, notebook: Notebook) -> None:
    """Print what version B added to the memory of A (+) and removed from it (-).

    B defaults to the current version, A to the one before B.
    """
    after = notebook.version(second)
    before = notebook.version(after.parent if first is None else first)
    if not say_changes(before.memory, after.memory):
        tell(f"versions {before.number} and {after.number} have the same memory")


@command.command(short_help="Go back to the previous version.")
@_NAME
@_of_notebook
def undo(notebook: Notebook) -> None:
    """Go back to the previous version; what was read since then counts as new again."""
    before = notebook.version()
    now = notebook.undo()
    say(f"{notebook.entry.name}: back from version {before.number} to {now.number}")


@command.command()
@_NAME
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@_of_notebook
def delete(yes: bool, notebook: Notebook) -> None:
    """Delete a notebook with all its versions."""
    entry, count = notebook.entry, len(notebook.versions())
    if not yes:
        click.confirm(f"delete {entry.name!r} and its {count} versions?", err=True, abort=True)
    notebook.delete()
    say(f"{entry.name}: deleted")


def _describe(version: Version) -> str:
    when = datetime.fromtimestamp(version.created, UTC).astimezone()
    files = len(version.portions)
    return (
        f"{version.number}, {when:%Y-%m-%d %H:%M}, from {version.parent}: "
        f"{files} {'file' if files == 1 else 'files'}, {version.document_tokens:,} tokens; {version.model}, "
        f"{describe(version.spent)}"
    )


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
