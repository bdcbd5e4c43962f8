"""One conversation at a time: what every workflow needs, under token budgets."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from memagent.documents.chunking import halve
from memagent.documents.tokens import TokenEstimate, shorten
from memagent.errors import (
    ContextOverflowError,
    EmptyAnswerError,
    EngineError,
    ProblemTooLongError,
    SettingsError,
)
from memagent.prompts import Prompts
from memagent.reading.replies import ReplyReader, without_thought
from memagent.types import Chunk, Completion, Conversation, Engine, Message, Sampling, TokenCounter

_log = logging.getLogger(__name__)

_CHAT_TOKENS = 64  # for what a chat template puts around the messages
_LEAST_CHUNK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Budgets:
    """The parts of a prompt and its completion, in tokens. The defaults are the paper's 8K window."""

    problem_tokens: int = 1024
    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024

    @property
    def window_tokens(self) -> int:
        """What an update or answer needs at most, without the fixed text of the prompt."""
        update = self.chunk_tokens + 2 * self.memory_tokens
        return self.problem_tokens + max(update, self.memory_tokens + self.answer_tokens)

    def fit(self, window_tokens: int, fixed_tokens: int, given: frozenset[str]) -> Budgets:
        """These budgets, those not in `given` shrunk alike until all fit the model's window.

        `fixed_tokens` is the length of the prompt's own text. Raises `SettingsError` if even the
        smallest useful chunk does not fit beside what was given.
        """
        room = window_tokens - fixed_tokens - _CHAT_TOKENS
        if self.window_tokens <= room:
            return self
        names = [name for name in self.__dataclass_fields__ if name not in given]
        least, most = 0.0, 1.0
        for _ in range(20):
            scale = (least + most) / 2
            least, most = (
                (scale, most) if self._scaled(names, scale).window_tokens <= room else (least, scale)
            )
        fitted = self._scaled(names, least)
        shrunk = (getattr(fitted, name) for name in names if name != "problem_tokens")
        if fitted.window_tokens > room or min(shrunk, default=room) < _LEAST_CHUNK_TOKENS:
            raise SettingsError(
                f"the budgets need {self.window_tokens + fixed_tokens + _CHAT_TOKENS} tokens, the model's "
                f"window has {window_tokens}: lower --chunk-tokens, --memory-tokens or --answer-tokens"
            )
        return fitted

    def _scaled(self, names: list[str], scale: float) -> Budgets:
        return replace(self, **{name: int(getattr(self, name) * scale) for name in names})


@dataclass(slots=True)
class Reader:
    """Holds the conversations of one read.

    `count_tokens` is the model's tokenizer or a `TokenEstimate`, which learns here from each
    completion's usage. `chunk_limit` falls when the model's window proves smaller than expected.
    """

    problem: str
    engine: Engine
    prompts: Prompts
    budgets: Budgets
    sampling: Sampling
    count_tokens: TokenCounter
    early_exit: bool = False
    chunk_limit: int | None = None

    def __post_init__(self) -> None:
        tokens = self.count_tokens(self.problem)
        if tokens > self.budgets.problem_tokens:
            raise ProblemTooLongError(
                f"the problem has {tokens} tokens, its budget is {self.budgets.problem_tokens}: "
                "shorten it, put its material into the document, or raise --problem-tokens"
            )

    async def update(
        self, chunk: Chunk, memory: str, read_reply: ReplyReader
    ) -> AsyncGenerator[Conversation, None]:
        """Read one chunk: one conversation, or several where it had to be split to fit the window.

        A chunk of white space alone is passed over. Raises `EngineError`.
        """
        if not chunk.text.strip():
            return
        if whole := await self._update_whole(chunk, memory, read_reply):
            yield whole
            return
        for half in halve(chunk, self.count_tokens):
            async for conversation in self.update(half, memory, read_reply):
                memory = conversation.memory
                yield conversation

    async def _update_whole(self, chunk: Chunk, memory: str, read_reply: ReplyReader) -> Conversation | None:
        """The conversation over a chunk, or None if the chunk is too long for the model's window."""
        if self.chunk_limit and chunk.tokens > self.chunk_limit:
            return None
        messages = self.prompts.for_update(self.problem, chunk.text, memory)
        started = time.perf_counter()
        try:
            completion = await self._complete(messages, self.budgets.memory_tokens)
        except ContextOverflowError as error:
            if chunk.tokens <= _LEAST_CHUNK_TOKENS or len(chunk.text) == 1:
                raise EngineError(
                    f"a chunk of {chunk.tokens} tokens does not fit the model's window: lower "
                    f"--memory-tokens or shorten the problem ({error})"
                ) from error
            self.chunk_limit = chunk.tokens * 3 // 4  # halves are smaller, also uneven ones
            return None
        after, enough = read_reply(completion.text, memory)
        if not completion.text.strip():
            _log.warning("empty reply to chunk %d: the memory stays as it was", chunk.index)
        counted = 0 < completion.usage.completion_tokens <= self.budgets.memory_tokens
        if after != memory and not counted:
            after = shorten(after, self.budgets.memory_tokens, self.count_tokens)
        return Conversation(
            kind="update",
            chunk_index=chunk.index,
            messages=messages,
            completion=completion,
            memory=after,
            span=(chunk.start, chunk.end),
            source=chunk.source,
            enough=enough,
            seconds=time.perf_counter() - started,
        )

    async def answer(self, memory: str) -> Conversation:
        """Answer the problem from the memory. Raises `EngineError`; `EmptyAnswerError` for no answer."""
        messages = self.prompts.for_answer(self.problem, memory)
        started = time.perf_counter()
        completion = await self._complete(messages, self.budgets.answer_tokens)
        if not without_thought(completion.text):
            raise EmptyAnswerError(
                f"the model returned an empty answer (finish reason {completion.finish_reason!r}): "
                "raise --answer-tokens if it was still thinking, or try another --model"
            )
        return Conversation(
            kind="answer",
            chunk_index=None,
            messages=messages,
            completion=completion,
            memory=memory,
            seconds=time.perf_counter() - started,
        )

    async def _complete(self, messages: tuple[Message, ...], max_tokens: int) -> Completion:
        completion = await self.engine.complete(messages, replace(self.sampling, max_tokens=max_tokens))
        if isinstance(self.count_tokens, TokenEstimate):
            prompt = "".join(message.content for message in messages)
            self.count_tokens.observe(prompt, completion.usage.prompt_tokens)
        return completion
