"""FLOPs by the formula of `benchmarks/flops.py` are those that PyTorch counts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from benchmark_modules import load_benchmark  # noqa: E402
from memagent import Usage  # noqa: E402


@pytest.mark.parametrize(
    ("config", "model"), [(LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM)]
)
def test_a_prompt_takes_what_pytorch_counts(config: Any, model: Any) -> None:
    small_config = config(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=160, vocab_size=500, attn_implementation="eager",
    )  # fmt: skip
    tokens, shape = 50, load_benchmark("flops").Shape.of(small_config.to_dict())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(small_config)(torch.zeros(1, tokens, dtype=torch.long), logits_to_keep=1)
    masked = tokens * tokens - tokens * (tokens + 1) // 2  # which eager attention computes, and throws away
    attention = 4 * shape.heads * shape.head_size * len(shape.windows) * masked
    assert counter.get_total_flops() == shape.flops(Usage(tokens, 1)) + attention
