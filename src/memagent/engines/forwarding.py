"""Pass a chat completion through: its body to the endpoint as it is, the bytes of the reply back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from memagent.engines.refusals import Refusal
from memagent.errors import EngineError


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A reply as it comes in: its media type and its bytes."""

    media_type: str
    pieces: AsyncIterator[bytes]


class RefusedError(EngineError):
    """The endpoint refused what was forwarded, in the words of `refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@runtime_checkable
class Forwards(Protocol):
    """An engine that can pass requests through."""

    def forward(self, body: Mapping[str, Any]) -> AbstractAsyncContextManager[Forwarded]:
        """Post a chat completion, streamed or not. It is tried once: its client may try again.

        Raises `ContextOverflowError`, `RefusedError`, or `EngineError` where there was no reply.
        """
        ...
