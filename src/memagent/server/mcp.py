"""Tools for assistants that use the Model Context Protocol: reads of long documents, and notebooks.

Reads are the server's jobs: each is kept in the store and its journal, so that it survives a restart, and
what was asked before is not paid for again. The protocol's Tasks are left out, as the SDK lacks them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field
from starlette.applications import Starlette

from memagent.concurrency import drain
from memagent.errors import MemAgentError, SettingsError
from memagent.notebooks import Addition, Notebook, Notebooks, Version, note_document
from memagent.reading.progress import Progress
from memagent.reading.tally.plan import Plan
from memagent.server import schemas
from memagent.server.app import make_server
from memagent.server.database import Job
from memagent.server.division import key_of
from memagent.server.documents import Content, Folders
from memagent.server.errors import ApiError
from memagent.server.gate import Gate, Metrics
from memagent.server.jobs import Jobs
from memagent.server.limits import Keys, Limits
from memagent.server.schemas import ReadAnswer, ReadOptions, ReadStatus
from memagent.server.store import Store
from memagent.settings import ReadSettings
from memagent.types import Engine, flatten
from memagent.version import __version__

OWNER = "mcp"
MAX_ROWS = 100
"""How many rows of a table an assistant is given, whose window they fill; its coverage counts all."""

_FAR = 10**12  # the number of a conversation behind all others

Question = Annotated[str, Field(description="the question, or what to look for")]
Paths = Annotated[list[str], Field(description="files or folders, absolute or within the open folders")]
_SCREEN = (
    "true skips parts that share no distinctive word with the question, which is faster: for questions that "
    "name what they look for, never for questions about the whole"
)
Screen = Annotated[bool | None, Field(description=_SCREEN)]
_HOW = (
    "how to read, if not as the server is set: 'tally' for questions that count, add up, rank or list "
    "all, which code then answers from a table of rows"
)
Way = Annotated[str | None, Field(description=_HOW, max_length=100)]
Id = Annotated[str, Field(description="the id that start_read returned", max_length=100)]
Name = Annotated[str, Field(description="the notebook's name")]


@dataclass(frozen=True, slots=True)
class Desk:
    """What the tools work with."""

    jobs: Jobs
    folders: Folders
    notebooks: Notebooks
    beat_seconds: float = 5.0  # how often a waiting client is told that the work continues


@dataclass(frozen=True, slots=True)
class Places:
    """What may be read, and where reads (in the first free folder of `data`) and notebooks are kept."""

    folders: Folders
    data: Sequence[Path]
    notebooks: Path | None


async def serve(
    engine: Engine, settings: ReadSettings, places: Places, listener: socket.socket | None, keys: Keys
) -> None:
    """Serve until the client leaves, over HTTP on a socket or over standard input. Raises `SettingsError`."""
    limits, metrics = Limits(), Metrics()
    notebooks = await asyncio.to_thread(Notebooks, places.notebooks)
    with Store.first_free(places.data) as store:
        jobs = Jobs(engine, settings, store, metrics)
        server = create_mcp(Desk(jobs, places.folders, notebooks))
        async with jobs.work():
            if listener is None:
                await server.run_stdio_async()
            else:
                app = create_http_app(server, listener.getsockname()[0], limits)
                app.add_middleware(Gate, keys=keys, limits=limits, metrics=metrics)
                await make_server(app, limits).serve(sockets=[listener])


def create_http_app(server: MCPServer[Any], host: str, limits: Limits) -> Starlette:
    """The app that serves over HTTP; sessions that clients have left without a word end after a while."""
    return server.streamable_http_app(
        host=host, session_idle_timeout=limits.session_seconds, max_sessions=limits.sessions
    )


def create_mcp(desk: Desk) -> MCPServer[Any]:
    """The server with its tools; `desk.jobs` must be at work meanwhile."""
    about = (
        "Reads documents of any length with a model of its own, chunk by chunk, and names the place behind "
        f"each statement of its answer. Open folders: {desk.folders}. For more than a few pages call "
        "start_read, then read_status until it is done, then read_result. "
        "Notebooks are memories that live on."
    )
    server = MCPServer[Any]("memagent", version=__version__, log_level="WARNING", instructions=about)
    tool = partial(_tool, server)
    _add_reads(tool, desk)
    _add_notebooks(tool, desk)
    return server


def _tool(server: MCPServer[Any], function: Callable[..., Awaitable[Any]]) -> None:
    """Add a tool to the server. Its expected errors reach the client as they are."""

    @wraps(function)
    async def tool(**values: Any) -> Any:
        try:
            return await function(**values)
        except (MemAgentError, ApiError) as error:
            raise ToolError(error.message if isinstance(error, ApiError) else str(error)) from error

    server.add_tool(tool, description=getdoc(function))  # without the indentation


def _add_reads(tool: Callable[..., None], desk: Desk) -> None:
    @tool
    async def ask(
        question: Question, paths: Paths, ctx: Context, screen: Screen = None, workflow: Way = None
    ) -> ReadAnswer:
        """Read files to answer a question, and wait for the answer. For more than a few pages use start_read.

        If the call is cut off, ask the same question again: it continues where it stopped.
        """
        options = ReadOptions(cite=True, screen=screen, workflow=workflow)
        job = await _begin(desk, question, paths, options, attended=True)
        events = desk.jobs.events(job, _FAR)
        await _report(drain(events), lambda: desk.jobs.progress(job) or Progress(), ctx, desk)
        return _describe_answer(await _find(desk, job.id))

    @tool
    async def start_read(
        question: Question, paths: Paths, screen: Screen = None, workflow: Way = None
    ) -> ReadStatus:
        """Start reading files to answer a question, and return at once; read_status tells how far it has got.

        Asking the same question about the same files continues the earlier read, or returns its result.
        """
        options = ReadOptions(cite=True, screen=screen, workflow=workflow)
        return _describe_read(await _begin(desk, question, paths, options), desk.jobs)

    @tool
    async def read_status(id: Id) -> ReadStatus:
        """Tell how far a read has got, with its memory so far."""
        return _describe_read(await _find(desk, id), desk.jobs)

    @tool
    async def read_result(id: Id) -> ReadAnswer:
        """Return the answer of a read that is done, with its sources."""
        return _describe_answer(await _find(desk, id))

    @tool
    async def cancel_read(id: Id) -> ReadStatus:
        """Stop a read; what it has read is kept, and start_read continues it."""
        await desk.jobs.cancel(await _find(desk, id))
        return _describe_read(await _find(desk, id), desk.jobs)


def _add_notebooks(tool: Callable[..., None], desk: Desk) -> None:
    engine, settings = desk.jobs.engine, desk.jobs.settings

    def notebook(name: str) -> Notebook:
        return Notebook(name, desk.notebooks)

    @tool
    async def notes_list() -> list[schemas.NotebookSummary]:
        """List the notebooks: memories that live on between documents."""
        entries = await asyncio.to_thread(desk.notebooks.entries)
        return [
            schemas.NotebookSummary(name=entry.name, about=entry.about, version=entry.current)
            for entry in entries
        ]

    @tool
    async def notes_new(
        name: Name, about: Annotated[str, Field(description="what it should keep of what it reads")]
    ) -> schemas.NotebookSummary:
        """Create a notebook."""
        entry = await asyncio.to_thread(desk.notebooks.add, name, about)
        return schemas.NotebookSummary(name=entry.name, about=entry.about, version=0)

    @tool
    async def notes_add(
        name: Name,
        ctx: Context,
        paths: Paths | None = None,
        text: Annotated[str | None, Field(description="a note, instead of paths")] = None,
    ) -> schemas.AdditionSummary:
        """Read a note, or what is new in files, into a notebook. If the call is cut off, repeat it."""
        if (paths is None) == (text is None):
            raise SettingsError("what should be read? give either paths or a text")
        if text is not None:
            document = note_document(text)
        else:
            document = await asyncio.to_thread(desk.folders.open, paths or ())
        addition = (await asyncio.to_thread(notebook, name)).add(
            document, engine, settings, waiting=lambda: None
        )
        await _report(drain(aiter(addition)), lambda: addition.progress, ctx, desk)
        return _describe_addition(addition)

    @tool
    async def notes_ask(name: Name, question: Question) -> schemas.AnswerFromNotebook:
        """Answer a question from a notebook's memory alone."""
        opened = await asyncio.to_thread(notebook, name)
        reply = await opened.ask(question, engine, settings.replace(cite=True))
        return schemas.AnswerFromNotebook(
            answer=reply.answer, version=reply.version, statements=list(reply.statements)
        )

    @tool
    async def notes_log(name: Name) -> list[schemas.VersionSummary]:
        """List the versions of a notebook with their memories, the newest last."""
        return [
            _describe_version(version)
            for version in await asyncio.to_thread(lambda: notebook(name).lineage())
        ]


