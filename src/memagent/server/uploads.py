"""/v1/files, in the format of OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request, UploadFile
from fastapi.responses import FileResponse
from pydantic import StringConstraints

from memagent.server.errors import ApiError
from memagent.server.limits import Limits
from memagent.server.records import StoredFile, clean_name
from memagent.server.schemas import Text
from memagent.server.store import Store

Limit = Annotated[int, Query(ge=1, le=10_000)]
Order = Literal["asc", "desc"]
Id = Annotated[str, StringConstraints(max_length=200)]


def files_router(store: Store, limits: Limits) -> APIRouter:
    """The routes of /v1/files."""
    router = APIRouter(prefix="/v1/files", tags=["files"])

    async def find(request: Request, id: str) -> StoredFile:
        return await asyncio.to_thread(store.file, request.state.owner, id)

    @router.post("")
    async def add_file(
        request: Request, file: UploadFile, purpose: Annotated[Text, Form(max_length=100)] = "user_data"
    ) -> dict[str, Any]:
        """Store a file, for use in chats and reads."""
        owner, name = request.state.owner, clean_name(file.filename)
        await asyncio.to_thread(check_room, store, limits, owner)
        return describe_file(await asyncio.to_thread(store.add_file, owner, name, purpose, file.file))

    @router.get("")
    async def list_files(
        request: Request, limit: Limit = 10_000, after: Id | None = None, order: Order = "desc"
    ) -> dict[str, Any]:
        """The files, newest first."""
        behind = (await find(request, after)).number if after else None
        page = await asyncio.to_thread(store.files, request.state.owner, limit + 1, behind, order == "asc")
        return make_page([describe_file(file) for file in page], limit)

    @router.get("/{id}")
    async def get_file(request: Request, id: Id) -> dict[str, Any]:
        """The metadata of a file."""
        return describe_file(await find(request, id))

    @router.get("/{id}/content", response_class=FileResponse)
    async def get_content(request: Request, id: Id) -> FileResponse:
        """The bytes of a file."""
        file = await find(request, id)
        return FileResponse(
            store.path_of(file),
            media_type="application/octet-stream",  # no browser should render an upload
            filename=file.name,
            headers={"X-Content-Type-Options": "nosniff"},
        )

    @router.delete("/{id}")
    async def delete_file(request: Request, id: Id) -> dict[str, Any]:
        """Delete a file; reads that use it continue."""
        await asyncio.to_thread(store.delete_file, request.state.owner, id)
        return {"id": id, "object": "file", "deleted": True}

    return router


def check_room(store: Store, limits: Limits, owner: str) -> None:
    """Raise `ApiError` if an owner has used up the space on the disk. Blocks."""
    if store.stored_bytes(owner) >= limits.stored_bytes:
        raise ApiError(
            429,
            f"files and reads have reached the limit of {limits.stored_bytes:,} bytes: delete some",
            "storage_full",
        )


def make_page(items: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Make a page of a list; `items` has one more than `limit` if there is another page."""
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "has_more": len(items) > limit,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def describe_file(file: StoredFile) -> dict[str, Any]:
    """Describe a file as its client sees it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }
