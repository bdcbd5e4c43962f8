"""Tools for assistants that use the Model Context Protocol: reads of long documents, and notebooks.

Reads are the server's jobs: each is kept in the store and its journal, so that it survives a restart, and
what was asked before is not paid for again. The protocol's Tasks are left out, as the SDK lacks them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import getdoc
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from memagent import __version__
from memagent.concurrency import drain
from memagent.documents.opening import Document
from memagent.errors import MemAgentError, SettingsError
from memagent.notebooks import Notebook, Notebooks, note_document
from memagent.reading.progress import Progress
from memagent.server.bodies import ReadOptions
from memagent.server.errors import ApiError
from memagent.server.folders import Folders
from memagent.server.gate import Gate
from memagent.server.jobs import Jobs
from memagent.server.limits import Keys, Limits
from memagent.server.listening import server_of
from memagent.server.metrics import Metrics
from memagent.server.store import UNFINISHED, Job, Store
from memagent.server.told import (
    ToldAddition,
    ToldAnswer,
    ToldFromNotebook,
    ToldNotebook,
    ToldRead,
    ToldVersion,
    told_answer,
    told_read,
    told_version,
)
from memagent.settings import ReadSettings
from memagent.types import Engine

OWNER = "mcp"
_MOST_KEPT = 500
_FAR = 10**12

Question = Annotated[str, Field(description="the question, or what to look for")]
Paths = Annotated[list[str], Field(description="files or folders, absolute or within the open folders")]
Screen = Annotated[
    bool | None,
    Field(
        description="true skips parts that share no distinctive word with the question, which is faster: "
        "for questions that name what they look for, never for questions about the whole"
    ),
]
Id = Annotated[str, Field(description="the id that start_read returned", max_length=100)]
Name = Annotated[str, Field(description="the notebook's name")]


@dataclass(frozen=True, slots=True)
class Desk:
    """What the tools work with."""

    engine: Engine
    settings: ReadSettings
    store: Store
    jobs: Jobs
    folders: Folders
    notebooks: Notebooks
    beat_seconds: float = 5.0
    """How often a waiting client is told that the work continues."""
    waiting: Counter[str] = field(default_factory=Counter)
    """How many clients want each read, by its id."""
    beginning: Lock = field(default_factory=Lock)
    """Held from the search for a read until there is one: the same is not begun twice."""


@dataclass(frozen=True, slots=True)
class Places:
    """What may be read, and where reads (in the first free folder of `data`) and notebooks are kept."""

    folders: Folders
    data: Sequence[Path]
    notebooks: Path | None


async def serve(
    engine: Engine, settings: ReadSettings, places: Places, listener: socket.socket | None, keys: Keys
) -> None:
    """Serve until the client leaves: over streamable HTTP on a socket, or over standard input and output.

    Raises `SettingsError` for folders that cannot be used.
    """
    limits, metrics = Limits(), Metrics()
    notebooks = await asyncio.to_thread(Notebooks, places.notebooks)
    with _free_store(places.data) as store:
        jobs = Jobs(engine, settings, store, metrics, engine.model.calls)
        server = create_mcp(Desk(engine, settings, store, jobs, places.folders, notebooks))
        jobs.start()
        try:
            if listener is None:
                await server.run_stdio_async()
            else:
                app = server.streamable_http_app(host=listener.getsockname()[0])
                app.add_middleware(Gate, keys=keys, limits=limits, metrics=metrics)
                await server_of(app, limits).serve(sockets=[listener])
        finally:
            await jobs.stop()


def _free_store(folders: Sequence[Path]) -> Store:
    for folder in folders[:-1]:
        with suppress(SettingsError):
            return Store(folder)
    return Store(folders[-1])


def create_mcp(desk: Desk) -> MCPServer[Any]:
    """The server with its tools; the caller starts and stops `desk.jobs` around it."""
    server: MCPServer[Any] = MCPServer(
        "memagent",
        version=__version__,
        log_level="WARNING",
        instructions=(
            "Reads documents of any length with a model of its own, chunk by chunk, and names the place "
            f"behind each statement of its answer. Open folders: {desk.folders}. For more than a few pages "
            "call start_read, then read_status until it is done, then read_result. Notebooks are memories "
            "that live on."
        ),
    )
    tool = partial(_tool, server)
    _add_reads(tool, desk)
    _add_notebooks(tool, desk)
    return server


def _tool(server: MCPServer[Any], function: Callable[..., Awaitable[Any]]) -> None:
    """Add a tool to the server. Its expected errors reach the client as they are."""

    @wraps(function)
    async def tool(*arguments: Any, **values: Any) -> Any:
        try:
            return await function(*arguments, **values)
        except (MemAgentError, ApiError) as error:
            raise ToolError(error.message if isinstance(error, ApiError) else str(error)) from error

    server.add_tool(tool, description=getdoc(function))  # without the indentation


def _add_reads(tool: Callable[..., None], desk: Desk) -> None:
    @tool
    async def ask(question: Question, paths: Paths, ctx: Context, screen: Screen = None) -> ToldAnswer:
        """Read files to answer a question, and wait for the answer. For more than a few pages use start_read.

        If the call is cut off, ask the same question again: it continues where it stopped.
        """
        job = await asyncio.to_thread(_begun, desk, question, paths, screen)
        desk.jobs.wake()
        desk.waiting[job.id] += 1
        try:
            await _watch(desk, job, ctx)
        except asyncio.CancelledError:
            if desk.waiting[job.id] == 1:  # do not pay for what nobody sees
                await asyncio.shield(asyncio.ensure_future(desk.jobs.cancel(job)))
            raise
        finally:
            desk.waiting[job.id] -= 1
        return told_answer(await asyncio.to_thread(_found, desk, job.id))

    @tool
    async def start_read(question: Question, paths: Paths, screen: Screen = None) -> ToldRead:
        """Start reading files to answer a question, and return at once; read_status tells how far it has got.

        Asking the same question about the same files continues the earlier read, or returns its result.
        """
        job = await asyncio.to_thread(_begun, desk, question, paths, screen)
        desk.jobs.wake()
        desk.waiting[job.id] += 1  # whoever started it may ask for it at any time
        return told_read(job, desk.jobs)

    @tool
    async def read_status(id: Id) -> ToldRead:
        """Tell how far a read has got, with its memory so far."""
        return told_read(await asyncio.to_thread(_found, desk, id), desk.jobs)

    @tool
    async def read_result(id: Id) -> ToldAnswer:
        """Return the answer of a read that is done, with its sources."""
        return told_answer(await asyncio.to_thread(_found, desk, id))

    @tool
    async def cancel_read(id: Id) -> ToldRead:
        """Stop a read; what it has read is kept, and start_read continues it."""
        await desk.jobs.cancel(await asyncio.to_thread(_found, desk, id))
        return told_read(await asyncio.to_thread(_found, desk, id), desk.jobs)


def _add_notebooks(tool: Callable[..., None], desk: Desk) -> None:
    def notebook(name: str) -> Notebook:
        return Notebook(name, desk.notebooks)

    @tool
    async def notes_list() -> list[ToldNotebook]:
        """List the notebooks: memories that live on between documents."""
        entries = await asyncio.to_thread(desk.notebooks.entries)
        return [ToldNotebook(name=it.name, about=it.about, version=it.current) for it in entries]

    @tool
    async def notes_new(
        name: Name, about: Annotated[str, Field(description="what it should keep of what it reads")]
    ) -> ToldNotebook:
        """Create a notebook."""
        entry = await asyncio.to_thread(desk.notebooks.add, name, about)
        return ToldNotebook(name=entry.name, about=entry.about, version=0)

    @tool
    async def notes_add(
        name: Name,
        ctx: Context,
        paths: Paths | None = None,
        text: Annotated[str | None, Field(description="a note, instead of paths")] = None,
    ) -> ToldAddition:
        """Read a note, or what is new in files, into a notebook. If the call is cut off, repeat it."""
        if (paths is None) == (text is None):
            raise SettingsError("what should be read? give either paths or a text")
        if text is not None:
            document = note_document(text)
        else:
            document = await asyncio.to_thread(desk.folders.open, paths or ())
        return await _added(desk, await asyncio.to_thread(notebook, name), document, ctx)

    @tool
    async def notes_ask(name: Name, question: Question) -> ToldFromNotebook:
        """Answer a question from a notebook's memory alone."""
        found = await asyncio.to_thread(notebook, name)
        told = await found.ask(question, desk.engine, desk.settings.changed(cite=True))
        said = told.remembered
        return ToldFromNotebook(answer=said.answer, version=told.version, statements=list(said.statements))

    @tool
    async def notes_log(name: Name) -> list[ToldVersion]:
        """List the versions of a notebook with their memories, the newest last."""
        return [told_version(it) for it in await asyncio.to_thread(lambda: notebook(name).lineage())]


