"""/v1/reads: reads that continue without their client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from memagent.concurrency import in_thread
from memagent.documents.opening import Document
from memagent.documents.tokens import fewest_tokens
from memagent.errors import DocumentError
from memagent.notebooks.additions import check_memory
from memagent.server.errors import ApiError, not_found
from memagent.server.jobs import Jobs
from memagent.server.limits import Limits
from memagent.server.records import Content, Job
from memagent.server.schemas import ReadRequest
from memagent.server.store import Store
from memagent.server.stream import format_event, stream
from memagent.server.uploads import Id, Limit, Order, check_room, make_page
from memagent.types import ESTIMATE

_MAX_EVENTS = 10**12


def _content(kind: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {kind: {"schema": {"type": "string"}}}}}


def reads_router(store: Store, jobs: Jobs, limits: Limits) -> APIRouter:
    """The routes of /v1/reads."""
    router = APIRouter(prefix="/v1/reads", tags=["reads"])
    _add_steering(router, store, jobs, limits)
    _add_outcomes(router, store, jobs, limits.keep_alive_seconds)
    return router


async def _find(store: Store, request: Request, id: str) -> Job:
    job = await asyncio.to_thread(store.read, request.state.owner, id)
    if job is None:
        raise not_found("read", id)
    return job


def _add_steering(router: APIRouter, store: Store, jobs: Jobs, limits: Limits) -> None:
    """Routes that begin, list and end reads."""
    find = partial(_find, store)

    @router.post("", status_code=201)
    async def start_read(request: Request, body: ReadRequest) -> dict[str, Any]:
        """Start a read, which continues whether its client stays or not."""
        owner = request.state.owner
        documents = await asyncio.to_thread(_check, store, limits, owner, body, jobs)
        options = body.model_dump(exclude={"problem", "document", "files", "memory"}, exclude_none=True)
        asked = {"problem": body.problem, "memory": body.memory, "options": options}
        return describe_read(await jobs.begin(owner, None, asked, documents), jobs)

    @router.get("")
    async def list_reads(
        request: Request, limit: Limit = 20, after: Id | None = None, order: Order = "desc"
    ) -> dict[str, Any]:
        """The reads, newest first, without their results."""
        behind = (await find(request, after)).number if after else None
        page = await asyncio.to_thread(store.reads, request.state.owner, limit + 1, behind, order == "asc")
        return make_page([describe_read(job, jobs, brief=True) for job in page], limit)

    @router.get("/{id}")
    async def get_read(request: Request, id: Id) -> dict[str, Any]:
        """The progress of a read, its memory, and its answer once it is done."""
        return describe_read(await find(request, id), jobs)

    @router.post("/{id}/cancel")
    async def cancel_read(request: Request, id: Id) -> dict[str, Any]:
        """End a read; what it has read so far is kept."""
        await jobs.cancel(await find(request, id))
        return describe_read(await find(request, id), jobs)

    @router.post("/{id}/resume")
    async def resume_read(request: Request, id: Id) -> dict[str, Any]:
        """Continue a read that failed or was cancelled, from where it stopped."""
        job = await find(request, id)
        if not await jobs.resume(job):
            raise ApiError(409, f"{id} is {job.state}: there is nothing to resume", "not_resumable", "id")
        return describe_read(await find(request, id), jobs)

    @router.delete("/{id}")
    async def delete_read(request: Request, id: Id) -> dict[str, Any]:
        """End a read if it has not ended, and delete it with its document and its journal."""
        await jobs.cancel(await find(request, id))
        await asyncio.to_thread(store.delete_read, id)
        return {"id": id, "object": "read.deleted", "deleted": True}


def _add_outcomes(router: APIRouter, store: Store, jobs: Jobs, keep_alive_seconds: float) -> None:
    """Routes for the outcome of a read, and for what it has recorded so far."""
    find = partial(_find, store)

    @router.get("/{id}/result")
    async def get_result(request: Request, id: Id) -> dict[str, Any]:
        """The result of a read; status 409 while there is none."""
        job = await find(request, id)
        if job.state != "done":
            said = job.outcome.get("error", {}).get("message", "wait for its end, or listen to its events")
            raise ApiError(409, f"{id} is {job.state}: {said}", "no_result", "id")
        result: dict[str, Any] = job.outcome["result"]
        return result

    @router.get("/{id}/events", response_class=Response, responses=_content("text/event-stream"))
    async def get_events(
        request: Request,
        id: Id,
        last_event_id: Annotated[str | None, Header(max_length=20)] = None,
        after: Annotated[int, Query(ge=0, le=_MAX_EVENTS)] = 0,
    ) -> Response:
        """Server-sent events: each `conversation` with its number as id, `progress`, and the `end`."""
        job = await find(request, id)
        if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
            after = int(last_event_id)

        async def format_all() -> AsyncGenerator[bytes, None]:
            async with aclosing(jobs.events(job, after, keep_alive_seconds)) as events:
                async for it in events:
                    yield format_event(it.body, it.name, None if it.number is None else str(it.number))

        idle = format_event({"state": "queued"}, "progress")
        return await stream(format_all(), idle, keep_alive_seconds + 1)

    @router.get("/{id}/journal", response_class=Response, responses=_content("application/x-ndjson"))
    async def get_journal(request: Request, id: Id) -> Response:
        """The journal of a read so far, for the page and for `memagent show`."""
        path = store.journal_of(await find(request, id))
        try:
            reply = await _reply_with(in_thread(_read_whole_lines(path)), "application/x-ndjson")
        except FileNotFoundError as error:
            raise ApiError(409, f"{id} has not begun: wait for it", "no_journal", "id") from error
        reply.headers["Content-Disposition"] = f'attachment; filename="{id}.jsonl"'
        return reply

    @router.get("/{id}/text", response_class=Response, responses=_content("text/plain"))
    async def get_text(request: Request, id: Id) -> Response:
        """The text of all documents of a read, which the spans of conversations refer to."""
        await request.body()  # lets the gate notice a disconnect: a conversion may take minutes
        document = await asyncio.to_thread(store.document_of, await find(request, id))
        return await _reply_with(_encode_text(document), "text/plain; charset=utf-8")


async def _reply_with(pieces: AsyncGenerator[bytes, None], kind: str) -> StreamingResponse:
    """Reply with a stream of the pieces. A failure before the first is raised, so that it gets a status."""
    first = await anext(pieces, b"")

    async def whole() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return StreamingResponse(whole(), media_type=kind)


def _read_whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines that a file has now; it may grow meanwhile. Blocks. Raises `OSError`."""
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        for line in file:
            left -= len(line)
            if left < 0 or not line.endswith(b"\n"):
                return
            yield line


