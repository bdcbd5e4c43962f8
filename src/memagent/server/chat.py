"""POST /v1/chat/completions: what fits the window goes straight to the model, the rest is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from memagent.concurrency import drain
from memagent.engines.wrappers import forwards
from memagent.errors import ContextOverflowError
from memagent.reading.progress import Progress
from memagent.reading.workflows import choose_workflow
from memagent.server.completions import (
    DONE,
    FIRST,
    ChatAnswer,
    ChatReply,
    cite,
    complete,
    cut_at_stop,
    forward,
)
from memagent.server.database import Job
from memagent.server.division import fits, prepare
from memagent.server.errors import ApiError, error_of
from memagent.server.events import stream
from memagent.server.jobs import Jobs
from memagent.server.limits import Limits
from memagent.server.schemas import ChatRequest
from memagent.settings import ReadSettings
from memagent.types import Engine, Usage

ALIAS = "memagent"
"""A name that clients can use for the model, whichever it is."""


@dataclass(slots=True)
class Chats:
    """Answers chats with one engine."""

    engine: Engine
    settings: ReadSettings
    jobs: Jobs
    limits: Limits
    answer_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the budgets. Blocks."""
        _, workflow = choose_workflow(self.settings, self.engine.model.trained)
        self.answer_tokens = workflow.budgets(self.settings, self.engine.model).answer_tokens

    async def respond(self, owner: str, chat: ChatRequest, raw: bytes) -> Response:
        """The reply to a chat, whose body is `raw`. Raises `ApiError`, `MemAgentError`."""
        model = self.engine.model
        if chat.model not in (model.name, ALIAS):
            message = f"this server has the model {model.name!r}, also called {ALIAS!r}"
            raise ApiError(404, message, "model_not_found", "model")
        reply = ChatReply(chat.model)
        if chat.stream:
            pieces = self._stream(owner, chat, raw, reply)
            return await stream(pieces, lambda: reply.chunk({}), self.limits.keep_alive_seconds)
        overflow = None
        if await asyncio.to_thread(fits, chat, model, self.answer_tokens):
            try:
                return await self._pass_whole(owner, chat, raw, reply)
            except ContextOverflowError as error:
                overflow = error
        reading = await self._begin(owner, chat, overflow)
        await drain(reading.updates())
        await self.jobs.forget(reading.job)
        return JSONResponse(reply.whole(reading.answer()))

    async def _stream(
        self, owner: str, chat: ChatRequest, raw: bytes, reply: ChatReply
    ) -> AsyncGenerator[bytes, None]:
        overflow = None
        if await asyncio.to_thread(fits, chat, self.engine.model, self.answer_tokens):
            try:
                async with aclosing(self._pass_stream(owner, chat, raw, reply)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except ContextOverflowError as error:
                overflow = error
        reading = await self._begin(owner, chat, overflow)
        first = reply.chunk(FIRST)
        async with aclosing(reading.updates()) as updates:
            async for progress in updates:
                yield first + reply.chunk({"reasoning_content": format_progress(progress)})
                first = b""
        yield first + reply.end(reading.answer(), chat.wants_usage)
        await self.jobs.forget(reading.job)
        yield DONE

    async def _pass_whole(self, owner: str, chat: ChatRequest, raw: bytes, reply: ChatReply) -> Response:
        """The model's own reply in one piece. Raises `EngineError`, `ApiError`."""
        engine = self.jobs.engine_of(owner)
        if not forwards(self.engine):
            answer = await complete(chat, engine, self.settings, self.answer_tokens)
            return JSONResponse(reply.whole(answer))
        async with forward(engine, await asyncio.to_thread(self._rename, raw)) as forwarded:
            content = b"".join([piece async for piece in forwarded.pieces])
        return Response(content, media_type=forwarded.media_type)

    async def _pass_stream(
        self, owner: str, chat: ChatRequest, raw: bytes, reply: ChatReply
    ) -> AsyncGenerator[bytes, None]:
        """The model's own reply as whole server-sent events. Raises `EngineError`, `ApiError`."""
        engine = self.jobs.engine_of(owner)
        if not forwards(self.engine):
            answer = await complete(chat, engine, self.settings, self.answer_tokens)
            yield reply.chunk(FIRST) + reply.end(answer, chat.wants_usage) + DONE
            return
        async with forward(engine, await asyncio.to_thread(self._rename, raw)) as forwarded:
            async for events in forwarded.pieces:
                yield events

    def _rename(self, raw: bytes) -> dict[str, Any]:
        return {**json.loads(raw), "model": self.engine.model.name}

    async def _begin(self, owner: str, chat: ChatRequest, overflow: ContextOverflowError | None) -> _Reading:
        """Begin the read that answers a chat, or join the one that answers the same chat already."""
        try:
            model, store = self.engine.model, self.jobs.store
            prepared = await asyncio.to_thread(prepare, chat, owner, model, self.settings, store)
            await asyncio.to_thread(store.check_room, owner, self.limits.stored_bytes)
        except ApiError:
            if overflow:  # it seemed to fit, so the client did not ask for a read
                raise overflow from None
            raise
        job = await self.jobs.begin(owner, *prepared, attended=True)
        return _Reading(self.jobs, job, chat)


@dataclass(slots=True)
class _Reading:
    """The read that answers a chat."""

    jobs: Jobs
    job: Job
    chat: ChatRequest
    _last: Mapping[str, Any] = field(default_factory=dict)
    _result: Mapping[str, Any] = field(default_factory=dict)

    async def updates(self) -> AsyncGenerator[Progress, None]:
        """Listen to the read, and yield its progress after each update. Raises `ApiError` if it fails."""
        is_new, outcome = False, dict[str, Any]()
        async with aclosing(self.jobs.events(self.job)) as events:
            async for event in events:
                if isinstance(event.data, Progress):
                    if is_new and self._last["kind"] == "update":
                        yield event.data
                    is_new = False
                elif event.name == "conversation":
                    self._last, is_new = event.data, True
                outcome = dict(event.outcome)
        if "result" not in outcome:
            raise error_of(outcome)
        self._result = outcome["result"]

    def answer(self) -> ChatAnswer:
        """The answer, once all `updates` were taken, to where the client wants it to stop."""
        result, last = self._result, self._last
        text, was_cut = cut_at_stop(self._continue(result["answer"]), self.chat.stops)
        usage = Usage(result["prompt_tokens"], result["completion_tokens"], result["cached_tokens"])
        finish_reason, answer_tokens = "stop", 0
        if last.get("kind") == "answer":  # else no model was asked, as there was nothing to answer from
            finish_reason = "stop" if was_cut else last["finish_reason"]
            answer_tokens = last["usage"]["completion_tokens"]
        thoughts = usage.completion_tokens - answer_tokens
        return ChatAnswer(text, finish_reason, usage, thoughts, self._describe(text))

    def _describe(self, text: str) -> dict[str, Any]:
        """The problem as it was found, whether there is an answer, its sources, and what was passed over."""
        result = self._result
        statements = [
            statement | {"text": self._continue(statement["text"])} for statement in result["statements"]
        ]
        fields = cite(text, statements) if statements else {}
        described = {"problem": self.job.request["problem"], "found": result["found"]}
        if self.jobs.settings_of(self.job).screen:
            described |= {"chunks": result["chunks"], "passed_over": result["passed_over"]}
        return fields | {"memagent": fields.get("memagent", {}) | described}

    def _continue(self, text: str) -> str:
        """A text without the beginning that the client has already, if anything comes after it."""
        beginning = self.chat.beginning.strip()
        rest = text.lstrip().removeprefix(beginning) if beginning else ""
        return rest if rest.strip() else text


def format_progress(progress: Progress) -> str:
    """Format the progress of a read as a line that clients show as a thought."""
    chunks = f"chunk {progress.chunks}"
    if progress.chunks_in_all:
        chunks += f" of about {progress.chunks_in_all}"
    if progress.passes > 1:
        chunks += f", again {progress.reread} of {progress.to_reread}"
    words = [f"Read {chunks}", f"{progress.document_tokens:,} tokens"]
    if progress.passed_over:
        words.append(f"{progress.passed_over} passed over")
    if progress.seconds_left:
        words.append(f"about {timedelta(seconds=round(progress.seconds_left))} left")
    return ", ".join(words) + ".\n"
