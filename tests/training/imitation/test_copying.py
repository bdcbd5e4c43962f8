"""What the copying stage learns from."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from memagent.training.imitation.copying import all_tokens, draw_copies, repeated
from memagent.training.settings import CopyingSettings
from memagent.types import TrainingSequence

POOL = [[TrainingSequence((1, 2, 3), (4, 5)), TrainingSequence((1, 2, 6), (7,))]]


def test_all_tokens_but_the_first_count() -> None:
    assert all_tokens(POOL[0][0]) == TrainingSequence((1,), (2, 3, 4, 5))


@pytest.mark.parametrize("seed", range(50))
def test_what_counts_of_a_repeated_sequence_stood_there_before(seed: int) -> None:
    made = repeated(1024, 60, random.Random(seed))
    ids, length = made.prompt_ids + made.completion_ids, len(made.prompt_ids)
    assert len(ids) == 60 and 7 <= length <= 30 and max(ids) < 1024
    assert ids[length:] == ids[:-length]


def test_a_small_vocabulary_is_enough() -> None:
    for seed in range(20):
        assert set(repeated(10, 16, random.Random(seed)).prompt_ids) <= set(range(10))


@pytest.mark.parametrize(("repeats", "least", "most"), [(0.0, 0, 0), (0.4, 320, 480), (1.0, 1000, 1000)])
def test_the_share_of_repeats_is_the_setting(repeats: float, least: int, most: int) -> None:
    settings = CopyingSettings(sequences=1000, repeats=repeats, repeat_tokens=16)
    found = draw_copies(POOL, settings, 1024, random.Random(0))
    pool = {all_tokens(it) for it in POOL[0]}
    assert len(found) == 1000 and least <= sum(it not in pool for it in found) <= most
    assert repeats == 1.0 or pool <= set(found)
