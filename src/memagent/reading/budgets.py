"""Token budgets: how the window is divided, and how budgets are fitted to a model."""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace

from memagent.errors import SettingsError
from memagent.prompts import Prompts
from memagent.settings import ReadSettings
from memagent.types import CHAT_TOKENS, Model

_log = logging.getLogger(__name__)

MIN_CHUNK_TOKENS = 16
THINKING_TOKENS = 4096
"""The default room for a thought: several times what a small model needs to think about a chunk."""

NOTED_TOKENS = 300
"""The size of the chunks that notes are taken on: small models overlook things in longer ones."""

_PART_TOKENS = 16  # for the heading of each of several memories


@dataclass(frozen=True, slots=True)
class Budgets:
    """The parts of a prompt and its completion, in tokens. The defaults are the paper's 8K window.

    The thoughts before an update and before an answer have room of their own, 0 where the model is not to
    think.
    """

    problem_tokens: int = 1024
    chunk_tokens: int = 5000
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    update_thought_tokens: int = 0
    answer_thought_tokens: int = 0

    @property
    def in_force(self) -> dict[str, int]:
        """The budgets by name, without those of thoughts that are turned off."""
        return {name: tokens for name, tokens in asdict(self).items() if tokens or name in SET_BUDGETS}

    @property
    def update_reply_tokens(self) -> int:
        """The most tokens of a reply that updates the memory: a thought and a memory."""
        return self.update_thought_tokens + self.memory_tokens

    @property
    def answer_reply_tokens(self) -> int:
        """The most tokens of the reply that answers: a thought and an answer."""
        return self.answer_thought_tokens + self.answer_tokens

    def needed_tokens(self, memories: int = 1) -> int:
        """The tokens that an update or answer needs at most if it shows this many memories and rewrites one.

        The fixed text of the prompt is not counted.
        """
        shared = self.problem_tokens + memories * self.memory_tokens
        return shared + max(self.chunk_tokens + self.update_reply_tokens, self.answer_reply_tokens)

    def fit(self, window_tokens: int, fixed_tokens: int, given: frozenset[str], memories: int = 1) -> Budgets:
        """These budgets, with those not in `given` reduced until all fit the model's window.

        `fixed_tokens` is the length of the prompt's own text, for which the paper's figures leave no room:
        a given chunk budget is reduced to make room for it, with a warning. Raises `SettingsError` if the
        budgets do not fit.
        """
        room = window_tokens - fixed_tokens - CHAT_TOKENS
        if self.needed_tokens(memories) <= room:
            return self
        names = [name for name in asdict(self) if name not in given]
        fitted = self._shrink(names, room, memories)
        over = fitted.needed_tokens(memories) - room
        if over > 0 and "chunk_tokens" in given and over <= fixed_tokens + CHAT_TOKENS:
            fitted = replace(self, chunk_tokens=self.chunk_tokens - over)
            _log.warning(
                "chunks have %d tokens instead of %d, so that the prompt's own words fit the window",
                fitted.chunk_tokens, self.chunk_tokens,
            )  # fmt: skip
        least = ("chunk_tokens", "memory_tokens", "answer_tokens")
        smallest = min((getattr(fitted, name) for name in names if name in least), default=room)
        if fitted.needed_tokens(memories) > room or min(smallest, fitted.chunk_tokens) < MIN_CHUNK_TOKENS:
            raise SettingsError(
                f"the budgets need {self.needed_tokens(memories) + fixed_tokens + CHAT_TOKENS} tokens, but "
                f"the model's window has {window_tokens}: lower `chunk_tokens`, `memory_tokens` or "
                f"`answer_tokens`{' or `heads`' if memories > 1 else ''}"
                f"{', or turn `thinking` off' if self.answer_thought_tokens else ''}"
            )
        return fitted

    def _shrink(self, names: list[str], room: int, memories: int) -> Budgets:
        """These budgets, the named ones scaled by the largest factor that fits."""

        def scale(share: float) -> Budgets:
            return replace(self, **{name: int(getattr(self, name) * share) for name in names})

        steps = 1 << 20
        fit = bisect_left(
            range(1, steps), True, key=lambda step: scale(step / steps).needed_tokens(memories) > room
        )
        return scale(fit / steps)


SET_BUDGETS = ("problem_tokens", "chunk_tokens", "memory_tokens", "answer_tokens")
"""The budgets that are settings, and that an adapter may have been trained with."""

_LEAST = Budgets(0, MIN_CHUNK_TOKENS, MIN_CHUNK_TOKENS, MIN_CHUNK_TOKENS)


def given_budgets(settings: ReadSettings) -> dict[str, int]:
    """The budgets that the settings set, in tokens, by name."""
    return {name: value for name in SET_BUDGETS if (value := getattr(settings, name)) is not None}


def heading_tokens(memories: int) -> int:
    """The tokens that the headings of so many memories need at most; a single memory has none."""
    return memories * _PART_TOKENS if memories > 1 else 0


def fit_budgets(
    settings: ReadSettings, model: Model, prompts: Prompts, memories: int = 1, chunk_tokens: int | None = None
) -> Budgets:
    """The budgets of a read with these prompts, fitted to the model's window. May block: it counts tokens.

    `memories` is how many memories a prompt shows, `chunk_tokens` the workflow's usual size of a chunk.
    Raises `SettingsError` for budgets that do not fit, or templates that leave no room for any.
    """
    given, thought_tokens = given_budgets(settings), settings.thinking_tokens or THINKING_TOKENS
    thoughts = {
        "update_thought_tokens": thought_tokens * (settings.thinking == "on"),
        "answer_thought_tokens": thought_tokens * (settings.thinking != "off"),
    }
    usual = {"chunk_tokens": chunk_tokens} if chunk_tokens else {}
    budgets = Budgets(**{**usual, **model.trained.budgets, **given, **thoughts})
    if model.window_tokens is None:
        return budgets
    own = model.count_tokens(prompts.bare_text)
    if own + CHAT_TOKENS + _LEAST.needed_tokens() > model.window_tokens:
        raise SettingsError(
            f"the templates alone take {own} tokens and the model's window is only {model.window_tokens}, so "
            "no budgets fit: shorten the templates, or use a model with a larger window"
        )
    fixed = own + heading_tokens(memories)
    pinned = frozenset({**given, **thoughts} if settings.thinking_tokens else given)
    return budgets.fit(model.window_tokens, fixed, pinned, memories)