async def _begin(
    desk: Desk, question: str, paths: Sequence[str], options: ReadOptions, attended: bool = False
) -> Job:
    prepared = await asyncio.to_thread(_prepare, desk, question, paths, options)
    return await desk.jobs.begin(OWNER, *prepared, attended=attended)


def _prepare(
    desk: Desk, question: str, paths: Sequence[str], options: ReadOptions
) -> tuple[str, dict[str, Any], list[tuple[str, Content]]]:
    """Prepare a read for `Jobs.begin`, whose key is equal for the same question on the same files. Blocks."""
    if not question.strip():
        raise SettingsError("the question is empty: ask one")
    document = desk.folders.open(paths)
    request = {
        "problem": question,
        "memory": "",
        "options": options.model_dump(exclude_none=True),
        "fingerprint": document.fingerprint,
        "unnamed": not any(source.named for source in document.sources),
        "left_out": document.skipped,
    }
    settings, model = options.over(desk.jobs.settings), desk.jobs.engine.model
    names = [source.name for source in document.sources]
    key = key_of(question, document.fingerprint, names, settings, model)
    files = [(source.name, source.origin) for source in document.sources if isinstance(source.origin, Path)]
    return key, request, [(name, Path(os.path.realpath(path))) for name, path in files]


async def _find(desk: Desk, id: str) -> Job:
    job = await asyncio.to_thread(desk.jobs.store.read, OWNER, id)
    if job is None:
        raise SettingsError(f"there is no read {id!r}: start one with start_read")
    return job