async def _added(desk: Desk, notebook: Notebook, document: Document, ctx: Context) -> ToldAddition:
    addition = notebook.add(document, desk.engine, desk.settings, waiting=lambda: None)
    async with _beating(lambda: addition.progress, ctx, desk):
        await drain(aiter(addition))
    return ToldAddition(
        versions=[told_version(it) for it in addition.versions],
        known=list(addition.known),
        unnoted=list(addition.unnoted),
        left_out=list(addition.skipped),
    )


def _begun(desk: Desk, question: str, paths: Sequence[str], screen: bool | None) -> Job:
    """The read for a question on files: the existing one, or a new one."""
    if not question.strip():
        raise SettingsError("the question is empty: ask one")
    document = desk.folders.open(paths)
    asked = ReadOptions(cite=True, screen=screen)
    settings, options = asked.over(desk.settings), asked.model_dump(exclude_none=True)
    key = _key(desk, settings, question, document)
    request = {"problem": question, "memory": "", "options": options, "key": key}
    request["fingerprint"] = document.fingerprint
    told = {"unnamed": not any(it.named for it in document.sources), "left_out": document.skipped}
    files = [(it.name, it.origin) for it in document.sources if isinstance(it.origin, Path)]
    documents = [(name, Path(os.path.realpath(path))) for name, path in files]
    with desk.beginning:
        jobs = desk.store.reads(OWNER, 2 * _MOST_KEPT, None, ascending=False)
        if job := next((it for it in jobs if it.request.get("key") == key), None):
            desk.store.requeue(job.id)  # if it failed, or was cancelled
            return _found(desk, job.id)
        for old in jobs[_MOST_KEPT:]:
            if old.state not in UNFINISHED:
                desk.store.delete_read(old.id)
        return desk.store.add_read(OWNER, request | told, documents)


