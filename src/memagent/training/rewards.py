"""What a trajectory is worth: the reward of its answer, and DAPO's penalty for overlong replies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from memagent.errors import SettingsError
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.tasks import TASKS
from memagent.tasks.scoring import SCORERS, score_reply
from memagent.training.data import load_function
from memagent.types import Example, Trained, Trajectory

_F_MEASURES = ("f1", "rouge_l")  # scorers that pay for parts of an answer, but not for guesses

Reward = Callable[[Example, Trajectory], float]
"""Maps an example and its trajectory to the reward. A trajectory without an answer gets 0 without a call."""


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
