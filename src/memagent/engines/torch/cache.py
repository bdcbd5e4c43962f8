"""A key-value cache with room for the tokens still to be sampled, so that each step writes in place.

transformers' own layers grow by concatenation, which copies the whole cache at each token. Layers of other
kinds (sliding windows, states) stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer


def make_room(cache: Cache, rows: torch.Tensor, tokens: int) -> None:
    """Make row i of the cache a copy of its row `rows[i]`, with room for `tokens` more tokens."""
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            filled = layer.keys.shape[2]
            every = rows.equal(torch.arange(len(layer.keys), device=rows.device))
            keys, values = (
                _with_room(part if every else part[rows], tokens) for part in (layer.keys, layer.values)
            )
            cache.layers[place] = _RoomyLayer(keys, values, filled)
        else:
            layer.reorder_cache(rows)  # type: ignore[arg-type, unused-ignore]


class _RoomyLayer(DynamicLayer):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Keys and values are the filled parts of two larger tensors `(sequences, heads, tokens, size)`."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, all_keys: torch.Tensor, all_values: torch.Tensor, filled: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.dtype, self.device, self.is_initialized = all_keys.dtype, all_keys.device, True
        self._all_keys, self._all_values = all_keys, all_values
        self._show(len(all_keys), filled)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens after the existing ones."""
        rows, start = len(key_states), self.get_seq_length()
        stop = start + key_states.shape[2]
        self._all_keys[:rows, :, start:stop] = key_states
        self._all_values[:rows, :, start:stop] = value_states
        return self._show(rows, stop)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Move row `beam_idx[i]` to place i, without adding rows; a row that stays costs nothing."""
        moved = (beam_idx != torch.arange(len(beam_idx), device=beam_idx.device)).nonzero()[:, 0]
        tokens = self.get_seq_length()
        for part in (self._all_keys, self._all_values):
            part[moved, :, :tokens] = part[beam_idx[moved], :, :tokens]
        self._show(len(beam_idx), tokens)

    def _show(self, rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (part[:rows, :, :tokens] for part in (self._all_keys, self._all_values))
        self.keys, self.values = keys, values
        return keys, values


def _with_room(part: torch.Tensor, tokens: int) -> torch.Tensor:
    rows, heads, filled, size = part.shape
    room = part.new_empty(rows, heads, filled + tokens, size)
    room[:, :, :filled] = part
    return room
