"""To copy comes before to imitate: what a model that starts from random weights must learn first.

A memory is written by copying. Imitation hardly teaches it: of a conversation only the reply counts, a few
tokens behind hundreds. So every token is predicted here, of the warm start's conversations and of random
sequences that repeat themselves, which can be predicted by copying alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from memagent.training.settings import CopyingSettings
from memagent.types import TrainingSequence

_SHORTEST = 4  # tokens that are repeated
_MOST_TIMES = 8


def draw_copies(
    pool: Sequence[Sequence[TrainingSequence]],
    settings: CopyingSettings,
    vocabulary: int,
    source: random.Random,
) -> list[TrainingSequence]:
    """The sequences of a step: a share of `repeats` repeats itself, the others are of the pool."""
    return [
        repeated(vocabulary, settings.repeat_tokens, source)
        if source.random() < settings.repeats
        else all_tokens(source.choice(source.choice(pool)))
        for _ in range(settings.sequences)
    ]


def all_tokens(sequence: TrainingSequence) -> TrainingSequence:
    """The same tokens, all but the first of which are to be predicted."""
    ids = sequence.prompt_ids + sequence.completion_ids
    return TrainingSequence(ids[:1], ids[1:])


def repeated(vocabulary: int, tokens: int, source: random.Random) -> TrainingSequence:
    """Random tokens, again and again until there are `tokens`; the repetitions are to be predicted.

    They are drawn from a random part of the vocabulary: where it is small, as that of digits is, one token
    before is not enough to tell what comes next.
    """
    length = max(_SHORTEST, tokens // source.randint(2, _MOST_TIMES))
    several = source.sample(range(vocabulary), min(vocabulary, 2 ** source.randint(3, 10)))
    ids = (*source.choices(several, k=length),) * (tokens // length + 1)
    return TrainingSequence(ids[:length], ids[length:tokens])
