"""Pass a chat completion through: forward its body to the endpoint, and stream back the reply's bytes.

The reply is checked as it passes, but never changed: a stream may be empty, broken off, or an answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from memagent.engines.endpoint import Endpoint
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
    ReplyState,
    about_a_page,
    check_read_whole,
    collect_texts,
    parse_json,
    read_usage,
)
from memagent.errors import EngineError

_MAX_REPLY_BYTES = 64 * 2**20
_MAX_EVENT_BYTES = 64 * 2**20
_EVENT_ENDS = b"\n\n", b"\n\r\n", b"\r\r"  # a blank line, for each kind of line ending
_ENDING = re.compile(rb'"finish_reason"\s*+:\s*+"|"error"|\[DONE\]')


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

        A reply that is not streamed comes in one piece, once it is known that it is neither an error nor
        empty, and that the endpoint read the whole prompt. A stream starts with its first word. Until then, a
        reply that cannot be used is tried again; a refusal is not, since the client may do so.

        Raises `ContextOverflowError`, `RefusedError`, or `EngineError` where there was no usable reply; its
        pieces raise `EngineError` if they end before the reply does.
        """


async def begin(endpoint: Endpoint, body: Mapping[str, Any], open: AsyncExitStack) -> Forwarded:
    """Post a body once, and return the reply from its first word on; `open` holds the connection.

    Raises `TransientError` for what may be tried again, and what `Forwards.forward` raises.
    """
    seconds = endpoint.connection.timeout_seconds
    content = (await asyncio.to_thread(json.dumps, body)).encode()
    reply = await open.enter_async_context(endpoint.stream("chat/completions", content, seconds))
    streams = bool(body.get("stream"))
    expected = "event-stream" if streams else "json"
    accepted = reply.status < 300 and expected in (reply.media_type or expected)
    if accepted and streams:
        events = await open.enter_async_context(aclosing(check_events(reply.pieces)))
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
    """Raise the error in the reply, or `TransientError` if it is not an answer.

    Raises `ContextOverflowError` if a part of the prompt was dropped.
    """
    sent = await asyncio.to_thread(parse_json, reply, endpoint.url)
    if not isinstance(sent, dict) or sent.get("error"):
        raise _error_of(reply, endpoint)
    await check_read_whole(collect_texts(body["messages"]), read_usage(sent))
    state = ReplyState()
    state.add(sent)
    state.check()


def _error_of(reply: HttpReply, endpoint: Endpoint) -> EngineError | TransientError:
    if reply.status < 300 and is_page(reply.text):
        return EngineError(about_a_page(endpoint.url))
    return _explain_refusal(read_refusal(reply), endpoint, reply.status)


def _explain_refusal(refusal: Refusal, endpoint: Endpoint, status: int) -> EngineError | TransientError:
    if refusal.is_overflow or status in (401, 403):
        return error_of(refusal, endpoint.url, endpoint.has_key)
    return RefusedError(refusal)


async def _one_piece(content: bytes) -> AsyncIterator[bytes]:
    """A whole reply as the pieces of a `Forwarded`."""
    yield content


async def check_events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a streamed completion unchanged, starting with the first that says something.

    Raises `RefusedError` for an error in place of a reply, and `TransientError` for a stream that is empty,
    or that ends without saying so.
    """
    state, ended, pending = ReplyState(), False, bytearray()
    async for events in split_events(pieces):
        pending += events
        if not state.answered or _ENDING.search(events):
            for line in events.splitlines():  # completions have their data on one line each
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    state.check()
                    ended = True
                else:
                    ended |= _take(data, state)
        if state.visible or ended:
            yield bytes(pending)
            pending.clear()
    if not ended:
        state.check()
    if not (ended or state.reason):
        raise TransientError("the stream ended before the reply was whole")
    if pending:
        yield bytes(pending)


def _take(data: bytes, state: ReplyState) -> bool:
    """Add the data of an event to the state. Returns whether it ends the stream, as an error does.

    Raises `RefusedError` for an error before the first word, and what `ReplyState.add` raises.
    """
    try:
        sent = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(sent, dict):
        return False
    if sent.get("error"):
        if not state.visible:
            raise RefusedError(read_refusal(HttpReply(200, data)))
        return True
    if "choices" in sent:  # else it is not of a completion: a ping, for instance
        state.add(sent)
    return False


async def split_events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes, split only after events, so that others can be sent between them.

    If the last event was cut off, its whole lines are an event, and the rest is dropped. Raises
    `TransientError` for an event that is too long.
    """
    rest = bytearray()
    async for piece in pieces:
        unseen = max(0, len(rest) - 2)  # the end of an event may itself be split
        rest += piece
        ends = [start + len(end) for end in _EVENT_ENDS if (start := rest.rfind(end, unseen)) >= 0]
        if ends:
            yield bytes(rest[: max(ends)])
            del rest[: max(ends)]
        if len(rest) > _MAX_EVENT_BYTES:
            raise TransientError(f"an event of the reply is longer than {_MAX_EVENT_BYTES:,} bytes")
    if whole := b"".join(line for line in rest.splitlines(keepends=True) if _is_whole(line)):
        yield whole.rstrip(b"\r\n") + b"\n\n"


def _is_whole(line: bytes | bytearray) -> bool:
    """Whether a line that may be cut off says something."""
    data = line.removeprefix(b"data:").strip()
    with suppress(ValueError, RecursionError):
        return data == b"[DONE]" or isinstance(json.loads(data), dict)
    return False
