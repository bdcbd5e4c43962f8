"""Chat completions in the format of OpenAI's API, and how the model itself answers what fits its window."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fastapi.sse import format_sse_event

from memagent.engines.forwarding import Forwarded, Forwards
from memagent.engines.refusals import RefusedError
from memagent.engines.replies import is_visible
from memagent.errors import EmptyAnswerError
from memagent.reading.sources import NEAREST
from memagent.server.errors import ApiError
from memagent.server.events import format_event
from memagent.server.schemas import ChatRequest
from memagent.settings import ReadSettings
from memagent.types import Engine, Message, Sampling, Usage

FIRST = {"role": "assistant", "content": ""}  # the first delta of a stream
DONE = format_sse_event(data_str="[DONE]")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer to a chat: `thoughts` of the completion tokens are not part of it.

    `beside` holds further fields of its message.
    """

    text: str
    finish_reason: str
    usage: Usage
    thoughts: int = 0
    beside: Mapping[str, Any] = field(default_factory=dict)

    def format_usage(self) -> dict[str, Any]:
        """Format its tokens as OpenAI's API does; those of memory updates count as reasoning."""
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "total_tokens": self.usage.tokens,
            "prompt_tokens_details": {"cached_tokens": self.usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.thoughts},
        }


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One chat completion, under the name that the client uses for the model."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answer: ChatAnswer) -> dict[str, Any]:
        """The completion in one piece."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        message |= {"annotations": [], **answer.beside}
        completion = self._object("chat.completion", "message", message, answer.finish_reason)
        return completion | {"usage": answer.format_usage()}

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        """A piece of the stream; an empty `delta` only keeps the connection alive."""
        return format_event(self._object("chat.completion.chunk", "delta", delta, finish_reason))

    def end(self, answer: ChatAnswer, wants_usage: bool) -> bytes:
        """The pieces of a stream from the answer on, without the last."""
        pieces = [self.chunk({"content": answer.text})]
        if answer.beside:
            pieces.append(self.chunk(answer.beside))
        pieces.append(self.chunk({}, answer.finish_reason))
        if wants_usage:
            piece = self._object("chat.completion.chunk", "delta", {}, None)
            pieces.append(format_event(piece | {"choices": [], "usage": answer.format_usage()}))
        return b"".join(pieces)

    def _object(
        self, kind: str, part: str, content: Mapping[str, Any], finish_reason: str | None
    ) -> dict[str, Any]:
        choice = {"index": 0, part: content, "finish_reason": finish_reason, "logprobs": None}
        values = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**values, "choices": [choice]}


def cite(text: str, statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Cite the sources of an answer where they belong in it, as fields of a message.

    `annotations` are in OpenAI's own format, which clients parse; the URL of a passage is as in RFC 5147. The
    title of a nearest passage says that it is one. `memagent` has all statements, including those without a
    source.
    """
    annotations, cited, offset = list[Any](), list[Any](), 0
    for statement in statements:
        start = text.find(statement["text"], offset)
        if start < 0:
            continue
        offset = start + len(statement["text"])
        span, source = {"start_index": start, "end_index": offset}, statement["source"]
        near = statement["nearest"]
        cited.append({"text": statement["text"], **span, "source": source, "nearest": near})
        linked = [_link(source)] if source else [_link(passage, f" ({NEAREST})") for passage in near]
        annotations += [{"type": "url_citation", "url_citation": span | link} for link in linked]
    return {"annotations": annotations} | ({"memagent": {"statements": cited}} if cited else {})


def _link(source: Mapping[str, Any], kind: str = "") -> dict[str, str]:
    file, page = source["file"], source["page"]
    title = file if page is None else f"{file}, page {page}"
    return {"title": title + kind, "url": f"{quote(file)}#char={source['start']},{source['end']}"}


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Cut a text at the first stop sequence; also returns whether there was one."""
    offsets = [offset for stop in stops if (offset := text.find(stop)) >= 0]
    return (text[: min(offsets)], True) if offsets else (text, False)


@asynccontextmanager
async def forward(engine: Forwards, body: Mapping[str, Any]) -> AsyncIterator[Forwarded]:
    """As `Forwards.forward`, but raises the endpoint's refusal as an error of ours."""
    try:
        async with engine.forward(body) as forwarded:
            yield forwarded
    except RefusedError as error:
        refusal = error.refusal
        wait = refusal.retry_after_seconds
        headers = {"Retry-After": f"{wait:.0f}"} if wait is not None else {}
        status = refusal.status if refusal.status >= 400 else 502  # no redirect is for the client
        where = refusal.code or None, refusal.param or None
        raise ApiError(status, refusal.message, *where, headers) from error


async def complete(
    chat: ChatRequest, engine: Engine, settings: ReadSettings, answer_tokens: int
) -> ChatAnswer:
    """Answer a chat with an engine in this process, which supports text only.

    `answer_tokens` is the longest reply to a chat that sets no limit. Raises `EngineError`, `ApiError`.
    """
    refused = chat.beyond_text
    refused["tools"] = bool(chat.tools) and chat.tool_choice != "none"
    refused["messages"] |= any(turn.role not in _ROLES for turn in chat.messages)
    for name, is_refused in refused.items():
        if is_refused:
            message = f"{engine.model.name} runs in this process and completes text only: leave out {name}"
            raise ApiError(400, f"{message}, or start the server with `base_url`", "not_supported", name)
    messages = tuple(
        Message(_ROLES[turn.role], "\n".join(turn.texts))  # type: ignore[arg-type]
        for turn in chat.messages
    )
    sampling = Sampling(
        chat.reply_tokens or answer_tokens,
        settings.temperature if chat.temperature is None else chat.temperature,
        settings.top_p if chat.top_p is None else chat.top_p,
        settings.seed if chat.seed is None else chat.seed,
    )
    completion = await engine.complete(messages, sampling)
    if not is_visible(completion.text):
        raise EmptyAnswerError(f"the reply of {engine.model.name} is empty: ask again, or otherwise")
    text, was_cut = cut_at_stop(completion.text, chat.stops)
    return ChatAnswer(text, "stop" if was_cut else completion.finish_reason, completion.usage)
