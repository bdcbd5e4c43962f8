"""POST /v1/chat/completions: what fits the window goes straight to the model, the rest is read."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi import Response
from fastapi.responses import JSONResponse

from memagent.concurrency import drain
from memagent.errors import ContextOverflowError
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.reading.workflows import chosen_workflow
from memagent.server.bodies import ChatRequest
from memagent.server.direct import Direct, forwarded_body, until_stop
from memagent.server.errors import ApiError, storing
from memagent.server.limits import Limits
from memagent.server.metrics import Counted, Metrics
from memagent.server.preparing import Prepared, fits, prepare
from memagent.server.store import Store
from memagent.server.stream import DONE, Reply, streamed, told_sources
from memagent.settings import ReadSettings
from memagent.types import Conversation, Engine, Usage

ALIAS = "memagent"
"""A name that clients can use for the model, whichever it is."""


@dataclass(slots=True)
class Chats:
    """Answers chats with one engine."""

    engine: Engine
    settings: ReadSettings
    store: Store
    limits: Limits
    metrics: Metrics
    direct: Direct = field(init=False)
    _reading: set[str] = field(default_factory=set)  # digests of the reads under way

    def __post_init__(self) -> None:
        """Count the budgets. Blocks."""
        _, workflow = chosen_workflow(self.settings, self.engine.model.trained)
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
            pieces = self._streamed(owner, chat, raw, reply)
            return await streamed(pieces, reply.chunk({}), self.limits.keep_alive_seconds)
        if await asyncio.to_thread(fits, chat, model, self.direct.answer_tokens):
            try:
                return await self.direct.whole(chat, forwarded_body(raw, model.name), reply)
            except ContextOverflowError as error:
                return JSONResponse(await self._whole(owner, chat, reply, error))
        return JSONResponse(await self._whole(owner, chat, reply))

    async def _streamed(
        self, owner: str, chat: ChatRequest, raw: bytes, reply: Reply
    ) -> AsyncGenerator[bytes, None]:
        model, overflow = self.engine.model, None
        if await asyncio.to_thread(fits, chat, model, self.direct.answer_tokens):
            body = forwarded_body(raw, model.name)
            try:
                async with aclosing(self.direct.stream(chat, body, reply)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except ContextOverflowError as error:
                overflow = error
        async with _Reading(self, owner, chat, overflow) as reading:
            yield reply.chunk({"role": "assistant", "content": ""})
            async with aclosing(reading.conversations()) as conversations:
                async for conversation in conversations:
                    if conversation.kind == "update":
                        yield reply.chunk({"reasoning_content": progress_line(reading.read.progress)})
            yield reply.chunk({"content": reading.answer})
            if beside := reading.beside:
                yield reply.chunk(beside)
            yield reply.chunk({}, reading.finish_reason)
            if chat.wants_usage:
                yield reply.usage(reading.usage, reading.thoughts)
            await reading.finish()
            yield DONE

    async def _whole(
        self, owner: str, chat: ChatRequest, reply: Reply, overflow: ContextOverflowError | None = None
    ) -> dict[str, object]:
        async with _Reading(self, owner, chat, overflow) as reading:
            await drain(reading.conversations())
            await reading.finish()
            told = (reading.answer, reading.finish_reason, reading.usage, reading.thoughts)
            return reply.whole(*told, reading.beside)


class _Reading:
    """The read that answers a chat, as an async context manager.

    Its journal is kept until it is finished: the same chat, sent again, continues there. A kept journal that
    it cannot continue (because it is damaged, or the model's window has changed) is ignored.
    """

    def __init__(
        self, chats: Chats, owner: str, chat: ChatRequest, overflow: ContextOverflowError | None
    ) -> None:
        self._chats, self._owner, self._chat, self._overflow = chats, owner, chat, overflow
        self._digest: str | None = None
        self._last: Conversation | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # for files that come with the chat

    async def __aenter__(self) -> _Reading:
        try:
            await asyncio.to_thread(self._chats.store.check_in_place)
            if any(turn.files for turn in self._chat.messages):
                with storing():
                    self._folder = await asyncio.to_thread(
                        tempfile.TemporaryDirectory, prefix="files-", dir=self._chats.store.chats
                    )
            prepared = await asyncio.to_thread(self._prepared)
            self.read = Read(
                prepared.problem,
                prepared.document,
                Counted(self._chats.engine, self._chats.metrics),
                prepared.settings,
                trace=await self._journals(prepared.digest),
                resume=True,
            )
            await asyncio.to_thread(lambda: self.read.budgets)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._digest:
            self._chats._reading.discard(self._digest)
        if self._folder:
            await asyncio.to_thread(self._folder.cleanup)

    def _prepared(self) -> Prepared:
        chats = self._chats
        try:
            return prepare(
                self._chat,
                self._owner,
                chats.engine.model,
                chats.settings,
                chats.store,
                Path(self._folder.name) if self._folder else chats.store.chats,
            )
        except ApiError:
            if self._overflow:  # it seemed to fit, so the client did not ask for a read
                raise self._overflow from None
            raise

    async def _journals(self, digest: str) -> list[Path]:
        """The kept journals of this chat, and a new one; only the new one if the same chat is being read."""
        store = self._chats.store
        new = store.chats / f"{digest}-{uuid4().hex[:8]}.jsonl"
        if digest in self._chats._reading:
            return [new]
        self._chats._reading.add(digest)
        self._digest = digest
        return [*await asyncio.to_thread(store.chat_journals, digest), new]

    async def conversations(self) -> AsyncGenerator[Conversation, None]:
        """The conversations of the read."""
        async with aclosing(aiter(self.read)) as conversations:
            async for self._last in conversations:
                yield self._last
                await asyncio.to_thread(self._chats.store.check_in_place)  # before more is paid for

    async def finish(self) -> None:
        """Delete the journal: a client that asks again wants another answer."""
        if trace := self.read.trace:
            await asyncio.to_thread(trace.unlink, missing_ok=True)

    @property
    def answer(self) -> str:
        """The answer, up to where the client wants it to stop."""
        return until_stop(self.read.answer, self._chat.stops)[0]

    @property
    def beside(self) -> dict[str, Any]:
        """Extra fields of the answer's message: whether it was found, its sources, what was passed over."""
        told = told_sources(self.answer, self.read.statements) if self.read.statements else {}
        told["memagent"] = told.get("memagent", {}) | {"found": self.read.has_answer}
        if self.read.settings.screen:
            now = self.read.progress
            counts = {"chunks": now.chunks, "passed_over": now.passed_over}
            told["memagent"] |= counts
        return told

    @property
    def finish_reason(self) -> str:
        """Why the answer ended."""
        was_cut = until_stop(self.read.answer, self._chat.stops)[1]
        if was_cut or not (self._last and self._last.kind == "answer"):
            return "stop"
        return self._last.completion.finish_reason

    @property
    def usage(self) -> Usage:
        """The tokens of all conversations."""
        return self.read.progress.spent.usage

    @property
    def thoughts(self) -> int:
        """The completion tokens of all conversations before the answer."""
        answered = self._last and self._last.kind == "answer"
        last = self._last.completion.usage.completion_tokens if self._last and answered else 0
        return self.read.progress.spent.completion_tokens - last


def progress_line(progress: Progress) -> str:
    """The progress of a read, as a line that clients show as a thought."""
    chunks = f"chunk {progress.chunks}"
    if progress.chunks_in_all:
        chunks += f" of about {progress.chunks_in_all}"
    if progress.passes > 1:
        chunks += f", again {progress.reread} of {progress.to_reread}"
    words = [f"Read {chunks}", f"{progress.document_tokens:,} tokens"]
    if progress.passed_over:
        words.append(f"{progress.passed_over} passed over")
    if progress.seconds_left:
        words.append(f"about {_duration(progress.seconds_left)} left")
    return ", ".join(words) + ".\n"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
