"""Attempts at examples: the package's own read, with an engine that keeps what was sampled.

The conversations of an attempt are its trajectory, the reward comes from its answer alone. What the policy
does wrong, an empty answer for instance, is an attempt with reward 0 that is trained on like any other; what
goes wrong with the engine ends the run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace

from memagent.documents.opening import text_document
from memagent.errors import EmptyAnswerError
from memagent.reading.read import Read
from memagent.settings import Settings
from memagent.training.rewards import Reward, overlong_penalty
from memagent.types import (
    Completion,
    Conversation,
    Engine,
    Example,
    Group,
    Message,
    Sampling,
    Trajectory,
    model_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How attempts are made and rewarded. `settings` are those of every read, temperature included."""

    engine: Engine
    settings: Settings
    reward: Reward
    attempts: int = 1
    overlong_tokens: int = 0

    async def groups(self, examples: Sequence[Example], seeds: Sequence[str]) -> list[Group]:
        """All attempts at all examples, side by side. A seed names the randomness of its example's group.

        Raises `EngineError` if the engine fails for good.
        """
        pairs = [(example, f"{seed}/{number}") for example, seed in zip(examples, seeds, strict=True)
                 for number in range(self.attempts)]  # fmt: skip
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self.attempt(example, seed)) for example, seed in pairs]
        except ExceptionGroup as failures:  # the first of them says enough
            raise failures.exceptions[0] from None
        done = [task.result() for task in running]
        size = self.attempts
        return [Group(example, tuple(done[index * size : index * size + size]))
                for index, example in enumerate(examples)]  # fmt: skip

    async def attempt(self, example: Example, seed: str | None = None) -> Trajectory:
        """One attempt at an example, with its reward; without a `seed` each call has that of the settings.

        Raises `EngineError` if the engine fails for good, `SettingsError` for budgets that do not fit.
        """
        recorder = _Recorder(self.engine, seed)
        reading = Read(example.problem, text_document(example.document), recorder, self.settings)
        conversations: list[Conversation] = []
        error = None
        announced = getattr(self.engine, "caller", nullcontext)  # an engine with batches wants them full
        try:
            with announced():
                async with aclosing(aiter(reading)) as steps:
                    async for conversation in steps:
                        conversations.append(conversation)
        except EmptyAnswerError as failure:
            error = str(failure)
            conversations += recorder.rest(conversations)
        trajectory = Trajectory(example.id, tuple(conversations), reading.answer, error=error)
        return replace(trajectory, reward=self._reward(example, trajectory, reading))

    def _reward(self, example: Example, trajectory: Trajectory, reading: Read) -> float:
        """The reward of the answer, less what is taken off for the longest reply; 0 for a failed attempt."""
        if trajectory.error:
            return 0.0
        reward = float(self.reward(example, trajectory))
        limits = {"update": reading.budgets.memory_tokens, "answer": reading.budgets.answer_tokens}
        return reward + min(
            (
                overlong_penalty(len(it.completion.completion_ids), limits[it.kind], self.overlong_tokens)
                for it in trajectory.conversations
            ),
            default=0.0,
        )


class _Recorder:
    """An engine in front of another: gives each call a seed of its own, and keeps what came back."""

    def __init__(self, engine: Engine, seed: str | None) -> None:
        self.model = model_of(engine)
        self._engine = engine
        self._seed = seed
        self._calls: list[tuple[tuple[Message, ...], Completion]] = []

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """As the engine behind does it. One seed for all calls would give them the same random numbers."""
        if self._seed is not None:
            seed = random.Random(f"{self._seed}/{len(self._calls)}").getrandbits(31)
            sampling = replace(sampling, seed=seed)
        completion = await self._engine.complete(messages, sampling)
        self._calls.append((messages, completion))
        return completion

    def rest(self, conversations: Sequence[Conversation]) -> list[Conversation]:
        """What was sampled beyond the conversations that came out of the read: an answer it refused."""
        memory = conversations[-1].memory if conversations else ""
        return [
            Conversation("answer", None, messages, completion, memory)
            for messages, completion in self._calls[len(conversations) :]
        ]

    async def aclose(self) -> None:
        """The engine behind stays open."""
