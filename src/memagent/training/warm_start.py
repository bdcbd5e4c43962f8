"""Imitation before reinforcement: conversations of good trajectories, as training sequences.

The trajectories come from a file, from the oracle or another player in its place, or from a function.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from memagent.engines.torch.chats import chat_ids, text_ids
from memagent.engines.torch.prefill import group_by_beginning
from memagent.errors import SettingsError
from memagent.training.data import Data, load_data, load_function, read_trajectories
from memagent.training.optimization.learner import learning_rate
from memagent.training.oracle import Oracle
from memagent.training.rollout import solve
from memagent.training.run import RunState
from memagent.training.settings import TrainingSettings, WarmStartSettings
from memagent.types import Conversation, Model, TrainingSequence, Trajectory


async def imitate(run: RunState) -> None:
    """Take the remaining steps of the warm start; do nothing once reinforcement has begun."""
    wanted, position = run.settings.warm_start, run.position
    if position.step or not (wanted.steps or position.warm_steps):
        return
    if position.warm_steps < wanted.steps:
        pool = await load_imitations(run.settings, run.data, run.policy.tokenizer, run.engine.model)
        await _take_steps(run, pool)
    # Reinforcement begins with a new optimizer, and after the examples that were imitated.
    position.example = 0 if is_file(wanted.trajectories) or wanted.examples else wanted.count
    run.save(None)


async def _take_steps(run: RunState, pool: Sequence[Sequence[TrainingSequence]]) -> None:
    """Take the steps, each on sequences drawn by a generator that is seeded with its number."""
    wanted, position = run.settings.warm_start, run.position
    learner = run.learner(position.warm_steps, wanted.betas)
    run.observer.begin(position.warm_steps + 1, wanted.steps, "warm_start")
    for step in range(position.warm_steps, wanted.steps):
        await asyncio.sleep(0)  # an interrupt takes effect between steps
        sequences = draw(pool, wanted, random.Random(f"{run.settings.seed}/warm start/{step}"))
        sums = learner.imitate(run.ranks.share(sequences), learning_rate(wanted, step, wanted.steps))
        position.warm_steps = step + 1
        run.report("warm_start", step + 1, run.means(sums))
        if run.saves(learner, step + 1) and step + 1 < wanted.steps:
            run.save(learner)


async def load_imitations(
    settings: TrainingSettings, data: Data, tokenizer: Any, model: Model
) -> list[list[TrainingSequence]]:
    """All conversations of the warm start's trajectories; those with a common prompt prefix are grouped.

    A group has at most `warm_start.neighbours`. Raises `SettingsError` if there are no conversations.
    """
    wanted, trajectories = settings.warm_start, await _load_trajectories(settings, data, model)
    conversations = [it for trajectory in trajectories for it in trajectory.conversations]
    sequences = [_make_sequence(conversation, tokenizer) for conversation in conversations]
    if not sequences:
        raise SettingsError(f"warm_start.trajectories {wanted.trajectories!r} holds no conversation")
    return [
        [sequences[index] for index in members[start : start + wanted.neighbours]]
        for _, members in group_by_beginning([sequence.prompt_ids for sequence in sequences])
        for start in range(0, len(members), wanted.neighbours)
    ]


def draw(
    pool: Sequence[Sequence[TrainingSequence]], settings: WarmStartSettings, source: random.Random
) -> list[TrainingSequence]:
    """The sequences of a step, in groups drawn uniformly; the last group is cut if it is too large."""
    drawn: list[TrainingSequence] = []
    while len(drawn) < settings.sequences:
        drawn += source.choice(pool)
    return drawn[: settings.sequences]


def _make_sequence(conversation: Conversation, tokenizer: Any) -> TrainingSequence:
    """A conversation as a sequence: its sampled ids, or else the ids of its text and an end token."""
    completion = conversation.completion
    if completion.prompt_ids and completion.completion_ids:
        return TrainingSequence(completion.prompt_ids, completion.completion_ids)
    reply = text_ids(tokenizer, completion.text)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    prompt = chat_ids(tokenizer, conversation.messages, thinking=False)  # as reads ask by default
    return TrainingSequence(tuple(prompt), (*reply, *end))


def is_file(trajectories: str) -> bool:
    """Whether the setting names a file rather than the oracle or a function."""
    return trajectories != "oracle" and ":" not in trajectories


async def _load_trajectories(settings: TrainingSettings, data: Data, model: Model) -> Iterable[Trajectory]:
    """The trajectories from a file, the oracle or a class in its place, or a function of an example."""
    wanted = settings.warm_start
    place = wanted.trajectories
    if is_file(place):
        return [replace(it, error=None) for it in read_trajectories(Path(place))][: wanted.count]
    if wanted.examples:
        data = load_data(wanted.examples, settings.seed, model.count_tokens)
    examples = [data.at(position) for position in range(wanted.count)]
    write = Oracle if place == "oracle" else load_function(place)
    if not isinstance(write, type):
        written = (write(example) for example in examples)
        return [await it if inspect.isawaitable(it) else it for it in written]
    player = partial(Oracle, mistakes=wanted.mistakes) if write is Oracle else write
    found: list[Trajectory] = []
    sizes = wanted.chunk_tokens or (settings.read.chunk_tokens,)
    for turn, tokens in enumerate(sizes):
        read = settings.read.replace(chunk_tokens=tokens)
        async for trajectory in solve(examples[turn :: len(sizes)], read, model, player):
            found.append(trajectory)
            await asyncio.sleep(0)  # an interrupt takes effect between examples
    return found
