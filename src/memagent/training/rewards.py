"""What an attempt is worth: the task's scorer on its final answer, or any Python function by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from memagent.errors import SettingsError
from memagent.tasks import TASKS
from memagent.tasks.scoring import SCORERS, score_reply
from memagent.types import Example, Trajectory

Reward = Callable[[Example, Trajectory], float]
"""From an example and an attempt at it to the reward. Attempts without an answer get 0 unasked."""

DEFAULT_SCORER = "substring_match"


def load_reward(name: str | None = None, scorer: str | None = None) -> Reward:
    """The reward called `name`, a function `module:function` or `file.py:function`; else a scorer's.

    `scorer` is a key of `SCORERS`; without it each task's own is used: the best over the gold
    answers, or, where several values are asked for, the share that was found. Raises `SettingsError`.
    """
    if name:
        return load_function(name)
    if scorer and scorer not in SCORERS:
        raise SettingsError(f"there is no scorer {scorer!r}: use one of {', '.join(SCORERS)}")

    def reward(example: Example, trajectory: Trajectory) -> float:
        task = TASKS.get(example.task)
        return score_reply(
            scorer or (task.scorer if task else DEFAULT_SCORER), trajectory.answer, example.answers
        )

    return reward


def overlong_penalty(completion_tokens: int, limit_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft punishment for a completion near its limit: 0 up to the buffer, -1 at the limit.

    Between, it falls evenly over the last `buffer_tokens` (arXiv 2503.14476, section 3.4), or over all
    tokens if the limit is below that.
    """
    if buffer_tokens <= 0:
        return 0.0
    buffer_tokens = min(buffer_tokens, limit_tokens)
    over = completion_tokens - (limit_tokens - buffer_tokens)
    return -min(max(over, 0) / buffer_tokens, 1.0)


def load_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names.

    Raises `SettingsError` if there is no such function, with the error of a module that fails to load.
    """
    place, _, function = name.rpartition(":")
    if not place or not function:
        raise SettingsError(f"{name!r} names no function: write module:function or file.py:function")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{place} cannot be loaded ({type(error).__name__}: {error})") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise SettingsError(f"{place} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def _load_module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"memagent_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingsError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
