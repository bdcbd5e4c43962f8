"""presets/small/copying.py: what it learns from, and that it learns."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from memagent.training.data import load_function
from memagent.types import TrainingSequence

SCRIPT = Path(__file__).parents[2] / "presets" / "small" / "copying.py"
all_tokens, draw_copies, with_copy, main = (
    load_function(f"{SCRIPT}:{name}") for name in ("all_tokens", "draw_copies", "with_copy", "main")
)

POOL = [[TrainingSequence((1, 2, 3), (4, 5)), TrainingSequence((1, 2, 6), (7,))]]


def test_all_tokens_but_the_first_count() -> None:
    assert all_tokens(POOL[0][0]) == TrainingSequence((1,), (2, 3, 4, 5))


def test_what_is_to_be_predicted_stood_somewhere_before() -> None:
    lengths, distances = set(), set()
    for seed in range(300):
        sequence = with_copy(1024, 384, random.Random(seed))
        ids, copied = (
            sequence.prompt_ids + sequence.completion_ids,
            sequence.prompt_ids[-2:] + sequence.completion_ids,
        )
        start = next(index for index in range(len(ids)) if ids[index : index + len(copied)] == copied)
        assert start + len(copied) < len(ids) - len(copied) + 1 and max(ids) < 1024 and len(ids) <= 384
        lengths.add(len(ids))
        distances.add(len(ids) - len(copied) - start)
    assert min(lengths) < 50 and max(lengths) > 300 and len(distances) > 100


def test_a_small_vocabulary_is_enough() -> None:
    for seed in range(20):
        sequence = with_copy(10, 48, random.Random(seed))
        assert set(sequence.prompt_ids + sequence.completion_ids) <= set(range(10))


def test_nine_in_ten_are_random() -> None:
    source = random.Random(0)
    sequences = [draw_copies(POOL, 1024, 48, source) for _ in range(1000)]
    pool = {all_tokens(sequence) for sequence in POOL[0]}
    assert 870 <= sum(sequence not in pool for sequence in sequences) <= 930 and pool <= set(sequences)


def test_it_writes_a_model_that_has_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--out", str(tmp_path / "copied"), "--steps", "60", "--sequences", "4", "--count", "4")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    main()
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 3 and losses[-1] < math.log(1280) < losses[0], "at first, no token is likelier"
    assert (tmp_path / "copied" / "model.safetensors").is_file()
    assert (tmp_path / "copied" / "tokenizer.json").is_file()
