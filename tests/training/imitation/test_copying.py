"""What the copying stage learns from."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from memagent.training.imitation.copying import all_tokens, draw_copies, with_copy
from memagent.training.settings import CopyingSettings
from memagent.types import TrainingSequence

POOL = [[TrainingSequence((1, 2, 3), (4, 5)), TrainingSequence((1, 2, 6), (7,))]]


def test_all_tokens_but_the_first_count() -> None:
    assert all_tokens(POOL[0][0]) == TrainingSequence((1,), (2, 3, 4, 5))


def test_what_is_to_be_predicted_stood_somewhere_before() -> None:
    lengths, distances = set(), set()
    for seed in range(300):
        made = with_copy(1024, 384, random.Random(seed))
        ids, copied = made.prompt_ids + made.completion_ids, made.prompt_ids[-2:] + made.completion_ids
        start = next(it for it in range(len(ids)) if ids[it : it + len(copied)] == copied)
        assert start + len(copied) < len(ids) - len(copied) + 1 and max(ids) < 1024 and len(ids) <= 384
        lengths.add(len(ids))
        distances.add(len(ids) - len(copied) - start)
    assert min(lengths) < 50 and max(lengths) > 300 and len(distances) > 100


def test_a_small_vocabulary_is_enough() -> None:
    for seed in range(20):
        made = with_copy(10, 48, random.Random(seed))
        assert set(made.prompt_ids + made.completion_ids) <= set(range(10))


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.4, 320, 480), (1.0, 1000, 1000)])
def test_the_share_of_random_sequences_is_the_setting(share: float, least: int, most: int) -> None:
    settings = CopyingSettings(sequences=1000, random=share, random_tokens=48)
    found = draw_copies(POOL, settings, 1024, 0, random.Random(0))
    pool = {all_tokens(it) for it in POOL[0]}
    assert len(found) == 1000 and least <= sum(it not in pool for it in found) <= most
    assert share == 1.0 or pool <= set(found)


def test_the_first_third_of_the_steps_has_short_sequences() -> None:
    settings = CopyingSettings(steps=30, sequences=200, random=1.0, random_tokens=384)

    def longest(step: int) -> int:
        made = draw_copies(POOL, settings, 1024, step, random.Random(step))
        return max(len(it.prompt_ids) + len(it.completion_ids) for it in made)

    assert 64 < longest(9) <= 96 and longest(10) > 200