async def _encode_text(document: Document) -> AsyncGenerator[bytes, None]:
    """Yield the text, which ends with the reason where a later file cannot be read: a read ends there too."""
    begun = False
    with closing(document.blocks()) as blocks:
        try:
            async for block in in_thread(blocks, blocks.may_convert):
                yield block.text.encode("utf-8", "replace")
                begun = True
        except DocumentError as error:
            if not begun:
                raise
            yield f"\n\n[The text ends here: {error}]\n".encode("utf-8", "replace")


def _check(
    store: Store, limits: Limits, owner: str, body: ReadRequest, jobs: Jobs
) -> list[tuple[str, Content]]:
    """Check that a read may begin, and return its documents. Raises `ApiError`, `SettingsError`."""
    settings = body.over(jobs.settings)
    documents: list[tuple[str, Content]] = []
    if body.document is not None:
        documents.append(("document", body.document))
    for name in body.files:
        documents += store.contents(owner, name)
    if not documents:
        raise ApiError(400, "there is nothing to read: give a document, or files", "no_document", "document")
    if not body.problem.strip():
        raise ApiError(400, "the problem is empty: ask a question", "no_problem", "problem")
    if body.memory:
        model = jobs.engine.model
        # An estimate must not refuse what might fit.
        fewest = fewest_tokens if model.tokenizer == ESTIMATE else None
        check_memory(body.memory, settings, model, fewest)
    if store.unfinished(owner) >= limits.reads:
        raise ApiError(
            429,
            f"{limits.reads} reads are unfinished already",
            "too_many_reads",
            headers={"Retry-After": "60"},
        )
    check_room(store, limits, owner)
    return documents


def describe_read(job: Job, jobs: Jobs, brief: bool = False) -> dict[str, Any]:
    """Describe a read as its client sees it."""
    described: dict[str, Any] = {
        "id": job.id,
        "object": "read",
        "state": job.state,
        "created_at": int(job.created),
        "started_at": job.started and int(job.started),
        "ended_at": job.ended and int(job.ended),
        "problem": job.request["problem"],
        "documents": [name for _, name in job.request["documents"]],
        "options": job.request["options"],
    }
    if brief:
        return described
    return described | {
        "workflow": jobs.workflow(job),
        "progress": jobs.last_progress(job),
        "error": job.outcome.get("error"),
        "result": job.outcome.get("result"),
    }
