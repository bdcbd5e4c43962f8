"""Judge a completion that arrives as server-sent events: empty, broken off, or an answer."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from memagent.engines.refusals import HttpReply, RefusedError, TransientError, read_refusal
from memagent.engines.replies import Said

_MAX_EVENT_BYTES = 64 * 2**20
_EVENT_ENDS = b"\n\n", b"\n\r\n", b"\r\r"  # a blank line, for each kind of line ending
_ENDING = re.compile(rb'"finish_reason"\s*+:\s*+"|"error"|\[DONE\]')


async def judge(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a streamed completion unchanged, from the one on in which the model says something.

    Raises `RefusedError` for an error in place of a reply, and `TransientError` for a stream that is empty,
    or that ends without saying so.
    """
    said, ended, held = Said(), False, bytearray()
    async for events in split_events(pieces):
        held += events
        if not said.answered or _ENDING.search(events):
            for data in _data_of(events):
                if data == b"[DONE]":
                    said.check()
                    ended = True
                else:
                    ended |= _take(data, said)
        if said.begun or ended:
            yield bytes(held)
            held.clear()
    if not ended:
        said.check()
    if not (ended or said.reason):
        raise TransientError("the stream ended before the reply was whole")
    if held:
        yield bytes(held)


def _take(data: bytes, said: Said) -> bool:
    """Add the data of an event to what was said; whether it ends the stream, as an error does.

    Raises `RefusedError` for an error before anything was said, and `TransientError` as `Said.add` does.
    """
    try:
        sent = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(sent, dict):
        return False
    if sent.get("error"):
        if not said.begun:
            raise RefusedError(read_refusal(HttpReply(200, data)))
        return True
    if "choices" in sent:  # else it is of no completion: a ping, for instance
        said.add(sent)
    return False


def _data_of(events: bytes) -> Iterator[bytes]:
    """The data of events, which completions have on one line each."""
    for line in events.splitlines():
        if line.startswith(b"data:"):
            yield line.removeprefix(b"data:").strip()


async def split_events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes, split only after events, so that others can be sent between them.

    Raises `TransientError` for an event that is too long.
    """
    rest = bytearray()
    async for piece in pieces:
        unseen = max(0, len(rest) - 2)  # the end of an event may itself be split
        rest += piece
        found = [place + len(end) for end in _EVENT_ENDS if (place := rest.rfind(end, unseen)) >= 0]
        if found:
            yield bytes(rest[: max(found)])
            del rest[: max(found)]
        if len(rest) > _MAX_EVENT_BYTES:
            raise TransientError(f"an event of the reply is longer than {_MAX_EVENT_BYTES:,} bytes")
    if rest:
        yield bytes(rest)
