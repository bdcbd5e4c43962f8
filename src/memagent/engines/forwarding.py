"""Pass a chat completion through: forward its body to the endpoint, and stream back the reply's bytes.

It is judged on its way, but never changed: `replies.py` and `event_streams.py` say what is an answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from memagent.engines.endpoint import Endpoint
from memagent.engines.event_streams import judge
from memagent.engines.refusals import (
    HttpReply,
    Refusal,
    RefusedError,
    TransientError,
    error_of,
    is_page,
    read_refusal,
)
from memagent.engines.replies import (
    Said,
    about_a_page,
    check_read_whole,
    collect_texts,
    parse_json,
    read_usage,
)
from memagent.errors import EngineError

_MAX_REPLY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A reply as it arrives: its media type and its bytes; those of a stream are split only after events."""

    media_type: str
    pieces: AsyncIterator[bytes]


@runtime_checkable
class Forwards(Protocol):
    """An engine that can pass requests through."""

    def forward(self, body: Mapping[str, Any]) -> AbstractAsyncContextManager[Forwarded]:
        """Post a chat completion, streamed or not.

        What is not streamed comes in one piece, once it is known that it is no error and not empty, and that
        the endpoint read the whole prompt. A stream comes from its first word on. Until then, a reply that
        cannot be used is tried again; a refusal is not, since the client may do so.

        Raises `ContextOverflowError`, `RefusedError`, or `EngineError` where there was no usable reply; its
        pieces raise `EngineError` if they end before the reply does.
        """


async def begin(endpoint: Endpoint, body: Mapping[str, Any], open: AsyncExitStack) -> Forwarded:
    """Post a body once, and give the reply from its first word on; `open` holds the connection.

    Raises `TransientError` for what may be tried again, else as `Forwards.forward`.
    """
    seconds = endpoint.connection.timeout_seconds
    reply = await open.enter_async_context(
        endpoint.stream("chat/completions", json.dumps(body).encode(), seconds)
    )
    streams = bool(body.get("stream"))
    asked = "event-stream" if streams else "json"
    accepted = reply.status < 300 and asked in (reply.media_type or asked)
    if accepted and streams:
        events = await open.enter_async_context(aclosing(judge(reply.pieces)))
        try:
            first = await anext(events)
        except RefusedError as error:
            raise _explain_refusal(error.refusal, endpoint, reply.status) from error
        return Forwarded(reply.media_type, _pass_on(first, events, endpoint))
    whole = await reply.read(_MAX_REPLY_BYTES)
    if reply.status < 300 and not whole.body:
        raise TransientError(f"the reply is empty (HTTP {reply.status})")
    if not accepted:
        raise _error_of(whole, endpoint)
    await _check(whole, body, endpoint)
    return Forwarded(reply.media_type, _one_piece(whole.body))


async def _pass_on(first: bytes, events: AsyncIterator[bytes], endpoint: Endpoint) -> AsyncIterator[bytes]:
    """A stream that has begun, so that it cannot be tried again. Raises `EngineError`."""
    yield first
    try:
        async for piece in events:
            yield piece
    except TransientError as failure:
        raise EngineError(f"{endpoint.url} failed: {failure}") from failure


async def _check(reply: HttpReply, body: Mapping[str, Any], endpoint: Endpoint) -> None:
    """Raise the error in the reply, or `TransientError` if it is no answer.

    Raises `ContextOverflowError` if a part of the prompt was dropped.
    """
    sent = await asyncio.to_thread(parse_json, reply, endpoint.url)
    if not isinstance(sent, dict) or sent.get("error"):
        raise _error_of(reply, endpoint)
    await check_read_whole(collect_texts(body["messages"]), read_usage(sent))
    said = Said()
    said.add(sent)
    said.check()


def _error_of(reply: HttpReply, endpoint: Endpoint) -> EngineError | TransientError:
    if reply.status < 300 and is_page(reply.text):
        return EngineError(about_a_page(endpoint.url))
    return _explain_refusal(read_refusal(reply), endpoint, reply.status)


def _explain_refusal(refusal: Refusal, endpoint: Endpoint, status: int) -> EngineError | TransientError:
    if refusal.is_overflow or status in (401, 403):
        return error_of(refusal, endpoint.url, endpoint.has_key)
    return RefusedError(refusal)


async def _one_piece(content: bytes) -> AsyncIterator[bytes]:
    """A reply that is whole, as `Forwarded` has it."""
    yield content
