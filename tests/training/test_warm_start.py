"""What a step of the warm start is drawn from."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

pytest.importorskip("torch")

from memagent.training.settings import WarmStartSettings
from memagent.training.warm_start import draw
from memagent.types import TrainingSequence

POOL = [TrainingSequence((number,), (0,)) for number in range(100)]


def drawn(sequences: int, neighbours: int, seed: int = 0) -> list[int]:
    settings = WarmStartSettings(sequences=sequences, neighbours=neighbours)
    return [sequence.prompt_ids[0] for sequence in draw(POOL, settings, random.Random(seed))]


def test_neighbours_are_drawn_together() -> None:
    found = drawn(12, 4)
    assert len(found) == 12
    for start in range(0, 12, 4):
        run = found[start : start + 4]
        assert run == [(run[0] + offset) % 100 for offset in range(4)]
    assert len({found[0], found[4], found[8]}) > 1


def test_one_neighbour_is_a_plain_draw() -> None:
    found = drawn(50, 1)
    assert len(found) == 50 and sum(b - a == 1 for a, b in pairwise(found)) < 10


def test_no_more_is_drawn_than_a_step_has() -> None:
    assert len(drawn(3, 8)) == 3


def test_every_sequence_can_be_drawn() -> None:
    found = {number for seed in range(100) for number in drawn(10, 5, seed)}
    assert found == set(range(100))
