"""Trajectories to imitate, made by a model that reads well and stored in files.

A file has one trajectory per JSON line, and is gzipped if its name ends in .gz. Only text is imitated: token
ids, which come from another model's tokenizer, are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memagent.concurrency import side_by_side
from memagent.errors import SettingsError
from memagent.settings import ReadSettings
from memagent.tasks.corpora import read_rows
from memagent.tasks.files import new_file
from memagent.training.rewards import Reward
from memagent.training.rollout import Rollout
from memagent.types import Engine, Example, Trajectory

_TRAJECTORY = TypeAdapter(Trajectory)


async def collect(
    examples: Iterable[Example],
    engine: Engine,
    settings: ReadSettings,
    reward: Reward,
    least_reward: float = 1.0,
    samples: int = 1,
    concurrency: int = 16,
) -> AsyncGenerator[Trajectory, None]:
    """The attempts that earned `least_reward` or more, in the examples' order, without replies that were cut.

    Makes `samples` attempts at each example, `concurrency` of them at once. With a seed in `settings`, each
    attempt and each of its calls gets its own. Raises `EngineError` if the engine fails for good, and
    `SettingsError` for numbers below 1, for no number and for samples that would all be the same.
    """
    if samples < 1 or concurrency < 1:
        raise SettingsError(f"samples is {samples} and concurrency {concurrency}: each must be at least 1")
    if math.isnan(least_reward):
        raise SettingsError("least_reward is nan: give a number")
    if samples > 1 and settings.temperature == 0:
        raise SettingsError(f"{samples} samples at temperature 0 are all the same: set a temperature")
    rollout = Rollout(engine=engine, settings=settings, reward=reward)
    attempts = (
        (example, None if settings.seed is None else f"{settings.seed}/{number}/{sample}")
        for number, example in enumerate(examples)
        for sample in range(samples)
    )
    made = side_by_side(lambda pair: rollout.attempt_if_readable(*pair), attempts, concurrency)
    async with aclosing(made) as done:
        async for trajectory in done:
            if trajectory and not trajectory.error and (trajectory.reward or 0.0) >= least_reward:
                # Imitation ends every reply, and nothing says where one that was cut would have ended.
                whole = [it for it in trajectory.conversations if it.completion.finish_reason != "length"]
                if whole:
                    yield replace(trajectory, conversations=tuple(whole))


async def write_trajectories(path: str | Path, trajectories: AsyncIterable[Trajectory]) -> int:
    """Write the trajectories as they come and return how many there were.

    The file appears once it is complete. Raises `SettingsError` if it cannot be written, and if there are no
    trajectories: a file that exists is then left as it is.
    """
    count = 0
    with new_file(Path(path)) as file:
        async for trajectory in trajectories:
            file.write(json.dumps(_row(trajectory)) + "\n")
            count += 1
        if not count:
            raise SettingsError(
                f"every attempt failed, earned too little or was cut at its limit, so {path} is not written: "
                "lower the least reward, raise the limits, or try more examples, samples or a better model"
            )
    return count


def read_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """The trajectories of a file, one in memory at a time.

    Raises `SettingsError` for a file that cannot be read or holds none, and names a row that is wrong.
    """
    path, number = Path(path), 0
    for number, row in read_rows(path):
        try:
            yield _trajectory(row)
        except ValueError as error:
            raise SettingsError(f"{path}, row {number} is not a trajectory: {error}") from error
    if not number:
        raise SettingsError(f"{path} holds no trajectories: collect some, perhaps with a lower least reward")


def _row(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "example_id": trajectory.example_id,
        "answer": trajectory.answer,
        "reward": trajectory.reward,
        "conversations": [
            {
                "kind": conversation.kind,
                "chunk_index": conversation.chunk_index,
                "messages": [asdict(message) for message in conversation.messages],
                "reply": conversation.completion.text,
                "memory": conversation.memory,
            }
            for conversation in trajectory.conversations
        ],
    }


def _trajectory(row: dict[str, Any]) -> Trajectory:
    """A row's trajectory. Raises `ValueError` if it is not one."""
    try:
        for conversation in row["conversations"]:
            conversation["completion"] = {"text": conversation.pop("reply")}
        return _TRAJECTORY.validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("each of its conversations needs a reply") from error
