"""Attention over trees: several sequences in one row, with their common prefix computed once.

Everything else in a transformer works token by token, so only attention needs to know which tokens belong
together. Supports `transformers` models whose layers use full or sliding-window causal attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from memagent.errors import SettingsError
from memagent.training.optimization.sequences import AttentionBlock, Trees

_NAME = "memagent_trees"
_UNKNOWN = ("softcap", "s_aux")  # options not implemented here: capped scores, attention sinks
_INSTEAD = "set optimizer.layout to 'padded'"


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # (1, heads, tokens, size)
    key: torch.Tensor,  # (1, key heads, tokens, size)
    value: torch.Tensor,  # (1, key heads, tokens, size)
    _attention_mask: torch.Tensor | None,
    *,
    trees: Trees | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each tree: a branch sees the tree's prefix and itself. `(1, tokens, heads, size)`.

    With a sliding window, a token sees that many tokens, itself included. Raises `SettingsError` for layers
    that compute something else.
    """
    _check(module, sliding_window, options)
    if trees is None:
        raise SettingsError(f"{type(module).__name__} was not given the trees: {_INSTEAD}")
    groups = query.shape[1] // key.shape[1]
    # Match the number of query heads: the GPU kernel that takes a mask does not support grouped queries.
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    outputs = []
    for block in trees.blocks:
        queries, keys, values = (_gather(part, block.rows) for part in (query, key, value))
        if block.before.shape[1]:
            keys, values = (
                torch.cat([_gather(part, block.before), own], dim=2)
                for part, own in ((key, keys), (value, values))
            )  # (runs, heads, shared + tokens, size)
        mask = _mask(block, sliding_window)
        output = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1)[block.own])
    return torch.cat(outputs)[trees.order][None], None


def _gather(part: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """`(1, heads, tokens, size)` to `(runs, heads, tokens of a run, size)`."""
    return part.squeeze(0)[:, indices].transpose(0, 1)


def _mask(block: AttentionBlock, window: int | None) -> torch.Tensor | None:
    """What each token sees `(runs, 1, tokens, shared + tokens)`; none if that is all before it in its run."""
    shared = block.before.shape[1]
    if not shared and not window:
        return None
    distance = block.positions[:, None, shared:, None] - block.positions[:, None, None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0


def _check(module: torch.nn.Module, sliding_window: int | None, options: Mapping[str, Any]) -> None:
    odd = [name for name in _UNKNOWN if options.get(name) is not None]
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    if kinds and kinds[module.layer_idx] == "sliding_attention" and not sliding_window:
        odd.append("a sliding window of its own")
    if odd:
        raise SettingsError(f"{type(module).__name__} has {', '.join(odd)}: {_INSTEAD}")


@contextmanager
def attention_over_trees(model: PreTrainedModel) -> Iterator[None]:
    """Let the model accept `trees=` and attend over them. Raises `SettingsError` if it cannot."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if odd := kinds - {"full_attention", "sliding_attention"}:
        raise SettingsError(f"{type(model).__name__} has layers of {', '.join(sorted(odd))}: {_INSTEAD}")
    AttentionInterface.register(_NAME, tree_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    if model.config._attn_implementation != _NAME:  # transformers only warns of it
        raise SettingsError(f"{type(model).__name__} computes attention in a way of its own: {_INSTEAD}")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
