"""Rollouts: ordinary reads of examples, with an engine that records what was sampled.

The conversations of a rollout form its trajectory. Its reward is that of the answer, less a penalty for
overlong replies if there is one. A rollout that the policy fails, with an empty answer for instance, earns 0
and is trained on like any other. A failure of the engine ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from memagent.documents.opening import text_document
from memagent.engines.openai import open_endpoint
from memagent.engines.wrappers import Wrapper
from memagent.errors import DocumentError, EmptyAnswerError, ProblemTooLongError, SettingsError
from memagent.reading.read import Read
from memagent.settings import ReadSettings, Settings
from memagent.training.rewards import Reward, exact_reward, overlong_penalty
from memagent.types import (
    Completion,
    Conversation,
    Engine,
    Example,
    Group,
    Message,
    Sampling,
    Trajectory,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How rollouts are made and rewarded. `settings` apply to every read, temperature included.

    A rollout runs within `caller()`, which tells an engine that decodes in batches how many calls to expect.
    `traces` is a folder for the journals of attempts that have a seed. With `only_verdicts`, all other
    replies are greedy, as they are not trained on.
    """

    engine: Engine
    settings: ReadSettings
    reward: Reward
    attempts: int = 1
    overlong_tokens: int = 0
    caller: Callable[[], AbstractContextManager[None]] = nullcontext
    traces: Path | None = None
    only_verdicts: bool = False

    async def groups(self, examples: Sequence[Example], seeds: Sequence[str]) -> list[Group | None]:
        """Make all rollouts of all examples concurrently; None for an example that cannot be read.

        A seed determines the randomness of its example's group. Raises `EngineError` if the engine
        fails for good.
        """
        numbers = range(self.attempts)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    [
                        tasks.create_task(self.attempt_if_readable(example, f"{seed}/{number}"))
                        for number in numbers
                    ]
                    for example, seed in zip(examples, seeds, strict=True)
                ]
        except ExceptionGroup as failures:  # one is enough
            first = failures.exceptions[0]
            raise first from first.__cause__
        rollouts = [tuple(trajectory for task in own if (trajectory := task.result())) for own in running]
        return [Group(example, own) if own else None for example, own in zip(examples, rollouts, strict=True)]

    async def attempt_if_readable(self, example: Example, seed: str | None = None) -> Trajectory | None:
        """Like `attempt`, but None and a warning if the problem is too long or the document has no text."""
        try:
            return await self.attempt(example, seed)
        except (ProblemTooLongError, DocumentError) as error:
            if seed is None or seed.endswith("/0"):  # of an example's rollouts, only the first warns
                _log.warning("%s is skipped: %s", example.id, error)
            return None

    async def attempt(self, example: Example, seed: str | None = None) -> Trajectory:
        """Roll out one example and reward it; without a `seed`, each call uses that of the settings.

        Raises `EngineError` if the engine fails for good, `SettingsError` or `DocumentError` for an example
        that cannot be read.
        """
        recorder = _Recorder(self.engine, seed, self.only_verdicts)
        document = text_document(example.document, is_example=True)
        trace = self._trace(seed)
        settings = self.settings.without_shortcuts()  # every conversation leads to the answer
        reading = Read(example.problem, document, recorder, settings, trace=trace, purpose="train")
        conversations: list[Conversation] = []
        error = None
        try:
            with self.caller():
                async with aclosing(aiter(reading)) as steps:
                    async for conversation in steps:
                        conversations.append(conversation)
        except EmptyAnswerError as failure:
            error = str(failure)
            conversations += recorder.rest(conversations)
        trajectory = Trajectory(example.id, tuple(conversations), reading.answer, error=error)
        return replace(trajectory, reward=self._reward(example, trajectory, reading))

    def _trace(self, seed: str | None) -> Path | None:
        """The path of a rollout's journal. One that an interrupted run left there is deleted."""
        if self.traces is None or seed is None:
            return None
        path = self.traces / f"{seed.replace('/', '-')}.jsonl"
        path.unlink(missing_ok=True)
        return path

    def _reward(self, example: Example, trajectory: Trajectory, reading: Read) -> float:
        """The reward of the answer (0 without one), less the largest penalty of any reply."""
        reward = 0.0 if trajectory.error else float(self.reward(example, trajectory))
        budgets = reading.budgets
        limits = {"update": budgets.update_reply_tokens, "answer": budgets.answer_reply_tokens}
        penalties = (
            overlong_penalty(len(reply.completion.completion_ids), limits[reply.kind], self.overlong_tokens)
            for reply in trajectory.conversations
        )
        return reward + min(penalties, default=0.0)


class _Recorder(Wrapper):
    """Gives each call its own seed and records the replies."""

    def __init__(self, engine: Engine, seed: str | None, only_verdicts: bool = False) -> None:
        super().__init__(engine)
        self._seed = seed
        self._only_verdicts = only_verdicts
        self._count = 0
        self._calls: list[tuple[tuple[Message, ...], Completion]] = []

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with a seed of its own: one seed for all would give all calls the same random numbers.

        Replies that are not trained on are greedy.
        """
        if self._only_verdicts and not sampling.verdict:
            sampling = replace(sampling, temperature=0.0)
        if self._seed is not None:
            seed = random.Random(f"{self._seed}/{self._count}").getrandbits(31)
            sampling = replace(sampling, seed=seed)
        self._count += 1
        completion = await self.engine.complete(messages, sampling)
        self._calls.append((messages, completion))
        return completion

    def rest(self, conversations: Sequence[Conversation]) -> list[Conversation]:
        """What was sampled beyond the conversations that the read yielded: an answer it rejected."""
        memory = conversations[-1].memory if conversations else ""
        return [
            Conversation("answer", None, messages, completion, memory)
            for messages, completion in self._calls[len(conversations) :]
        ]


async def roll_out(example: Example, settings: Settings, reward: Reward = exact_reward) -> Trajectory:
    """Make and reward one attempt through a trainer's gateway, the endpoint of the settings' `base_url`.

    The gateway decides how replies are drawn, so `temperature`, `top_p`, `seed` and `thinking` are not sent,
    and records each reply as a branch of its own: none is asked for twice because of what it says. Raises
    `EngineError` if the gateway fails, `SettingsError` or `DocumentError` for an example that cannot be read.
    """
    if not settings.engine.base_url:
        raise SettingsError("which gateway? set `base_url`, or OPENAI_BASE_URL, to what the trainer gives")
    async with aclosing(await open_endpoint(settings.engine, gateway=True)) as engine:
        return await Rollout(engine=engine, settings=settings.read, reward=reward).attempt(example)
