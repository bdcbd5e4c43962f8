"""The engine as one of several keys uses it: by turns, and without learning what another has asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from memagent.concurrency import Turns
from memagent.engines.forwarding import Forwarded
from memagent.engines.wrappers import Wrapper
from memagent.errors import EngineError
from memagent.types import Completion, Engine, Message, Sampling, Usage

# The fields of OpenAI's own replies, without cached tokens. Servers add times, which reveal as much.
_FIELDS = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "error"}
_USAGE = {"prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"}


class SharedEngine(Wrapper):
    """The engine as one key uses it: its calls by `turns` and, if it is `private`, without what was cached.

    The engine's cache holds what other keys asked lately, which the count of cached tokens would reveal.
    """

    def __init__(self, engine: Engine, key: str, turns: Turns, private: bool) -> None:
        super().__init__(engine)
        self._key, self._turns, self._private = key, turns, private

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat in its turn."""
        async with self._turns.take(self._key):
            try:
                completion = await self.engine.complete(messages, sampling)
            except EngineError as error:
                error.usage = error.usage and self._without_cached(error.usage)
                error.unusable = tuple(map(self._without_cached, error.unusable))
                raise
        return replace(
            completion,
            usage=self._without_cached(completion.usage),
            unusable=tuple(map(self._without_cached, completion.unusable)),
        )

    @asynccontextmanager
    async def forward(self, body: Mapping[str, Any]) -> AsyncIterator[Forwarded]:
        """As `Forwards.forward`, in its turn; the engine must be one that forwards."""
        async with self._turns.take(self._key), super().forward(body) as forwarded:
            if self._private:
                forwarded = replace(forwarded, pieces=_without_cached(forwarded))
            yield forwarded

    def _without_cached(self, usage: Usage) -> Usage:
        return replace(usage, cached_tokens=0) if self._private else usage


async def _without_cached(forwarded: Forwarded) -> AsyncIterator[bytes]:
    """The pieces of a reply, with no more than OpenAI's own fields."""
    streams = "event-stream" in forwarded.media_type
    async for piece in forwarded.pieces:
        if streams:
            yield b"".join(map(_strip_line, piece.splitlines(keepends=True)))
        else:
            yield await asyncio.to_thread(_strip, piece)


def _strip_line(line: bytes) -> bytes:
    if not line.startswith(b"data:"):
        return line
    return b"data: " + _strip(line[5:]) + line[len(line.rstrip(b"\r\n")) :]


def _strip(data: bytes) -> bytes:
    """Strip a completion to the fields of OpenAI's own; what is no JSON object, such as [DONE], stays."""
    try:
        sent = json.loads(data)
    except (ValueError, RecursionError):
        return data.strip()
    if not isinstance(sent, dict):
        return data.strip()
    stripped = {name: value for name, value in sent.items() if name in _FIELDS}
    if isinstance(usage := sent.get("usage"), dict):
        stripped["usage"] = {name: value for name, value in usage.items() if name in _USAGE}
    return json.dumps(stripped).encode()
