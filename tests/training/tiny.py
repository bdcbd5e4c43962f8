"""Tiny models with random weights, and random groups of sequences to train them on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from memagent.training.optimization.policy import Policy
from memagent.types import TrainingSequence

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def llama(seed: int = 0) -> LlamaForCausalLM:
    """Grouped-query heads, and logits that depend on everything before them."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SMALL)).eval()


def qwen3(**options: Any) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SMALL, **options)).eval()


def policy(model: PreTrainedModel | None = None, **options: Any) -> Policy:
    """A policy in double precision, in which equal sums come out equal."""
    return Policy((model or llama()).double(), None, **options)


def group(seed: int, attempts: int = 4, shared: int = 9) -> list[TrainingSequence]:
    """One conversation of each attempt of a group: prompts begin alike, go on and end differently."""
    draw = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(1, VOCABULARY), k=count))

    beginning = ids(shared)
    sequences = []
    for _ in range(attempts):
        completion = ids(draw.randint(1, 6))
        old = tuple(draw.uniform(-6, -1) for _ in completion)
        sequences.append(
            TrainingSequence(beginning + ids(draw.randint(1, 5)), completion, old, draw.uniform(-1, 1))
        )
    return sequences


def gradients(trained: Policy) -> torch.Tensor:
    """All gradients of a policy, one after another `(values,)`."""
    return torch.cat(
        [value.grad.flatten() for value in trained.trained_parameters().values() if value.grad is not None]
    )


def tokens(sequences: Sequence[TrainingSequence]) -> int:
    """How many were sampled."""
    return sum(len(sequence.completion_ids) for sequence in sequences)
