"""Chat completions as OpenAI's API sends them: whole, or as a stream of chunks."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fastapi.sse import EventSourceResponse, format_sse_event

from memagent.errors import MemAgentError
from memagent.reading.sources import NEAREST
from memagent.server.errors import ApiError, api_error
from memagent.types import Usage

DONE = format_sse_event(data_str="[DONE]")


@dataclass(frozen=True, slots=True)
class Reply:
    """One chat completion, under the name that the client uses for the model."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        thoughts: int = 0,
        beside: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The completion in one piece; `thoughts` of its tokens are not part of the answer.

        `beside` holds further fields of its message.
        """
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        message |= beside or {}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
        return self._object("chat.completion", [choice]) | {"usage": format_usage(usage, thoughts)}

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """A piece of the stream; an empty `delta` only keeps the connection alive."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return format_event(self._object("chat.completion.chunk", [choice]))

    def usage(self, usage: Usage, thoughts: int = 0) -> bytes:
        """The last piece of a stream whose client asked for the usage."""
        return format_event(
            self._object("chat.completion.chunk", []) | {"usage": format_usage(usage, thoughts)}
        )

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def format_usage(usage: Usage, thoughts: int = 0) -> dict[str, Any]:
    """Format tokens as OpenAI's API does; those of memory updates count as reasoning."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }


def cite(text: str, statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Cite the sources of an answer at their places in it, as fields of a message.

    `annotations` are in OpenAI's own format, which clients parse; a place in a text is a URL as in RFC 5147.
    The title of a nearest passage says that it is one. `memagent` has all statements, including those without
    a source.
    """
    annotations, cited, place = list[Any](), list[Any](), 0
    for statement in statements:
        start = text.find(statement["text"], place)
        if start < 0:
            continue
        place = start + len(statement["text"])
        span, source = {"start_index": start, "end_index": place}, statement["source"]
        near = statement.get("nearest", ())  # not in earlier records
        cited.append({"text": statement["text"], **span, "source": source, "nearest": near})
        linked = [_link(source)] if source else [_link(it, f" ({NEAREST})") for it in near]
        annotations += [{"type": "url_citation", "url_citation": span | it} for it in linked]
    return {"annotations": annotations} | ({"memagent": {"statements": cited}} if cited else {})


def _link(source: Mapping[str, Any], kind: str = "") -> dict[str, str]:
    """A place in a text as a citation names it."""
    file, page = source["file"], source["page"]
    title = file if page is None else f"{file}, page {page}"
    return {"title": title + kind, "url": f"{quote(file)}#char={source['start']},{source['end']}"}


def format_event(data: Any, name: str | None = None, id: str | None = None) -> bytes:
    """Format a server-sent event with JSON data."""
    return format_sse_event(data_str=json.dumps(data, ensure_ascii=False), event=name, id=id)


async def stream(pieces: AsyncGenerator[bytes, None], idle: bytes, seconds: float) -> EventSourceResponse:
    """Reply with a stream of the pieces, and `idle` whenever none has come for `seconds`.

    A failure before the reply begins is raised; a later one is reported in the stream.
    """
    first = asyncio.ensure_future(anext(pieces))
    try:
        await asyncio.wait({first}, timeout=seconds)
        if first.done():
            first.result()
    except BaseException:
        await _end(pieces, first)
        raise
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return EventSourceResponse(_keep_alive(pieces, first, idle, seconds), headers=headers)


async def _keep_alive(
    pieces: AsyncGenerator[bytes, None], following: asyncio.Future[bytes], idle: bytes, seconds: float
) -> AsyncGenerator[bytes, None]:
    try:
        while True:
            if not following.done():
                await asyncio.wait({following}, timeout=seconds)
            if following.done():
                yield following.result()
                following = asyncio.ensure_future(anext(pieces))
            else:
                yield idle
    except StopAsyncIteration:
        return
    except ApiError as error:
        yield format_event(error.body)
    except MemAgentError as error:
        yield format_event(api_error(error).body)
    finally:
        await _end(pieces, following)


async def _end(pieces: AsyncGenerator[bytes, None], following: asyncio.Future[bytes]) -> None:
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await pieces.aclose()
