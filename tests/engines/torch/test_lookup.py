"""Guesses from the prompt: what they are, and that what is sampled is the same with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from memagent.engines.torch.decoding import DecodingRow, decode  # noqa: E402
from memagent.engines.torch.lookup import Lookup  # noqa: E402
from memagent.engines.torch.sampling import Draws, sample  # noqa: E402
from memagent.types import Sampling  # noqa: E402

NEVER = 99


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights and few tokens: it soon repeats itself, and breaks off again where it samples."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def decoded(
    model: Any, prompts: list[list[int]], samplings: list[Sampling], stop: int = NEVER
) -> tuple[list[DecodingRow], int]:
    """The rows, decoded as one batch, and in how many passes."""
    passes = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(1))

    async def run() -> list[DecodingRow]:
        loop = asyncio.get_running_loop()
        rows = [DecodingRow(*pair, loop.create_future()) for pair in zip(prompts, samplings, strict=True)]
        await asyncio.to_thread(decode, model, rows, frozenset([stop]))
        return rows

    try:
        return asyncio.run(run()), len(passes)
    finally:
        hook.remove()


def one_by_one(model: Any, prompt: list[int], sampling: Sampling, stop: int) -> tuple[list[int], list[float]]:
    """Each token from a pass of its own over all before it."""
    ids, logprobs = list(prompt), []
    draws = Draws.of([sampling], torch.device("cpu"))
    for step in range(sampling.max_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[:, -1]
        token, logprob = sample(logits, draws, torch.tensor([step]))
        ids.append(token.item())
        logprobs.append(logprob.item())
        if ids[-1] == stop:
            break
    return ids[len(prompt) :], logprobs


PROMPTS = [[5, 7, 5, 7, 5, 7, 3], [9, 2, 4, 4, 4, 4], [1], [6, 8, 3, 6, 8, 3, 6, 8, 3, 1, 1]]


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("top_p, stop", [(1.0, NEVER), (0.7, 0)])
def test_what_is_sampled_is_the_same_as_token_by_token(
    model: Any, temperature: float, top_p: float, stop: int
) -> None:
    for seed in range(3):
        samplings = [Sampling(50 + 7 * number, temperature, top_p, seed) for number in range(len(PROMPTS))]
        rows, _ = decoded(model, PROMPTS, samplings, stop)
        for row, prompt, sampling in zip(rows, PROMPTS, samplings, strict=True):
            ids, logprobs = one_by_one(model, prompt, sampling, stop)
            assert row.completion_ids == ids
            assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_a_reply_that_repeats_itself_takes_fewer_passes_than_it_has_tokens(model: Any) -> None:
    rows, passes = decoded(model, PROMPTS[:1], [Sampling(80, seed=0)])
    assert len(rows[0].completion_ids) == 80 and passes < 60


def test_guesses_that_are_mostly_wrong_end_where_they_should(model: Any) -> None:
    rows, passes = decoded(model, PROMPTS, [Sampling(120, 1.0, 1.0, seed) for seed in range(4)])
    assert [len(row.completion_ids) for row in rows] == [120] * 4
    assert passes <= 120


def test_what_followed_the_last_tokens_before_is_guessed_the_latest_place_first() -> None:
    lookup = Lookup([1, 2, 3, 1, 2, 4, 5, 6, 7, 1])
    assert lookup.guess(9) == []  # (7, 1) is new
    lookup.extend([2])
    assert lookup.guess(9) == [4, 5, 6, 7] and lookup.guess(2) == [4, 5] and lookup.guess(0) == []
    lookup.extend([4, 9, 9])
    assert lookup.guess(9) == []  # it does not guess from itself
    lookup.extend([9])
    assert lookup.guess(9) == [9]  # (9, 9) stood one place before


def test_guesses_grow_while_they_come_true_and_shrink_where_they_do_not() -> None:
    lookup = Lookup([*range(40), 0, 1])
    assert len(lookup.guess(99)) == 4
    for length in (8, 16, 16):
        lookup.learn(len(lookup.guess(99)), len(lookup.guess(99)))
        assert len(lookup.guess(99)) == length
    lookup.learn(16, 3)
    assert lookup.guess(99) == [2, 3, 4]
    lookup.learn(3, 0)
    assert lookup.guess(99) == [2]
    lookup.learn(0, 0)  # nothing was guessed, nothing is learned
    assert lookup.guess(99) == [2]


@pytest.mark.parametrize("prompt", [[], [1], [1, 2]])
def test_a_short_text_lets_nothing_be_guessed(prompt: list[int]) -> None:
    assert Lookup(prompt).guess(9) == []
