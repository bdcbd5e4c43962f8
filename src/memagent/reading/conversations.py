"""One conversation at a time: what every workflow needs, under token budgets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from memagent.documents.chunking import halve
from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, fewest_tokens, shorten
from memagent.errors import (
    ContextOverflowError,
    EmptyAnswerError,
    EngineError,
    ProblemTooLongError,
    SettingsError,
)
from memagent.prompts import UNCHANGED, Prompts
from memagent.prompts.thoughts import thinking_advice, without_thought
from memagent.reading.budgets import MIN_CHUNK_TOKENS, Budgets
from memagent.reading.passes import Passes
from memagent.reading.replies import MemoryChange, ReplyReader, read_plain_note, settle
from memagent.reading.verdicts import log_odds
from memagent.settings import DEFAULT_WINDOW_TOKENS, ReadSettings
from memagent.types import ESTIMATE, Chunk, Completion, Conversation, Engine, Message, Model, Sampling

Chunks = AsyncGenerator[Chunk, None]
Conversations = AsyncGenerator[Conversation, None]

UpdatePrompt = Callable[[str, str], tuple[Message, ...]]
"""Makes the prompt of an update from what is shown of a chunk and the memory to be rewritten."""

Purpose = Literal["read", "train", "forecast"]
"""What a read is for. In training and for a forecast, replies are taken as they are: none is asked about."""

MAX_IGNORED = 200
"""How many characters of a reply that left the memory as it was are recorded beside it."""

_SHARE_OF_MEMORY = 0.8  # for one chunk: the place of each passage is written beside it
_SLACK_TOKENS = 96  # for the chat template, and for tokens that differ where texts are joined


@dataclass(frozen=True, slots=True)
class Reading:
    """What the conversations of one read have in common: a workflow holds them through this.

    It has no state, so conversations may run side by side. Without `answers`, the read ends with its memory:
    a workflow that keeps one then makes no answer.
    """

    problem: str
    engine: Engine
    prompts: Prompts
    budgets: Budgets
    passes: Passes
    settings: ReadSettings = field(default_factory=ReadSettings)
    answers: bool = True
    purpose: Purpose = "read"

    @property
    def model(self) -> Model:
        """The model that reads."""
        return self.engine.model

    @property
    def window_tokens(self) -> int:
        """The model's window, or the paper's if it is unknown."""
        return self.model.window_tokens or DEFAULT_WINDOW_TOKENS

    async def count_tokens(self, text: str) -> int:
        """The number of tokens in a text, counted in a thread."""
        return await asyncio.to_thread(self.model.count_tokens, text)

    async def count_room(self) -> int:
        """How many tokens a prompt leaves for the document. Raises `SettingsError` if none are left."""
        fixed = await self.count_tokens(self.prompts.bare_text) + await self.count_tokens(self.problem)
        reply = self.budgets.answer_reply_tokens
        room = self.window_tokens - fixed - reply - _SLACK_TOKENS
        if room <= _SLACK_TOKENS:
            raise SettingsError(
                f"a window of {self.window_tokens} tokens leaves no room for a document beside a reply of "
                f"{reply} tokens: lower `answer_tokens`, or `thinking_tokens` if the model is to think"
            )
        return room

    async def check_problem(self) -> None:
        """Raise `ProblemTooLongError` if the problem exceeds its budget."""
        tokens = await self.count_tokens(self.problem)
        if tokens > self.budgets.problem_tokens:
            raise ProblemTooLongError(
                f"the problem has {tokens} tokens, but its budget is {self.budgets.problem_tokens}: "
                "shorten it, put its material into the document, or raise `problem_tokens`"
            )

    async def update(
        self, chunk: Chunk, memory: str, read_reply: ReplyReader, ask: UpdatePrompt | None = None
    ) -> Conversations:
        """Read one chunk: one conversation, plus one more if the model has to be asked what its reply was.

        `ask` makes the prompt if the memory that is shown is not the one that is rewritten, or if another
        template is used. A chunk that does not fit the window is split and read in several conversations.
        A blank chunk is skipped. Raises `EngineError`.
        """
        if not chunk.text.strip():
            return
        if whole := await self._update_whole(chunk, memory, read_reply, ask):
            for conversation in whole:
                yield conversation
            return
        for half in await asyncio.to_thread(halve, chunk, self.model.count_tokens):
            async for conversation in self.update(half, memory, read_reply, ask):
                memory = conversation.memory
                yield conversation

    async def _update_whole(
        self, chunk: Chunk, memory: str, read_reply: ReplyReader, ask: UpdatePrompt | None
    ) -> list[Conversation]:
        """The conversations over a chunk, or none if the chunk is too long for the model's window."""
        if ask:
            messages = ask(chunk.shown, memory)
        else:
            messages = self.prompts.fill("update", problem=self.problem, chunk=chunk.shown, memory=memory)
        try:
            completion, seconds = await self._complete(messages, self.budgets.memory_tokens)
        except ContextOverflowError as error:
            if chunk.tokens <= MIN_CHUNK_TOKENS or len(chunk.text) == 1:
                raise EngineError(
                    f"a chunk of {chunk.tokens} tokens does not fit the model's window: lower "
                    f"`memory_tokens`, or shorten the problem or the templates ({error})"
                ) from error
            return []
        update = Conversation("update", None, messages, completion, memory, seconds=seconds).about(chunk)
        change = read_reply(completion.text, memory, self.prompts)
        if not isinstance(change, MemoryChange):
            change = await change
        if change.action == "ask":
            return await self._ask(update, change)
        if change.action == "note":
            return await self._note(update, chunk)
        return [await self._after(update, change, completion)]

    async def _ask(self, update: Conversation, change: MemoryChange) -> list[Conversation]:
        """The update, and the conversation that asks what its reply was, with the resulting memory.

        If that question does not fit the window, it is not asked, and memory and reply are both kept.
        """
        check = await self._follow(
            update, self.prompts.fill("check", problem=self.problem, memory=update.memory, reply=change.text)
        )
        reply = check.completion.text if check else ""
        settled = await asyncio.to_thread(settle, change, reply, update.memory, self.fits_memory)
        last = await self._after(check or update, settled, update.completion)
        return [update, last] if check else [last]

    async def _note(self, update: Conversation, chunk: Chunk) -> list[Conversation]:
        """The update, whose reply was of no use, and the conversation that asks for a note instead.

        The note is kept below the memory if it is to the purpose and there is room. If the question does not
        fit the window, it is not asked.
        """
        first = await self._after(update, MemoryChange("keep"), update.completion)
        follow_up = await self._follow(
            update, self.prompts.fill("note", problem=self.problem, chunk=chunk.shown)
        )
        if follow_up is None:
            return [first]
        note = self.prompts.restore(without_thought(follow_up.completion.text))
        change = read_plain_note(note, update.memory, self.problem, chunk.text)
        if change.action == "replace" and not await asyncio.to_thread(self.fits_memory, change.text):
            change = MemoryChange("keep")
        return [first, await self._after(follow_up, change, follow_up.completion)]

    async def _follow(self, update: Conversation, messages: tuple[Message, ...]) -> Conversation | None:
        """A second conversation over the chunk of an update; None if its prompt does not fit the window."""
        try:
            completion, seconds = await self._complete(messages, self.budgets.memory_tokens)
        except ContextOverflowError:
            return None
        return replace(update, messages=messages, completion=completion, seconds=seconds)

    async def _after(self, update: Conversation, change: MemoryChange, written: Completion) -> Conversation:
        """The update with the memory that the change makes of it; `written` is the completion of its text."""
        before, after = update.memory, change.memory_after(update.memory)
        reply = without_thought(written.text)
        ignored = reply[:MAX_IGNORED] if after == before and reply != UNCHANGED else ""
        update = replace(update, enough=change.enough, ignored=ignored, memory=after)
        update = replace(update, refused=change.refused, given_up=change.given_up)
        if after == before or self._is_within_budget(after, written):
            return update
        return await self.with_memory(update, after)

    def fits_memory(self, text: str) -> bool:
        """Whether a text is within the memory's budget. May block: it counts tokens."""
        return self.model.count_tokens(text) <= self.budgets.memory_tokens

    def _is_within_budget(self, memory: str, written: Completion) -> bool:
        """Whether the engine's count shows that a memory fits, or no count shows that it does not."""
        budget, counted = self.budgets.memory_tokens, written.usage.completion_tokens
        if counted and not written.usage.estimated:
            return counted <= budget and len(memory) <= MAX_CHARACTERS_PER_TOKEN * counted
        return self.model.tokenizer == ESTIMATE and fewest_tokens(memory) <= budget

    async def with_memory(self, update: Conversation, memory: str) -> Conversation:
        """The update with this memory, cut to its budget; if it is cut, the finish reason says so."""
        budget, count = self.budgets.memory_tokens, self.model.count_tokens
        shortened = await asyncio.to_thread(shorten, memory, budget, count)
        if shortened != memory:
            update = replace(update, completion=replace(update.completion, finish_reason="length"))
        return replace(update, memory=shortened)

    async def judge(self, chunk: Chunk, known: str = "") -> Conversations:
        """Ask whether a chunk helps with the problem, beside what is `known`.

        One conversation, or more if the chunk fits neither the window nor the memory, which may have to hold
        it. It has no verdict if the engine tells no log-probabilities, or those of other words. Raises
        `EngineError`.
        """
        conversation = None
        if chunk.tokens <= max(_SHARE_OF_MEMORY * self.budgets.memory_tokens, MIN_CHUNK_TOKENS):
            try:
                conversation = await self.judge_text(chunk.shown, known=known)
            except ContextOverflowError:
                if chunk.tokens <= MIN_CHUNK_TOKENS:
                    raise
        if conversation is None:
            for half in await asyncio.to_thread(halve, chunk, self.model.count_tokens):
                async for conversation in self.judge(half, known):
                    yield conversation
            return
        yield conversation.about(chunk)

    async def judge_text(self, text: str, memory: str = "", known: str = "") -> Conversation:
        """As `judge`, of a text that is no chunk. Raises `ContextOverflowError` if it does not fit."""
        name = "further" if known else "verdict"
        messages = self.prompts.fill(name, problem=self.problem, chunk=text, memory=known)
        return await self.ask_verdict(messages, memory)

    async def ask_verdict(self, messages: tuple[Message, ...], memory: str) -> Conversation:
        """As `judge_text`, of a prompt that asks for Yes or No."""
        completion, seconds = await self._complete(messages, 1, 0, verdict=True)
        completion = replace(completion, finish_reason="stop")  # one word was asked for: it is not cut
        odds = log_odds(completion.alternatives)
        return Conversation("update", None, messages, completion, memory, seconds=seconds, verdict=odds)

    async def aside(
        self, messages: tuple[Message, ...], memory: str, max_tokens: int, json_schema: str = ""
    ) -> Conversation:
        """A conversation that reads no chunk and leaves the memory as it is. Raises `EngineError`."""
        completion, seconds = await self._complete(messages, max_tokens, json_schema=json_schema)
        return Conversation("update", None, messages, completion, memory, seconds=seconds)

    async def conclude(self, memory: str, text: str | None = None, doubtful: bool = False) -> Conversations:
        """Answer from the memory, or from the `text` that stands in its place, if an answer is wanted.

        An empty memory is not answered from: the model would have to invent. Raises as `answer` does.
        """
        if self.answers and memory:
            yield await self.answer(memory if text is None else text, memory, doubtful)

    async def answer(self, text: str, memory: str = "", doubtful: bool = False) -> Conversation:
        """Answer the problem from `text`, which is the memory or stands in its place.

        `memory` is recorded as the memory. If it is `doubtful` whether the answer is there, the model may say
        that it is not. Raises `EngineError`, or `EmptyAnswerError` for an empty answer.
        """
        may_decline = doubtful and "doubt" in self.prompts.own  # which templates for one prompt may lack
        name, budgets = "doubt" if may_decline else "answer", self.budgets
        messages = self.prompts.fill(name, problem=self.problem, memory=text)
        thought_tokens = budgets.answer_thought_tokens
        completion, seconds = await self._complete(messages, budgets.answer_tokens, thought_tokens)
        if not without_thought(completion.text):
            raise EmptyAnswerError(
                f"the model returned an empty answer (finish reason {completion.finish_reason!r}): if it "
                f"was still thinking, {thinking_advice(thought_tokens > 0)}; otherwise try "
                "another `model`"
            )
        return Conversation("answer", None, messages, completion, memory, seconds=seconds, doubtful=doubtful)

    async def _complete(
        self,
        messages: tuple[Message, ...],
        max_tokens: int,
        thought_tokens: int | None = None,
        verdict: bool = False,
        json_schema: str = "",
    ) -> tuple[Completion, float]:
        """The engine's completion, and how many seconds it took; it thinks if a thought has room."""
        settings = self.settings
        thought_tokens = self.budgets.update_thought_tokens if thought_tokens is None else thought_tokens
        sampling = Sampling(
            max_tokens + thought_tokens,
            settings.temperature,
            settings.top_p,
            settings.seed,
            thinking=thought_tokens > 0,
            verdict=verdict,
            json_schema=json_schema,
        )
        started = time.perf_counter()
        completion = await self.engine.complete(messages, sampling)
        return completion, time.perf_counter() - started
