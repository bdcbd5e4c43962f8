"""Draw tokens from logits, each row with its own random numbers.

A row's numbers depend on its seed alone; each picks the token at its place in the cumulative distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from memagent.types import Sampling


class Draws(NamedTuple):
    """How each row of a batch draws its tokens."""

    temperature: torch.Tensor  # (sequences, 1), 1 where greedy
    greedy: torch.Tensor  # (sequences,)
    top_p: torch.Tensor  # (sequences, 1), above 1 where nothing is cut
    uniforms: torch.Tensor  # (sequences, tokens), a number in [0, 1) for each token

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> Draws:
        """The draws of rows with these sampling settings."""
        # Each row draws all its numbers at once, on the CPU, from its own generator: they depend on
        # its seed alone, not on the other rows or the device.
        uniforms = torch.zeros(len(samplings), max(it.max_tokens for it in samplings), dtype=torch.float64)
        for row, sampling in zip(uniforms, samplings, strict=True):
            generator = torch.Generator()
            generator.seed() if sampling.seed is None else generator.manual_seed(sampling.seed % 2**63)
            row[: sampling.max_tokens] = torch.rand(
                sampling.max_tokens, generator=generator, dtype=torch.float64
            )
        column = partial(torch.tensor, device=device, dtype=torch.float32)
        return cls(
            temperature=column([[it.temperature or 1.0] for it in samplings]),
            greedy=column([it.temperature for it in samplings]) == 0,
            top_p=column([[it.top_p if it.top_p < 1 else 2.0] for it in samplings]),
            uniforms=uniforms.to(device),
        )

    def of_rows(self, rows: torch.Tensor) -> Draws:
        """The draws of the rows with these indices `(sequences,)`."""
        return Draws(*(part[rows] for part in self))


def sample(logits: torch.Tensor, draws: Draws, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row and its log-probability before `top_p`, both `(sequences,)`.

    `logits` are `(sequences, vocabulary)`, `steps` `(sequences,)` the columns of the draws. The row's uniform
    number picks a token from the cumulative distribution in vocabulary order: if sorted by probability,
    rounding would make tokens that are nearly as likely swap places.
    """
    logprobs = torch.log_softmax(logits.float() / draws.temperature, dim=-1)  # (sequences, vocabulary)
    cumulative = nucleus(logprobs.double().exp(), draws.top_p).cumsum(-1)
    targets = draws.uniforms.gather(1, steps[:, None]) * cumulative[:, -1:]  # (sequences, 1)
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    drawn = drawn.clamp(max=logits.shape[-1] - 1)  # only NaN logits lead past the end
    token_ids = torch.where(draws.greedy, logits.argmax(-1), drawn)
    return token_ids, logprobs.gather(-1, token_ids[:, None])[:, 0]


def nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probabilities, set to zero except for each row's fewest tokens that together reach `top_p`."""
    if bool((top_p > 1).all()):
        return probabilities
    ordered, order = probabilities.sort(-1, descending=True)  # (sequences, vocabulary)
    before = ordered.cumsum(-1) - ordered
    before[:, 0] = -1.0  # the likeliest token stays, however small top_p is
    return probabilities * torch.zeros_like(probabilities).scatter(-1, order, (before < top_p).double())
