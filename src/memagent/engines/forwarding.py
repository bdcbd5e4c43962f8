"""Pass a chat completion through: forward its body to the endpoint, and stream back the reply's bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from memagent.engines.refusals import Refusal, TransientError
from memagent.errors import EngineError

_MOST_REPLY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A reply as it arrives: its media type and its bytes."""

    media_type: str
    pieces: AsyncIterator[bytes]


class RefusedError(EngineError):
    """The endpoint refused a forwarded request; `refusal` holds its words."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@runtime_checkable
class Forwards(Protocol):
    """An engine that can pass requests through."""

    def forward(self, body: Mapping[str, Any]) -> AbstractAsyncContextManager[Forwarded]:
        """Post a chat completion, streamed or not. It is tried only once, since the client may retry.

        What is not streamed comes in one piece, once it is known that it is no error, and that the endpoint
        read the whole prompt.

        Raises `ContextOverflowError`, `RefusedError`, or `EngineError` where there was no reply.
        """


async def joined(pieces: AsyncIterator[bytes]) -> bytes:
    """A forwarded reply. Raises `TransientError` if it is too long."""
    content = bytearray()
    async for piece in pieces:
        content += piece
        if len(content) > _MOST_REPLY_BYTES:
            raise TransientError(f"the reply is longer than {_MOST_REPLY_BYTES:,} bytes, the limit")
    return bytes(content)


async def one_piece(content: bytes) -> AsyncIterator[bytes]:
    """A reply that is whole, as `Forwarded` has it."""
    yield content
