"""Attention over trees: several sequences in one row, a common beginning computed once.

Everything else in a transformer works token by token, so it is enough to tell attention which tokens belong
together. Works for models of transformers whose layers all attend to everything before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from memagent.errors import SettingsError
from memagent.training.optimization.sequences import TreeIndex

_NAME = "memagent_trees"


def tree_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,  # (1, heads, tokens, size)
    key: torch.Tensor,  # (1, key heads, tokens, size)
    value: torch.Tensor,  # (1, key heads, tokens, size)
    _attention_mask: torch.Tensor | None,
    *,
    trees: tuple[TreeIndex, ...],
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each tree: a branch sees the tree's beginning and itself. `(1, tokens, heads, size)`."""
    groups = query.shape[1] // key.shape[1]
    # As many key heads as query heads: the GPU kernel that takes a mask knows no grouped queries.
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    outputs = []
    for tree in trees:
        beginning = slice(tree.start, tree.start + tree.shared)
        if tree.shared:
            outputs.append(
                scaled_dot_product_attention(
                    query[:, :, beginning], key[:, :, beginning], value[:, :, beginning],
                    is_causal=True, scale=scaling,
                )[0].transpose(0, 1)
            )  # fmt: skip
        branches, tokens = tree.rows.shape
        keys, values = (
            torch.cat([part[:, :, beginning].expand(branches, -1, -1, -1), _rows(part, tree.rows)], dim=2)
            for part in (key, value)
        )  # (branches, heads, shared + tokens, size)
        output = scaled_dot_product_attention(
            _rows(query, tree.rows),
            keys,
            values,
            attn_mask=_mask(tokens, tree.shared, query.device) if tree.shared else None,
            is_causal=not tree.shared,
            scale=scaling,
        )  # (branches, heads, tokens, size)
        outputs.append(output.transpose(1, 2).flatten(0, 1)[tree.own])
    return torch.cat(outputs)[None], None


def _rows(part: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`(1, heads, tokens, size)` to `(branches, heads, tokens of a branch, size)`."""
    return part[0][:, rows].transpose(0, 1)


def _mask(tokens: int, shared: int, device: torch.device) -> torch.Tensor:
    """What a branch's tokens see `(tokens, shared + tokens)`; padding comes last, where nobody looks."""
    return torch.ones(tokens, shared + tokens, dtype=torch.bool, device=device).tril(shared)


@contextmanager
def attention_over_trees(model: PreTrainedModel) -> Iterator[None]:
    """Within it the model takes `trees=` and attends over them. Raises `SettingsError` where it cannot."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise SettingsError(
            f"{type(model).__name__} has layers of {', '.join(sorted(kinds))}: "
            "set optimizer.layout to 'padded'"
        )
    AttentionInterface.register(_NAME, tree_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