async def _report(work: Awaitable[None], now: Callable[[], Progress], ctx: Context, desk: Desk) -> None:
    """Report progress to the client while some work continues: many give up after a minute of silence."""

    async def beat() -> None:
        value = 0.0
        while True:
            progress = now()
            value = max(value + 0.001, float(progress.chunks))  # it must grow
            total = progress.chunks_in_all
            message = f"chunk {progress.chunks}" + (f" of about {total}" if total else "")
            await ctx.report_progress(value, float(total) if total else None, message)
            await asyncio.sleep(desk.beat_seconds)

    beating = asyncio.create_task(beat())
    try:
        await work
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


def _describe_read(job: Job, jobs: Jobs) -> ReadStatus:
    error = job.outcome.get("error", {}).get("message")
    return ReadStatus(id=job.id, state=job.state, error=error, **(jobs.last_progress(job) or {}))


def _describe_answer(job: Job) -> ReadAnswer:
    """Describe the answer of a read. Raises `SettingsError` while there is none."""
    if job.state != "done":
        message = job.outcome.get("error", {}).get("message", "ask read_status until it is done")
        raise SettingsError(f"{job.id} is {job.state}: {message}")
    result = job.outcome["result"]
    blank = [name for _, name in job.request["documents"] if name not in result["sources"]]
    left_out = [*job.request["left_out"], *(f"{name} has no text that can be read" for name in blank)]
    table = result.get("table")
    result = {**result, "table": _describe_table(table) if table else None}
    return ReadAnswer(id=job.id, files=result["sources"], left_out=left_out, **result)


def _describe_table(table: Mapping[str, Any]) -> schemas.CountedTable:
    plan, rows = Plan(**table["plan"]), table["rows"][:MAX_ROWS]
    return schemas.CountedTable(
        sql=plan.sql, columns=list(plan.columns), rows=rows, coverage=table["coverage"]
    )


def _describe_addition(addition: Addition) -> schemas.AdditionSummary:
    return schemas.AdditionSummary(
        versions=[_describe_version(version) for version in addition.versions],
        known=list(addition.known),
        unnoted=list(addition.unnoted),
        left_out=list(addition.skipped),
    )


def _describe_version(version: Version) -> schemas.VersionSummary:
    return schemas.VersionSummary(files=[portion.name for portion in version.portions], **flatten(version))
