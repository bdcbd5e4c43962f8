"""Pass a chat completion through: forward its body to the endpoint, and stream back the reply's bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from memagent.engines.refusals import Refusal
from memagent.errors import EngineError


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

        Raises `ContextOverflowError`, `RefusedError`, or `EngineError` where there was no reply.
        """
