"""Supervised fine-tuning (SFT) before reinforcement, on the conversations of good trajectories.

The trajectories come from a file, from the oracle or another expert in its place, or from a function.
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
from memagent.training.collecting import solve
from memagent.training.data import Data, load_data, load_function, read_trajectories
from memagent.training.optimization.learner import learning_rate
from memagent.training.oracle import Oracle
from memagent.training.run import RunState
from memagent.training.settings import TrainingSettings, WarmStartSettings
from memagent.types import Conversation, Model, TrainingSequence, Trajectory


async def fine_tune(run: RunState) -> None:
    """Take the remaining steps of the warm start; do nothing once reinforcement has begun."""
    warm_start, position = run.settings.warm_start, run.position
    if position.step or not (warm_start.steps or position.warm_steps):
        return
    if position.warm_steps < warm_start.steps:
        pool = await load_sequences(run.settings, run.data, run.policy.tokenizer, run.engine.model)
        await _take_steps(run, pool)
    # Reinforcement begins with a new optimizer, and after the examples of the warm start.
    position.example = 0 if is_file(warm_start.trajectories) or warm_start.examples else warm_start.count
    run.save(None)


async def _take_steps(run: RunState, pool: Sequence[Sequence[TrainingSequence]]) -> None:
    """Take the steps, each on sequences drawn by a generator that is seeded with its number."""
    warm_start, position = run.settings.warm_start, run.position
    learner = run.learner(position.warm_steps, warm_start.betas)
    run.observer.begin(position.warm_steps + 1, warm_start.steps, "warm_start")
    for step in range(position.warm_steps, warm_start.steps):
        await asyncio.sleep(0)  # an interrupt takes effect between steps
        sequences = draw(pool, warm_start, random.Random(f"{run.settings.seed}/warm start/{step}"))
        sums = learner.fine_tune(
            run.ranks.share(sequences), learning_rate(warm_start, step, warm_start.steps)
        )
        position.warm_steps = step + 1
        run.report("warm_start", step + 1, run.means(sums))
        if run.saves(learner, step + 1) and step + 1 < warm_start.steps:
            run.save(learner)


async def load_sequences(
    settings: TrainingSettings, data: Data, tokenizer: Any, model: Model
) -> list[list[TrainingSequence]]:
    """All conversations of the warm start's trajectories; those with a common prompt prefix are grouped.

    A group has at most `warm_start.neighbours`. Raises `SettingsError` if there are no conversations.
    """
    warm_start, trajectories = settings.warm_start, await _load_trajectories(settings, data, model)
    conversations = [conversation for trajectory in trajectories for conversation in trajectory.conversations]
    sequences = [_make_sequence(conversation, tokenizer) for conversation in conversations]
    if not sequences:
        raise SettingsError(f"warm_start.trajectories {warm_start.trajectories!r} holds no conversation")
    return [
        [sequences[index] for index in members[start : start + warm_start.neighbours]]
        for _, members in group_by_beginning([sequence.prompt_ids for sequence in sequences])
        for start in range(0, len(members), warm_start.neighbours)
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
    warm_start = settings.warm_start
    source = warm_start.trajectories
    if is_file(source):
        return [replace(trajectory, error=None) for trajectory in read_trajectories(Path(source))][
            : warm_start.count
        ]
    if warm_start.examples:
        data = load_data(warm_start.examples, settings.seed, model.count_tokens)
    examples = [data.at(position) for position in range(warm_start.count)]
    write = Oracle if source == "oracle" else load_function(source)
    if not isinstance(write, type):
        written = (write(example) for example in examples)
        return [await trajectory if inspect.isawaitable(trajectory) else trajectory for trajectory in written]
    expert = partial(Oracle, mistakes=warm_start.mistakes) if write is Oracle else write
    solved: list[Trajectory] = []
    sizes = warm_start.chunk_tokens or (settings.read.chunk_tokens,)
    for turn, tokens in enumerate(sizes):
        read = settings.read.replace(chunk_tokens=tokens)
        async for trajectory in solve(examples[turn :: len(sizes)], read, model, expert):
            solved.append(trajectory)
            await asyncio.sleep(0)  # an interrupt takes effect between examples
    return solved
