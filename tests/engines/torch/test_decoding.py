"""Decoding in batches: what is sampled is the same as token by token, each row alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from memagent.engines.torch.decoding import DecodingRow, Draws, decode, sample  # noqa: E402
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


def decode_rows(
    model: Any, prompts: list[list[int]], samplings: list[Sampling], stop: int
) -> list[DecodingRow]:
    """The rows, decoded as one batch."""

    async def run() -> list[DecodingRow]:
        loop = asyncio.get_running_loop()
        rows = [DecodingRow(*pair, loop.create_future()) for pair in zip(prompts, samplings, strict=True)]
        await asyncio.to_thread(decode, model, rows, frozenset([stop]))
        return rows

    return asyncio.run(run())


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
        rows = decode_rows(model, PROMPTS, samplings, stop)
        for row, prompt, sampling in zip(rows, PROMPTS, samplings, strict=True):
            ids, logprobs = one_by_one(model, prompt, sampling, stop)
            assert row.completion_ids == ids
            assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
