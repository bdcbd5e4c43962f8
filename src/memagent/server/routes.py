"""/v1/files, in the format of OpenAI's API, and /v1/reads: reads that continue without their client."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Header, Query, Request, UploadFile
from fastapi.responses import FileResponse, Response
from pydantic import StringConstraints

from memagent.concurrency import in_thread
from memagent.notebooks.additions import check_memory
from memagent.server.bodies import ParsingRoute
from memagent.server.database import Job, StoredFile
from memagent.server.documents import Content, clean_name, encode_text
from memagent.server.errors import ApiError, not_found
from memagent.server.events import Event, read_whole_lines, respond_with, stream
from memagent.server.jobs import Jobs
from memagent.server.limits import Limits
from memagent.server.schemas import ReadRequest, Text

_MAX_EVENTS = 10**12

files = APIRouter(prefix="/v1/files", tags=["files"])
reads = APIRouter(prefix="/v1/reads", tags=["reads"], route_class=ParsingRoute)


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, and to what server."""

    owner: str
    jobs: Jobs
    limits: Limits


async def _find_client(request: Request) -> Client:
    return Client(request.state.owner, request.app.state.jobs, request.app.state.limits)


_Client = Annotated[Client, Depends(_find_client)]
_Id = Annotated[str, StringConstraints(max_length=200)]
_Limit = Annotated[int, Query(ge=1, le=10_000)]
_FewerLimit = Annotated[int, Query(ge=1, le=1000)]
_Order = Literal["asc", "desc"]


async def _find_file(id: _Id, client: _Client) -> StoredFile:
    return await to_thread(client.jobs.store.file, client.owner, id)


async def _find_read(id: _Id, client: _Client) -> Job:
    job = await to_thread(client.jobs.store.read, client.owner, id)
    if job is None:
        raise not_found("read", id)
    return job


_File = Annotated[StoredFile, Depends(_find_file)]
_Read = Annotated[Job, Depends(_find_read)]


@files.post("")
async def add_file(
    client: _Client, file: UploadFile, purpose: Annotated[Text, Form(max_length=100)] = "user_data"
) -> dict[str, Any]:
    """Store a file, for use in chats and reads."""
    await to_thread(client.jobs.store.check_room, client.owner, client.limits.stored_bytes)
    owner, name, add = client.owner, clean_name(file.filename), client.jobs.store.add_file
    return _describe_file(await to_thread(add, owner, name, purpose, file.file))


@files.get("")
async def list_files(
    client: _Client, limit: _Limit = 10_000, after: _Id | None = None, order: _Order = "desc"
) -> dict[str, Any]:
    """The files, newest first."""
    behind = (await _find_file(after, client)).number if after else None
    page = await to_thread(client.jobs.store.files, client.owner, limit + 1, behind, order == "asc")
    return _make_page([_describe_file(file) for file in page], limit)


@files.get("/{id}")
async def get_file(file: _File) -> dict[str, Any]:
    """The metadata of a file."""
    return _describe_file(file)


@files.get("/{id}/content", response_class=FileResponse)
async def get_content(file: _File, client: _Client) -> FileResponse:
    """The bytes of a file."""
    return FileResponse(
        client.jobs.store.path_of(file),
        media_type="application/octet-stream",  # no browser should render an upload
        filename=file.name,
        headers={"X-Content-Type-Options": "nosniff"},
    )


@files.delete("/{id}")
async def delete_file(id: _Id, client: _Client) -> dict[str, Any]:
    """Delete a file; reads that use it continue."""
    await to_thread(client.jobs.store.delete_file, client.owner, id)
    return {"id": id, "object": "file", "deleted": True}


@reads.post("", status_code=201)
async def start_read(body: ReadRequest, client: _Client) -> dict[str, Any]:
    """Start a read, which continues whether its client stays or not."""
    documents = await to_thread(_check, client, body)
    options = body.model_dump(exclude={"problem", "document", "files", "memory"}, exclude_none=True)
    request = {"problem": body.problem, "memory": body.memory, "options": options}
    return _describe_read(await client.jobs.begin(client.owner, None, request, documents), client.jobs)


@reads.get("")
async def list_reads(
    client: _Client, limit: _FewerLimit = 20, after: _Id | None = None, order: _Order = "desc"
) -> dict[str, Any]:
    """The reads, newest first, without their results."""
    behind = (await _find_read(after, client)).number if after else None
    page = await to_thread(client.jobs.store.reads, client.owner, limit + 1, behind, order == "asc")
    return _make_page([_describe_briefly(job) for job in page], limit)


@reads.get("/{id}")
async def get_read(job: _Read, client: _Client) -> dict[str, Any]:
    """The progress of a read, its memory, and its answer once it is done."""
    return _describe_read(job, client.jobs)


@reads.post("/{id}/cancel")
async def cancel_read(job: _Read, client: _Client) -> dict[str, Any]:
    """End a read; what it has read so far is kept."""
    await client.jobs.cancel(job)
    return _describe_read(await _find_read(job.id, client), client.jobs)


