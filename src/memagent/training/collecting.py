"""Collect trajectories to fine-tune on: those of another model, or the oracle's own."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace

from memagent.concurrency import map_concurrent
from memagent.errors import SettingsError
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.training.oracle import MakeExpert, Oracle
from memagent.training.rewards import exact_reward
from memagent.training.rollout import Rollout
from memagent.types import Example, Model, Trajectory

_log = logging.getLogger(__name__)


async def collect(
    examples: Iterable[Example],
    rollout: Rollout,
    least_reward: float = 1.0,
    samples: int = 1,
    on_attempt: Callable[[Trajectory | None], None] = lambda _attempt: None,
) -> AsyncGenerator[Trajectory, None]:
    """The trajectories that earned `least_reward` or more, in the examples' order, without cut replies.

    Makes `samples` attempts at each example, as many at once as the engine takes calls. With a seed in the
    rollout's settings, each attempt and each of its calls gets its own. `on_attempt` is called with each
    attempt, None for an example that cannot be read. Raises `EngineError` if the engine fails for good, and
    `SettingsError` for no number and for samples that would all be the same.
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
    trajectories = map_concurrent(
        lambda pair: rollout.attempt_if_readable(*pair), attempts, rollout.engine.model.calls
    )
    async with aclosing(trajectories) as done:
        async for trajectory in done:
            on_attempt(trajectory)
            if trajectory and not trajectory.error and (trajectory.reward or 0.0) >= least_reward:
                # Training ends every reply, and nothing says where one that was cut would have ended.
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
    expert: MakeExpert = Oracle,
    least_reward: float = 1.0,
) -> AsyncGenerator[Trajectory, None]:
    """The oracle's trajectory of each example, in order, with its reward; or that of another `expert`.

    `settings` are those that training will read with, and `model` is the one being trained: its tokenizer
    and templates are used. Conversations in which the expert erred are left out, and with a warning examples
    that earn less than `least_reward`, since the budgets leave no room for them. Raises `SettingsError` for
    an example that cannot be solved, and for budgets that do not fit.
    """
    prompts = choose_workflow(settings, model.trained)[1].prompts
    left_out = 0
    for example in examples:
        engine = expert(example, prompts, model)
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
