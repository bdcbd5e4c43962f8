"""What an attempt is worth: the task's scorer on its final answer, or any Python function by name."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from memagent.errors import SettingsError
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.tasks import TASKS
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.scoring import SCORERS, score_reply
from memagent.types import Example, Trained, Trajectory

Reward = Callable[[Example, Trajectory], float]
"""Maps an example and an attempt at it to the reward. Attempts without an answer get 0 without a call."""

_F_MEASURES = ("f1", "rouge_l")  # scorers that pay for parts of an answer, but not for guesses


def load_reward(name: str | None = None, scorer: str | None = None) -> Reward:
    """The reward called `name`, a function `module:function` or `file.py:function`; else a scorer's.

    `scorer` is a key of `SCORERS`; without either, it is `exact_reward`. Raises `SettingsError`, and so does
    a named function that fails or returns no finite number.
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
            raise SettingsError(
                f"the reward {name} failed on the example {example.id} ({type(error).__name__}: {error})"
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
    task = TASKS.get(example.task)
    if set(example.answers) <= set(ABSENT_ANSWERS):
        return score_reply("substring_match", trajectory.answer, example.answers)
    if task and task.wants_all and len(example.answers) > 1:
        return score_reply("f1", trajectory.answer, (" ".join(example.answers),))
    if task and task.scorer in _F_MEASURES:
        return score_reply(task.scorer, trajectory.answer, example.answers)
    return score_reply("exact_match", trajectory.answer, example.answers)


def overlong_penalty(completion_tokens: int, limit_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft punishment for a completion near its limit: 0 up to the buffer, -1 at the limit.

    In between, it falls linearly over the last `buffer_tokens` (arXiv 2503.14476, section 3.4), or over all
    tokens if the limit is below that.
    """
    if buffer_tokens <= 0:
        return 0.0
    buffer_tokens = min(buffer_tokens, limit_tokens)
    over = completion_tokens - (limit_tokens - buffer_tokens)
    return -min(max(over, 0) / buffer_tokens, 1.0)


def load_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names.

    Raises `SettingsError` if there is no such function, or if its module fails to load.
    """
    place, _, function = name.rpartition(":")
    if not place or not function:
        raise SettingsError(f"{name!r} names no function: write module:function or file.py:function")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{place} cannot be loaded ({type(error).__name__}: {error})") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise SettingsError(f"{place} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"memagent_user_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingsError(f"there is no file {path}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # a dataclass looks there
    spec.loader.exec_module(module)
    return module
