"""What a step of the warm start is drawn from."""

from __future__ import annotations

import asyncio
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from memagent.engines.torch.prefill import common_length
from memagent.settings import ReadSettings
from memagent.tasks import TASKS, Recipe, write_examples
from memagent.training.data import load_data
from memagent.training.settings import DataSettings, TrainingSettings, WarmStartSettings
from memagent.training.warm_start import draw, load_sequences
from memagent.types import Model, TrainingSequence

POOL = [[TrainingSequence((number, index), (0,)) for index in range(4)] for number in range(25)]


def draw_prompts(sequences: int, seed: int = 0) -> list[tuple[int, ...]]:
    settings = WarmStartSettings(sequences=sequences)
    return [sequence.prompt_ids for sequence in draw(POOL, settings, random.Random(seed))]


def test_those_that_are_together_are_drawn_together() -> None:
    prompts = draw_prompts(12)
    assert len(prompts) == 12
    for start in range(0, 12, 4):
        assert prompts[start : start + 4] == [(prompts[start][0], index) for index in range(4)]
    assert len({prompts[0], prompts[4], prompts[8]}) > 1


def test_no_more_is_drawn_than_a_step_has() -> None:
    assert len(draw_prompts(3)) == 3 and len(draw_prompts(6)) == 6


def test_every_sequence_can_be_drawn() -> None:
    prompts = {ids for seed in range(100) for ids in draw_prompts(10, seed)}
    assert len(prompts) == 100


def test_each_sequence_is_as_likely_as_another() -> None:
    one, many = [TrainingSequence((0,), (0,))], [TrainingSequence((1,), (0,))] * 9
    sequences = draw([one, many], WarmStartSettings(sequences=20_000), random.Random(0))
    alone = sum(sequence.prompt_ids == (0,) for sequence in sequences)
    assert 1_600 < alone < 2_400


class Words:
    """A tokenizer with an id for each word."""

    eos_token_id = 0

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [1 + zlib.crc32(word.encode()) for word in text.split()]}

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def apply_chat_template(self, chat: list[dict[str, str]], **_: Any) -> str:
        return " ".join(message["content"] for message in chat)


def pool(
    folder: Path, neighbours: int, documents: int = 2, chunk_tokens: tuple[int, ...] = ()
) -> list[list[TrainingSequence]]:
    """What four questions on each of some documents make."""
    examples = [TASKS["niah_multikey_1"].make(Recipe(length_tokens=600), index) for index in range(documents)]
    questions = [
        replace(example, id=f"{example.id}-{n}", problem=f"{example.problem} {n}")
        for example in examples
        for n in range(4)
    ]
    write_examples(folder / "examples.jsonl", questions)
    settings = TrainingSettings(
        read=ReadSettings(
            workflow="gated", chunk_tokens=200, memory_tokens=100, answer_tokens=40, problem_tokens=100
        ),
        data=DataSettings(examples=(str(folder / "examples.jsonl"),)),
        warm_start=WarmStartSettings(count=4 * documents, neighbours=neighbours, chunk_tokens=chunk_tokens),
    )

    def count_tokens(text: str) -> int:
        return len(text.split())

    data = load_data(settings.data.examples, settings.seed, count_tokens)
    return asyncio.run(load_sequences(settings, data, Words(), Model("words", count_tokens, "words")))


def test_the_pool_has_the_questions_on_a_chunk_together(tmp_path: Path) -> None:
    families = pool(tmp_path, 100)
    assert {len(together) for together in families} == {4}  # on a chunk, or on a document's memories
    for together in families:
        first = together[0].prompt_ids
        shared = 150 if len(first) > 200 else 20
        assert all(common_length(first, other.prompt_ids) > shared for other in together)


@pytest.mark.parametrize("neighbours", [1, 3])
def test_no_more_are_together_than_the_settings_say(neighbours: int, tmp_path: Path) -> None:
    whole, cut = pool(tmp_path, 100), pool(tmp_path, neighbours)
    assert max(map(len, cut)) == neighbours
    assert [sequence for together in cut for sequence in together] == [
        sequence for together in whole for sequence in together
    ]


def test_the_examples_take_turns_with_the_sizes_of_chunks(tmp_path: Path) -> None:
    def count(*sizes: int) -> int:
        return sum(map(len, pool(tmp_path, 100, documents=1, chunk_tokens=sizes)))

    assert count() == count(200)
    assert count(60) > 2 * count(200)
    assert count(200, 60) == (count(200) + count(60)) / 2
