"""Chats that fit the model's window go straight to the model."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from memagent.engines.forwarding import Forwards
from memagent.engines.refusals import RefusedError
from memagent.engines.replies import is_visible
from memagent.errors import EmptyAnswerError
from memagent.server.errors import ApiError
from memagent.server.schemas import ChatRequest
from memagent.server.stream import DONE, Reply
from memagent.settings import ReadSettings
from memagent.types import Completion, Engine, Message, Sampling

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class Direct:
    """Passes chats to an engine; `answer_tokens` is the longest reply to a chat that sets no limit."""

    def __init__(self, engine: Engine, settings: ReadSettings, answer_tokens: int) -> None:
        self.engine, self.settings, self.answer_tokens = engine, settings, answer_tokens

    async def whole(self, chat: ChatRequest, body: Mapping[str, Any], reply: Reply) -> Response:
        """The reply in one piece. Raises `EngineError`, `ApiError`."""
        if not isinstance(self.engine, Forwards):
            completion = await self._complete(chat)
            return JSONResponse(reply.whole(completion.text, completion.finish_reason, completion.usage))
        try:
            async with self.engine.forward(body) as forwarded:
                content = b"".join([piece async for piece in forwarded.pieces])
            return Response(content, media_type=forwarded.media_type)
        except RefusedError as error:
            raise _pass_on(error) from error

    async def stream(
        self, chat: ChatRequest, body: Mapping[str, Any], reply: Reply
    ) -> AsyncGenerator[bytes, None]:
        """The reply as whole server-sent events. Raises `EngineError`, `ApiError`."""
        if not isinstance(self.engine, Forwards):
            completion = await self._complete(chat)
            yield reply.chunk({"role": "assistant", "content": completion.text})
            yield reply.chunk({}, completion.finish_reason)
            if chat.wants_usage:
                yield reply.usage(completion.usage)
            yield DONE
            return
        try:
            async with self.engine.forward(body) as forwarded:
                async for events in forwarded.pieces:
                    yield events
        except RefusedError as error:
            raise _pass_on(error) from error

    async def _complete(self, chat: ChatRequest) -> Completion:
        """The completion of an engine in this process, which supports text only."""
        refused = chat.beyond_text
        refused["tools"] = bool(chat.tools) and chat.tool_choice != "none"
        refused["messages"] |= any(turn.role not in _ROLES for turn in chat.messages)
        for name, is_refused in refused.items():
            if is_refused:
                raise ApiError(
                    400,
                    f"{self.engine.model.name} runs in this process and completes text only: leave out "
                    f"{name}, or start the server with `base_url`",
                    "not_supported",
                    name,
                )
        messages = tuple(
            Message(_ROLES[turn.role], "\n".join(turn.texts))  # type: ignore[arg-type]
            for turn in chat.messages
        )
        completion = await self.engine.complete(messages, self._sampling(chat))
        if not is_visible(completion.text):
            raise EmptyAnswerError(f"the reply of {self.engine.model.name} is empty: ask again, or otherwise")
        text, was_cut = cut_at_stop(completion.text, chat.stops)
        return Completion(text, "stop" if was_cut else completion.finish_reason, usage=completion.usage)

    def _sampling(self, chat: ChatRequest) -> Sampling:
        settings = self.settings
        return Sampling(
            chat.reply_tokens or self.answer_tokens,
            settings.temperature if chat.temperature is None else chat.temperature,
            settings.top_p if chat.top_p is None else chat.top_p,
            settings.seed if chat.seed is None else chat.seed,
        )


def cut_at_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """Cut a text at the first stop sequence; returns whether there was one, too."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def replace_model(raw: bytes, model: str) -> dict[str, Any]:
    """Put the model's own name into the body that the client sent."""
    body: dict[str, Any] = json.loads(raw)
    body["model"] = model
    return body


def _pass_on(error: RefusedError) -> ApiError:
    """The endpoint's refusal as an error of ours."""
    refusal = error.refusal
    wait = refusal.retry_after_seconds
    headers = {"Retry-After": f"{wait:.0f}"} if wait is not None else {}
    status = refusal.status if refusal.status >= 400 else 502  # a redirect is not for the client to follow
    return ApiError(status, refusal.message, refusal.code or None, refusal.param or None, headers)