def _key(desk: Desk, settings: ReadSettings, question: str, document: Document) -> str:
    """A key, equal for the same question on the same files, read in the same way."""
    names = [source.name for source in document.sources]
    how = [desk.engine.model.name, settings.model_dump(mode="json"), __version__]
    told = [question, document.fingerprint, names, *how]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _found(desk: Desk, id: str) -> Job:
    job = desk.store.read(OWNER, id)
    if job is None:
        raise SettingsError(f"there is no read {id!r}: start one with start_read")
    return job


async def _watch(desk: Desk, job: Job, ctx: Context) -> None:
    """Report a read's progress until it ends."""

    def now() -> Progress:
        return desk.jobs.progress(job) or Progress()

    events = desk.jobs.events(job, _FAR, desk.beat_seconds)
    async with _beating(now, ctx, desk), aclosing(events):
        async for event in events:
            if event.name == "end":
                return


@asynccontextmanager
async def _beating(now: Callable[[], Progress], ctx: Context, desk: Desk) -> AsyncIterator[None]:
    """Keep telling the client that the work continues."""
    beat = asyncio.create_task(_beat(now, ctx, desk.beat_seconds))
    try:
        yield
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)


async def _beat(now: Callable[[], Progress], ctx: Context, seconds: float) -> None:
    """Tell the client every few seconds that the work continues: many give up after a minute of silence."""
    value = 0.0
    while True:
        progress = now()
        value = max(value + 0.001, float(progress.chunks))  # it must grow
        total = progress.chunks_in_all
        place = f"chunk {progress.chunks}" + (f" of about {total}" if total else "")
        await ctx.report_progress(value, float(total) if total else None, place)
        await asyncio.sleep(seconds)
