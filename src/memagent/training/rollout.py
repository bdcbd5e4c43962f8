"""Attempts at examples and what they are worth: ordinary reads, with an engine that records what was sampled.

The conversations of an attempt form its trajectory. The reward comes from the answer, less a penalty for
overlong replies if there is one. An attempt that the policy fails, with an empty answer for instance, earns
0 and is trained on like any other. A failure of the engine ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memagent.concurrency import side_by_side
from memagent.documents.opening import text_document
from memagent.engines.wrappers import Wrapper
from memagent.errors import DocumentError, EmptyAnswerError, ProblemTooLongError, SettingsError
from memagent.reading.read import Read
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.tasks import TASKS
from memagent.tasks.scoring import SCORERS, score_reply
from memagent.training.data import load_function
from memagent.training.oracle import MakePlayer, Oracle
from memagent.types import (
    Completion,
    Conversation,
    Engine,
    Example,
    Group,
    Message,
    Model,
    Sampling,
    Trained,
    Trajectory,
)

_F_MEASURES = ("f1", "rouge_l")  # scorers that pay for parts of an answer, but not for guesses
_log = logging.getLogger(__name__)

Reward = Callable[[Example, Trajectory], float]
"""Maps an example and an attempt at it to the reward. Attempts without an answer get 0 without a call."""


def load_reward(name: str | None = None, scorer: str | None = None) -> Reward:
    """The reward that a function's `name` or a `scorer` of `SCORERS` gives; without either, `exact_reward`.

    Raises `SettingsError`, and so does a named function that fails or returns no finite number.
    """
    if name:
        return _guard(name, load_function(name))
    if scorer is None:
        return exact_reward
    if scorer not in SCORERS:
        raise SettingsError(f"there is no scorer {scorer!r}: use one of {', '.join(SCORERS)}")
    return lambda example, trajectory: score_reply(scorer, trajectory.answer, example.answers)


def _guard(name: str, function: Callable[..., Any]) -> Reward:
    def reward(example: Example, trajectory: Trajectory) -> float:
        try:
            number = float(function(example, trajectory))
        except Exception as error:  # it is the user's code
            problem = f"{type(error).__name__}: {error}"
            raise SettingsError(
                f"the reward {name} failed on the example {example.id} ({problem})"
            ) from error
        if not math.isfinite(number):
            raise SettingsError(
                f"the reward {name} is {number} for the example {example.id}: return a finite number"
            )
        return number

    return reward


def check_prompts(scorer: str | None, settings: ReadSettings, trained: Trained) -> None:
    """Raise `SettingsError` if the scorer is `boxed_match` and no prompt asks for a boxed answer."""
    prompts = choose_workflow(settings, trained)[1].prompts
    if scorer == "boxed_match" and "boxed" not in prompts.answer:
        raise SettingsError(
            r"the scorer boxed_match needs prompts that ask for \boxed{}: set read.workflow to overwrite and "
            "read.templates to presets/prompts/boxed.toml, or use exact_match"
        )


def exact_reward(example: Example, trajectory: Trajectory) -> float:
    """1 for the answer and nothing else, so that a list of guesses earns nothing.

    If several values are asked for, the F1 of their words, which falls with each that is missing or wrong.
    A task with its own F measure keeps it. If the document lacks the answer, 1 for saying so.
    """
    task, answers, scorer = TASKS.get(example.task), example.answers, "exact_match"
    if task and task.wants_all and len(answers) > 1:
        scorer, answers = "f1", (" ".join(answers),)
    elif task and task.scorer in _F_MEASURES:
        scorer = task.scorer
    return score_reply(scorer, trajectory.answer, answers)


def overlong_penalty(completion_tokens: int, limit_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft punishment for a completion near its limit (arXiv 2503.14476, section 3.4).

    It falls linearly from 0 to -1 over the last `buffer_tokens`, or over all if the limit is below that.
    """
    if buffer_tokens <= 0:
        return 0.0
    buffer_tokens = min(buffer_tokens, limit_tokens)
    over = completion_tokens - (limit_tokens - buffer_tokens)
    return -min(max(over, 0) / buffer_tokens, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How attempts are made and rewarded. `settings` apply to every read, temperature included.

    An attempt runs within `caller()`, which tells an engine that decodes in batches how many calls to expect.
    `traces` is a folder for the journals of attempts that have a seed.
    """

    engine: Engine
    settings: ReadSettings
    reward: Reward
    attempts: int = 1
    overlong_tokens: int = 0
    caller: Callable[[], AbstractContextManager[None]] = nullcontext
    traces: Path | None = None

    async def groups(self, examples: Sequence[Example], seeds: Sequence[str]) -> list[Group | None]:
        """Make all attempts at all examples concurrently; None for an example that cannot be read.

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
        made = [tuple(trajectory for task in own if (trajectory := task.result())) for own in running]
        return [Group(example, own) if own else None for example, own in zip(examples, made, strict=True)]

    async def attempt_if_readable(self, example: Example, seed: str | None = None) -> Trajectory | None:
        """Like `attempt`, but None and a warning if the problem is too long or the document has no text."""
        try:
            return await self.attempt(example, seed)
        except (ProblemTooLongError, DocumentError) as error:
            if seed is None or seed.endswith("/0"):  # of an example's attempts, only the first warns
                _log.warning("%s is skipped: %s", example.id, error)
            return None

    async def attempt(self, example: Example, seed: str | None = None) -> Trajectory:
        """Make and reward one attempt at an example; without a `seed`, each call uses that of the settings.

        Raises `EngineError` if the engine fails for good, `SettingsError` or `DocumentError` for an example
        that cannot be read.
        """
        recorder = _Recorder(self.engine, seed)
        document = text_document(example.document, is_example=True)
        trace = self._trace(seed)
        in_turn = self.settings.replace(lookahead=1)  # every conversation leads to the answer
        reading = Read(example.problem, document, recorder, in_turn, trace=trace, asks=False)
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
        """The path of an attempt's journal. One that an interrupted run left there is deleted."""
        if self.traces is None or seed is None:
            return None
        path = self.traces / f"{seed.replace('/', '-')}.jsonl"
        path.unlink(missing_ok=True)
        return path

    def _reward(self, example: Example, trajectory: Trajectory, reading: Read) -> float:
        """The reward of the answer (0 without one), less the largest penalty of any reply."""
        reward = 0.0 if trajectory.error else float(self.reward(example, trajectory))
        limits = {"update": reading.budgets.memory_tokens, "answer": reading.budgets.answer_tokens}
        return reward + min(
            (
                overlong_penalty(
                    len(conversation.completion.completion_ids),
                    limits[conversation.kind],
                    self.overlong_tokens,
                )
                for conversation in trajectory.conversations
            ),
            default=0.0,
        )


class _Recorder(Wrapper):
    """Gives each call its own seed and records the replies."""

    def __init__(self, engine: Engine, seed: str | None) -> None:
        super().__init__(engine)
        self._seed = seed
        self._begun = 0
        self._calls: list[tuple[tuple[Message, ...], Completion]] = []

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete with a seed of its own: one seed for all would give all calls the same random numbers."""
        if self._seed is not None:
            seed = random.Random(f"{self._seed}/{self._begun}").getrandbits(31)
            sampling = replace(sampling, seed=seed)
        self._begun += 1
        completion = await super().complete(messages, sampling)
        self._calls.append((messages, completion))
        return completion

    def rest(self, conversations: Sequence[Conversation]) -> list[Conversation]:
        """What was sampled beyond the conversations that the read yielded: an answer it rejected."""
        memory = conversations[-1].memory if conversations else ""
        return [
            Conversation("answer", None, messages, completion, memory)
            for messages, completion in self._calls[len(conversations) :]
        ]


async def collect(
    examples: Iterable[Example], rollout: Rollout, least_reward: float = 1.0, samples: int = 1
) -> AsyncGenerator[Trajectory, None]:
    """The attempts that earned `least_reward` or more, in the examples' order, without replies that were cut.

    Makes `samples` attempts at each example, as many at once as the engine takes calls. With a seed in the
    rollout's settings, each attempt and each of its calls gets its own. Raises `EngineError` if the engine
    fails for good, and `SettingsError` for no number and for samples that would all be the same.
    """
    settings = rollout.settings
    if math.isnan(least_reward):
        raise SettingsError("least_reward is nan: give a number")
    if samples > 1 and settings.temperature == 0:
        raise SettingsError(f"{samples} samples at temperature 0 are all the same: set a temperature")
    attempts = (
        (example, None if settings.seed is None else f"{settings.seed}/{number}/{sample}")
        for number, example in enumerate(examples)
        for sample in range(samples)
    )
    made = side_by_side(lambda pair: rollout.attempt_if_readable(*pair), attempts, rollout.engine.model.calls)
    async with aclosing(made) as done:
        async for trajectory in done:
            if trajectory and not trajectory.error and (trajectory.reward or 0.0) >= least_reward:
                # Imitation ends every reply, and nothing says where one that was cut would have ended.
                whole = [
                    conversation
                    for conversation in trajectory.conversations
                    if conversation.completion.finish_reason != "length"
                ]
                if whole:
                    yield replace(trajectory, conversations=tuple(whole))


async def solve(
    examples: Iterable[Example],
    settings: ReadSettings,
    model: Model,
    player: MakePlayer = Oracle,
    least_reward: float = 1.0,
) -> AsyncGenerator[Trajectory, None]:
    """The oracle's trajectory of each example, in order, with its reward; or that of another `player`.

    `settings` are those that training will read with, and `model` is the one being trained: its tokenizer
    and templates are used. Conversations in which the player erred are left out, and with a warning examples
    that earn less than `least_reward`, since the budgets leave no room for them. Raises `SettingsError` for
    an example that cannot be solved, and for budgets that do not fit.
    """
    prompts = choose_workflow(settings, model.trained)[1].prompts
    left_out = 0
    for example in examples:
        engine = player(example, prompts, model)
        rollout = Rollout(engine=engine, settings=settings, reward=exact_reward)
        trajectory = await rollout.attempt_if_readable(example)
        if trajectory is None:
            continue
        if (worth := trajectory.reward or 0.0) >= least_reward:
            good = [
                conversation
                for conversation in trajectory.conversations
                if conversation.completion.text not in engine.erred
            ]
            yield replace(trajectory, conversations=tuple(good))
        else:
            left_out += 1
            if left_out == 1:
                _log.warning("%s is left out: the budgets allow only a reward of %.2f", example.id, worth)
    if left_out > 1:
        _log.warning("%d examples in all are left out for that reason", left_out)
