"""Imitation before reinforcement: conversations of good trajectories, as sequences to learn from."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memagent.engines.torch.engine import chat_ids
from memagent.engines.torch.prefixes import shared_beginnings
from memagent.errors import SettingsError
from memagent.training.data import Data
from memagent.training.imitation.oracle import solve
from memagent.training.imitation.trajectories import read_trajectories
from memagent.training.rewards import load_function
from memagent.training.run import RunState
from memagent.training.settings import TrainingSettings, WarmStartSettings
from memagent.types import Conversation, Example, Model, TrainingSequence, Trajectory


async def warm_start(run: RunState) -> None:
    """Imitate until `warm_start.steps` are taken; nothing where they were, or reinforcement has begun."""
    wanted, position, seed = run.settings.warm_start, run.position, run.settings.seed
    if position.step or position.warm_steps == wanted.steps:
        return
    learner = run.learner()
    pool = await load_imitations(run.settings, run.data, run.policy.tokenizer, run.engine.model)
    run.observer.begin(position.warm_steps + 1, wanted.steps, "warm_start")
    while position.warm_steps < wanted.steps:
        await asyncio.sleep(0)  # an interrupt takes effect between steps
        drawn = draw(pool, wanted, random.Random(f"{seed}/warm start/{position.warm_steps}"))
        sums = learner.imitate(run.ranks.share(drawn), learning_rate(wanted, position.warm_steps))
        position.warm_steps += 1
        run.report("warm_start", position.warm_steps, run.means(sums))
        if position.warm_steps % run.settings.checkpoint_every == 0 and position.warm_steps < wanted.steps:
            run.save(learner)
    # Reinforcement begins with an optimizer of its own, and with examples behind those that were imitated.
    position.example = 0 if is_file(wanted.trajectories) else wanted.count
    run.save(None)


def learning_rate(settings: WarmStartSettings, step: int) -> float:
    """The rate of the step after `step` others: a linear warm-up, and a linear decay to zero at the end."""
    rising = min(1.0, (step + 1) / max(settings.warmup_steps, 1))
    falling = min(1.0, (settings.steps - step) / max(settings.decay_steps, 1))
    return settings.learning_rate * rising * falling


async def load_imitations(
    settings: TrainingSettings, data: Data, tokenizer: Any, model: Model
) -> list[list[TrainingSequence]]:
    """All conversations of the warm start's trajectories; those whose prompts begin alike are together.

    At most `warm_start.neighbours` are. Raises `SettingsError` if there are no conversations.
    """
    trajectories = await _trajectories(settings, data, model)
    sequences = [
        imitation(conversation, tokenizer)
        for trajectory in trajectories
        for conversation in trajectory.conversations
    ]
    if not sequences:
        raise SettingsError(
            f"warm_start.trajectories {settings.warm_start.trajectories!r} holds no conversation"
        )
    most = settings.warm_start.neighbours
    return [
        [sequences[index] for index in members[start : start + most]]
        for _, members in shared_beginnings([sequence.prompt_ids for sequence in sequences])
        for start in range(0, len(members), most)
    ]


def draw(
    pool: Sequence[Sequence[TrainingSequence]], settings: WarmStartSettings, source: random.Random
) -> list[TrainingSequence]:
    """The sequences of a step; each is as likely as any other, with those that it is together with."""
    drawn: list[TrainingSequence] = []
    while len(drawn) < settings.sequences:
        drawn += source.choice(pool)
    return drawn[: settings.sequences]


def imitation(conversation: Conversation, tokenizer: Any) -> TrainingSequence:
    """A conversation as a sequence: the ids it was sampled with, or else those of its text and an end."""
    completion = conversation.completion
    if completion.prompt_ids and completion.completion_ids:
        return TrainingSequence(completion.prompt_ids, completion.completion_ids)
    reply = tokenizer(completion.text, add_special_tokens=False)["input_ids"]
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return TrainingSequence(tuple(chat_ids(tokenizer, conversation.messages)), (*reply, *end))


def is_file(trajectories: str) -> bool:
    """Whether the setting names a file, and neither the oracle nor a function."""
    return trajectories != "oracle" and ":" not in trajectories


async def _trajectories(settings: TrainingSettings, data: Data, model: Model) -> Iterable[Trajectory]:
    """What the settings name: a file, the oracle, or a function from an example to a trajectory."""
    wanted = settings.warm_start
    place = wanted.trajectories
    if is_file(place):
        return [replace(it, error=None) for it in read_trajectories(Path(place))][: wanted.count]
    examples = [data.at(position) for position in range(wanted.count)]
    if place == "oracle":
        found: list[Trajectory] = []
        async for trajectory in solve(examples, settings.read, model, mistakes=wanted.mistakes):
            found.append(trajectory)
            await asyncio.sleep(0)  # an interrupt takes effect between examples
        return found
    write = load_function(place)
    return [await _written(write, example) for example in examples]


async def _written(write: Any, example: Example) -> Trajectory:
    trajectory = write(example)
    result: Trajectory = await trajectory if inspect.isawaitable(trajectory) else trajectory
    return result
