"""Copying before imitation: what a model that starts from random weights must learn first.

Writing a memory takes copying. Imitation hardly teaches it: only a conversation's reply counts, a few tokens
after hundreds. So the model learns here to predict copies of random tokens, which takes copying, and every
token of the warm start's conversations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from memagent.training.settings import CopyingSettings
from memagent.types import TrainingSequence

_SHORTEST, _SHORT = 48, 96  # tokens of a sequence
_SHORT_STEPS = 1 / 3  # share of the steps: copying is hardly learned from long sequences at first
_COPIED = (6, 64)  # tokens
_GIVEN = 2  # first tokens of the copy: they tell where it continues


def draw_copies(
    pool: Sequence[Sequence[TrainingSequence]],
    settings: CopyingSettings,
    vocabulary: int,
    step: int,
    source: random.Random,
) -> list[TrainingSequence]:
    """The sequences of a step: a share `random` is random but for a copy, the others come from the pool."""
    most_tokens = settings.random_tokens if step >= _SHORT_STEPS * settings.steps else _SHORT
    return [
        with_copy(vocabulary, most_tokens, source)
        if source.random() < settings.random
        else all_tokens(source.choice(source.choice(pool)))
        for _ in range(settings.sequences)
    ]


def all_tokens(sequence: TrainingSequence) -> TrainingSequence:
    """The same tokens, with all but the first to be predicted."""
    ids = sequence.prompt_ids + sequence.completion_ids
    return TrainingSequence(ids[:1], ids[1:])


def with_copy(vocabulary: int, most_tokens: int, source: random.Random) -> TrainingSequence:
    """Random tokens that end with a copy of some earlier ones; the copy is to be predicted.

    Its distance is random: a sequence that repeats as a whole could be predicted by counting back, which is
    no use in a document. The tokens come from a random part of the vocabulary: if that is small, as with
    digits, the previous token is not enough to tell what comes next.
    """
    several = source.sample(range(vocabulary), min(vocabulary, 2 ** source.randint(4, 10)))
    tokens = round(math.exp(source.uniform(math.log(_SHORTEST), math.log(most_tokens))))
    shortest, longest = _COPIED
    length = source.randint(shortest, min(tokens // 2 - _GIVEN, longest))
    around = tokens - 2 * length
    before = source.randint(0, around // 2)
    copied = source.choices(several, k=length)
    between = source.choices(several, k=source.randint(1, around - before))
    ids = (*source.choices(several, k=before), *copied, *between, *copied)
    return TrainingSequence(ids[: _GIVEN - length], ids[_GIVEN - length :])
