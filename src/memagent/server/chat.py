"""POST /v1/chat/completions: what fits the window goes straight to the model, the rest is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from memagent.concurrency import drain
from memagent.errors import ContextOverflowError
from memagent.reading.progress import Progress
from memagent.reading.workflows import choose_workflow
from memagent.server.direct import Direct, cut_at_stop, replace_model
from memagent.server.errors import ApiError, error_of
from memagent.server.jobs import Jobs
from memagent.server.limits import Limits
from memagent.server.preparing import fits, prepare
from memagent.server.records import Job
from memagent.server.schemas import ChatRequest
from memagent.server.stream import DONE, Reply, cite, stream
from memagent.settings import ReadSettings
from memagent.types import Engine, Usage

OWNER = "chat"
ALIAS = "memagent"
"""A name that clients can use for the model, whichever it is."""


@dataclass(slots=True)
class Chats:
    """Answers chats with one engine."""

    engine: Engine
    settings: ReadSettings
    jobs: Jobs
    limits: Limits
    direct: Direct = field(init=False)

    def __post_init__(self) -> None:
        """Count the budgets. Blocks."""
        _, workflow = choose_workflow(self.settings, self.engine.model.trained)
        budgets = workflow.budgets(self.settings, self.engine.model)
        self.direct = Direct(self.engine, self.settings, budgets.answer_tokens)

    async def respond(self, owner: str, chat: ChatRequest, raw: bytes) -> Response:
        """The reply to a chat, whose body is `raw`. Raises `ApiError`, `MemAgentError`."""
        model = self.engine.model
        if chat.model not in (model.name, ALIAS):
            raise ApiError(
                404,
                f"this server has the model {model.name!r}, also called {ALIAS!r}",
                "model_not_found",
                "model",
            )
        reply = Reply(chat.model)
        if chat.stream:
            pieces = self._stream(owner, chat, raw, reply)
            return await stream(pieces, reply.chunk({}), self.limits.keep_alive_seconds)
        if await asyncio.to_thread(fits, chat, model, self.direct.answer_tokens):
            try:
                return await self.direct.whole(chat, replace_model(raw, model.name), reply)
            except ContextOverflowError as error:
                return JSONResponse(await self._whole(owner, chat, reply, error))
        return JSONResponse(await self._whole(owner, chat, reply))

    async def _stream(
        self, owner: str, chat: ChatRequest, raw: bytes, reply: Reply
    ) -> AsyncGenerator[bytes, None]:
        model, overflow = self.engine.model, None
        if await asyncio.to_thread(fits, chat, model, self.direct.answer_tokens):
            body = replace_model(raw, model.name)
            try:
                async with aclosing(self.direct.stream(chat, body, reply)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except ContextOverflowError as error:
                overflow = error
        reading = await self._begin(owner, chat, overflow)
        role = reply.chunk({"role": "assistant", "content": ""})
        async with aclosing(reading.updates()) as updates:
            async for progress in updates:
                if role:
                    yield role
                    role = b""
                yield reply.chunk({"reasoning_content": format_progress(progress)})
        yield role + reply.chunk({"content": reading.answer})
        yield reply.chunk(reading.beside)
        yield reply.chunk({}, reading.finish_reason)
        if chat.wants_usage:
            yield reply.usage(reading.usage, reading.thoughts)
        await self._forget(reading)
        yield DONE

    async def _whole(
        self, owner: str, chat: ChatRequest, reply: Reply, overflow: ContextOverflowError | None = None
    ) -> dict[str, object]:
        reading = await self._begin(owner, chat, overflow)
        await drain(reading.updates())
        await self._forget(reading)
        return reply.whole(
            reading.answer, reading.finish_reason, reading.usage, reading.thoughts, reading.beside
        )

    async def _begin(self, owner: str, chat: ChatRequest, overflow: ContextOverflowError | None) -> _Reading:
        """Begin the read that answers a chat, or join the one that answers the same chat already."""
        try:
            model, store = self.engine.model, self.jobs.store
            read = await asyncio.to_thread(prepare, chat, owner, model, self.settings, store)
        except ApiError:
            if overflow:  # it seemed to fit, so the client did not ask for a read
                raise overflow from None
            raise
        job = await self.jobs.begin(OWNER, read.key, read.request, read.documents, attended=True)
        return _Reading(self.jobs, job, chat, read.settings.screen, self.limits.keep_alive_seconds)

    async def _forget(self, reading: _Reading) -> None:
        """Delete an answered read: a client that asks again wants another answer."""
        await asyncio.to_thread(self.jobs.store.delete_read, reading.job.id, durable=False)


@dataclass(slots=True)
class _Reading:
    """The read that answers a chat; its result is there once all `updates` were taken."""

    jobs: Jobs
    job: Job
    chat: ChatRequest
    screens: bool
    seconds: float
    _last: Mapping[str, Any] = field(default_factory=dict)
    _result: Mapping[str, Any] = field(default_factory=dict)

    async def updates(self) -> AsyncGenerator[Progress, None]:
        """Listen to the read, and yield its progress after each update. Raises `ApiError` if it fails."""
        is_new, outcome = False, dict[str, Any]()
        async with aclosing(self.jobs.events(self.job, 0, self.seconds)) as events:
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

    @property
    def answer(self) -> str:
        """The answer, from where the client began it to where the client wants it to stop."""
        return cut_at_stop(self._continue(self._result["answer"]), self.chat.stops)[0]

    @property
    def beside(self) -> dict[str, Any]:
        """Extra fields of the answer's message.

        They tell what was taken for the problem, whether an answer was found, its sources, and what was
        passed over.
        """
        result = self._result
        statements = [it | {"text": self._continue(it["text"])} for it in result["statements"]]
        fields = cite(self.answer, statements) if statements else {}
        told = {"problem": self.job.request["problem"], "found": result["found"]}
        fields["memagent"] = fields.get("memagent", {}) | told
        if self.screens:
            fields["memagent"] |= {"chunks": result["chunks"], "passed_over": result["passed_over"]}
        return fields

    def _continue(self, text: str) -> str:
        """A text without the beginning that the client has already, if anything comes after it."""
        begun = self.chat.beginning.strip()
        rest = text.lstrip().removeprefix(begun) if begun else ""
        return rest if rest.strip() else text

    @property
    def finish_reason(self) -> str:
        """Why the answer ended."""
        was_cut = cut_at_stop(self._continue(self._result["answer"]), self.chat.stops)[1]
        return "stop" if was_cut or not self._answered else str(self._last["finish_reason"])

    @property
    def usage(self) -> Usage:
        """The tokens of all conversations."""
        result = self._result
        return Usage(result["prompt_tokens"], result["completion_tokens"], result["cached_tokens"])

    @property
    def thoughts(self) -> int:
        """The completion tokens of all conversations before the answer."""
        answer_tokens: int = self._last["usage"]["completion_tokens"] if self._answered else 0
        return self.usage.completion_tokens - answer_tokens

    @property
    def _answered(self) -> bool:
        return self._last.get("kind") == "answer"


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
        words.append(f"about {_format_seconds(progress.seconds_left)} left")
    return ", ".join(words) + ".\n"


def _format_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