@reads.post("/{id}/resume")
async def resume_read(job: _Read, client: _Client) -> dict[str, Any]:
    """Continue a read that failed or was cancelled, from where it stopped."""
    if not await client.jobs.resume(job):
        raise ApiError(409, f"{job.id} is {job.state}: there is nothing to resume", "not_resumable", "id")
    return _describe_read(await _find_read(job.id, client), client.jobs)


@reads.delete("/{id}")
async def delete_read(job: _Read, client: _Client) -> dict[str, Any]:
    """End a read if it has not ended, and delete it with its document and its journal."""
    await client.jobs.cancel(job)
    await to_thread(client.jobs.store.delete_read, job.id)
    return {"id": job.id, "object": "read.deleted", "deleted": True}


@reads.get("/{id}/result")
async def get_result(job: _Read) -> dict[str, Any]:
    """The result of a read; status 409 while there is none."""
    if job.state != "done":
        message = job.outcome.get("error", {}).get("message", "wait for its end, or listen to its events")
        raise ApiError(409, f"{job.id} is {job.state}: {message}", "no_result", "id")
    result: dict[str, Any] = job.outcome["result"]
    return result


def _content(kind: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {kind: {"schema": {"type": "string"}}}}}


@reads.get("/{id}/events", response_class=Response, responses=_content("text/event-stream"))
async def get_events(
    job: _Read,
    client: _Client,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    after: Annotated[int, Query(ge=0, le=_MAX_EVENTS)] = 0,
) -> Response:
    """Server-sent events: each `conversation` with its number as id, `progress`, and the `end`."""
    if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
        after = int(last_event_id)

    async def format_all() -> AsyncGenerator[bytes, None]:
        async with aclosing(client.jobs.events(job, after)) as events:
            async for event in events:
                yield event.format()

    def idle() -> bytes:
        return Event("progress", client.jobs.progress(job) or {"state": "queued"}).format()

    return await stream(format_all(), idle, client.limits.keep_alive_seconds)


@reads.get("/{id}/journal", response_class=Response, responses=_content("application/x-ndjson"))
async def get_journal(job: _Read, client: _Client) -> Response:
    """The journal of a read so far, for the page and for `memagent show`."""
    lines = in_thread(read_whole_lines(client.jobs.store.journal_of(job)))
    try:
        reply = await respond_with(lines, "application/x-ndjson")
    except FileNotFoundError as error:
        raise ApiError(409, f"{job.id} has not begun: wait for it", "no_journal", "id") from error
    reply.headers["Content-Disposition"] = f'attachment; filename="{job.id}.jsonl"'
    return reply


@reads.get("/{id}/text", response_class=Response, responses=_content("text/plain"))
async def get_text(request: Request, job: _Read, client: _Client) -> Response:
    """The text of all documents of a read, which the spans of conversations refer to."""
    await request.body()  # lets the gate notice a disconnect: a conversion may take minutes
    document = await to_thread(client.jobs.store.document_of, job)
    return await respond_with(encode_text(document), "text/plain; charset=utf-8")


def _check(client: Client, body: ReadRequest) -> list[tuple[str, Content]]:
    """Check that a read may begin, and return its documents. Raises `ApiError`, `SettingsError`."""
    jobs, most = client.jobs, client.limits.reads
    settings = body.over(jobs.settings)
    documents: list[tuple[str, Content]] = []
    if body.document is not None:
        documents.append(("document", body.document))
    for name in body.files:
        documents += jobs.store.contents(client.owner, name)
    if not documents:
        raise ApiError(400, "there is nothing to read: give a document, or files", "no_document", "document")
    if not body.problem.strip():
        raise ApiError(400, "the problem is empty: ask a question", "no_problem", "problem")
    if body.memory:
        check_memory(body.memory, settings, jobs.engine.model)
    if jobs.store.count_unfinished(client.owner) >= most:
        wait = {"Retry-After": "60"}
        raise ApiError(429, f"{most} reads are unfinished already", "too_many_reads", headers=wait)
    jobs.store.check_room(client.owner, client.limits.stored_bytes)
    return documents


def _make_page(items: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Make a page of a list; `items` has one more than `limit` if there is another page."""
    page = items[:limit]
    ids = [item["id"] for item in page] or [None]
    ends = {"first_id": ids[0], "last_id": ids[-1]}
    return {"object": "list", "data": page, "has_more": len(items) > limit, **ends}


def _describe_file(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def _describe_briefly(job: Job) -> dict[str, Any]:
    return {
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


def _describe_read(job: Job, jobs: Jobs) -> dict[str, Any]:
    return _describe_briefly(job) | {
        **jobs.describe_workflow(job),
        "progress": jobs.last_progress(job),
        "error": job.outcome.get("error"),
        "result": job.outcome.get("result"),
    }
