"""To copy comes before to imitate: what a model that starts from random weights must learn first.

A memory is written by copying. Imitation hardly teaches it: of a conversation only the reply counts, a few
tokens behind hundreds. So copies of random tokens are predicted here, which nothing but copying can do, and
every token of the warm start's conversations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from memagent.training.settings import CopyingSettings
from memagent.types import TrainingSequence

_SHORTEST, _SHORT = 48, 96  # tokens of a sequence
_SHORT_STEPS = (
    1 / 3
)  # of all: to copy is first learned from short sequences, and from long ones hardly at all
_COPIED = (6, 64)  # tokens
_GIVEN = 2  # of the copy: they tell where it goes on


def draw_copies(
    pool: Sequence[Sequence[TrainingSequence]],
    settings: CopyingSettings,
    vocabulary: int,
    step: int,
    source: random.Random,
) -> list[TrainingSequence]:
    """The sequences of a step: a share of `random` is random but for a copy, the others are of the pool."""
    most_tokens = settings.random_tokens if step >= _SHORT_STEPS * settings.steps else _SHORT
    return [
        with_copy(vocabulary, most_tokens, source)
        if source.random() < settings.random
        else all_tokens(source.choice(source.choice(pool)))
        for _ in range(settings.sequences)
    ]


def all_tokens(sequence: TrainingSequence) -> TrainingSequence:
    """The same tokens, all but the first of which are to be predicted."""
    ids = sequence.prompt_ids + sequence.completion_ids
    return TrainingSequence(ids[:1], ids[1:])


def with_copy(vocabulary: int, most_tokens: int, source: random.Random) -> TrainingSequence:
    """Random tokens, the last of which are a copy of some that stand before; the copy is to be predicted.

    It is at a random distance: a sequence that repeats itself as a whole is learned by counting back, which
    finds nothing in a document. The tokens are of a random part of the vocabulary: where it is small, as that
    of digits is, one token before is not enough to tell what comes next.
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
