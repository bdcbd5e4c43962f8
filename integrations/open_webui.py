"""
title: memagent
author: The memagent authors
version: 0.1.0
license: Apache-2.0
description: Reads attached files of any length whole, chunk by chunk, and shows where the answer stands.
required_open_webui_version: 0.12.4
"""

# A pipe for Open WebUI: it becomes a model there, which hands the files of a chat to `memagent serve`.
# It leaves out knowledge collections, web pages and images: only files are read. (What stands above is
# read by Open WebUI, line by line.)

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx2
from pydantic import BaseModel, Field

Emit = Callable[[dict[str, Any]], Awaitable[None]]

_PATIENCE = httpx2.Timeout(60, write=600)  # the server sends something every 10 seconds


class Pipe:
    """The model `memagent` of Open WebUI."""

    class Valves(BaseModel):
        """What an administrator sets."""

        base_url: str = Field(
            default="http://host.docker.internal:8321/v1", description="where memagent serve listens"
        )
        api_key: str = Field(default="none", description="a key of the server's, if it has keys")
        cite: bool = Field(default=True, description="show where in the files the answer stands")

    def __init__(self) -> None:
        self.valves = self.Valves()

    async def pipe(
        self,
        body: dict[str, Any],
        __files__: Sequence[Mapping[str, Any]] | None = None,
        __metadata__: Mapping[str, Any] | None = None,
        __task__: str | None = None,
        __request__: Any = None,
        __event_emitter__: Emit | None = None,
    ) -> str:
        """The answer to a chat, with `[1]` behind what the first source says.

        Files are read whole. Open WebUI's own tasks, such as titles, go to the server without them.
        Raises `RuntimeError`, whose message Open WebUI shows, if there is no answer.
        """
        emit = __event_emitter__ or _ignore
        headers = {"Authorization": f"Bearer {self.valves.api_key}"}
        base_url = self.valves.base_url.rstrip("/") + "/"
        chat: dict[str, Any] = {"model": "memagent", "messages": body["messages"], "stream": True}
        try:
            async with (
                httpx2.AsyncClient(base_url=base_url, headers=headers, timeout=_PATIENCE) as server,
                AsyncExitStack() as uploads,
            ):
                if __files__ and not __task__:
                    asked = (__metadata__ or {}).get("base_user_prompt")
                    ids = [await _upload(item, server, uploads, __request__, emit) for item in __files__]
                    chat["messages"] = with_files(body["messages"], ids, asked)
                    chat["memagent"] = {"cite": self.valves.cite}
                answer, statements = await _read(server, chat, emit)
        except httpx2.ConnectError as error:
            raise RuntimeError(
                f"no server at {base_url}: start memagent serve, or correct the pipe's base_url"
            ) from error
        except httpx2.HTTPError as error:
            raise RuntimeError(f"the server at {base_url} broke off: {error!r}; ask again") from error
        return await _cite(answer, statements, emit)


def with_files(messages: Sequence[Mapping[str, Any]], ids: Sequence[str], asked: str | None) -> list[Any]:
    """The messages, of which the user's last one has the files and asks only what the user `asked`.

    Open WebUI has put passages around the question by then: these would be read as the question.
    """
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    content = asked or messages[last]["content"]
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    files = [{"type": "file", "file": {"file_id": item}} for item in ids]
    return [*messages[:last], {"role": "user", "content": [*files, *texts]}, *messages[last + 1 :]]


async def _ignore(event: dict[str, Any]) -> None:
    """Drop an event: calls of the API have nobody who watches."""


async def _upload(
    item: Mapping[str, Any], server: httpx2.AsyncClient, uploads: AsyncExitStack, request: Any, emit: Emit
) -> str:
    """Upload an attached file until `uploads` closes; returns its id on the server."""
    name = item.get("name") or "file"
    if item.get("type") != "file":
        raise RuntimeError(
            f"{name!r} is of type {item.get('type')!r}: only files are read, so attach it as a file"
        )
    await _tell(emit, f"Sending {name}")
    reply = await server.post(
        "files",
        data={"purpose": "user_data"},
        files={"file": (name, await _content(item["id"], name, request))},
    )
    _check(reply)
    file_id: str = reply.json()["id"]
    uploads.push_async_callback(server.delete, f"files/{file_id}")
    return file_id


async def _content(file_id: str, name: str, request: Any) -> bytes:
    """The bytes of a file, by Open WebUI's own API: it knows who may see what."""
    headers = {key: request.headers[key] for key in ("authorization", "cookie") if key in request.headers}
    inside = httpx2.ASGITransport(app=request.app)
    async with httpx2.AsyncClient(transport=inside, base_url="http://open-webui", headers=headers) as client:
        reply = await client.get(f"/api/v1/files/{file_id}/content")
    if reply.status_code != 200:
        raise RuntimeError(
            f"Open WebUI does not give out {name!r} (status {reply.status_code}): attach it again"
        )
    return reply.content


async def _read(
    server: httpx2.AsyncClient, chat: Mapping[str, Any], emit: Emit
) -> tuple[str, list[dict[str, Any]]]:
    """The answer to a chat with its statements; progress is told as it comes."""
    answer, statements, progress = "", list[dict[str, Any]](), ""
    async with server.stream("POST", "chat/completions", json=chat) as reply:
        if reply.status_code != 200:
            await reply.aread()
        _check(reply)
        async for event in _events(reply):
            if error := event.get("error"):
                raise RuntimeError(error["message"])
            for choice in event["choices"]:
                delta = choice["delta"]
                answer += delta.get("content") or ""
                statements += delta.get("memagent", {}).get("statements", [])
                thought = delta.get("reasoning_content") or ""
                if thought.startswith("Read chunk"):  # others are thoughts of the model's own
                    progress = thought.strip()
                    await _tell(emit, progress)
    if progress:
        await _tell(emit, progress, done=True)
    return answer, statements


async def _events(reply: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in reply.aiter_lines():
        if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
            yield json.loads(data)


def _check(reply: httpx2.Response) -> None:
    if not reply.is_success:
        try:
            message = reply.json()["error"]["message"]
        except (ValueError, LookupError, TypeError):
            message = reply.text[:200]
        raise RuntimeError(f"memagent serve replied with status {reply.status_code}: {message}")


async def _cite(answer: str, statements: Sequence[Mapping[str, Any]], emit: Emit) -> str:
    """Send each source as a citation; returns the answer with their numbers, which Open WebUI links."""
    numbers: dict[str, int] = {}
    cited, position = "", 0
    for statement in statements:
        exact_source = statement["source"]
        for source in [exact_source] if exact_source else statement.get("nearest", ()):
            kind = "" if exact_source else " (nearest passage, other words)"
            span = f"{source['file']}#char={source['start']},{source['end']}{kind}"
            if span not in numbers:
                numbers[span] = len(numbers) + 1
                await emit({"type": "source", "data": _source(source, span, kind)})
            cited += f"{answer[position : statement['end_index']]} [{numbers[span]}]"
            position = statement["end_index"]
    return cited + answer[position:]


def _source(source: Mapping[str, Any], span: str, kind: str) -> dict[str, Any]:
    page = source.get("page")
    name = (source["file"] if page is None else f"{source['file']}, page {page}") + kind
    return {
        "source": {"name": name},
        "document": [source["excerpt"]],
        "metadata": [{"source": span, "name": name}],
    }


async def _tell(emit: Emit, line: str, done: bool = False) -> None:
    await emit({"type": "status", "data": {"description": line, "done": done}})
