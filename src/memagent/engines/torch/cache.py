"""A key-value cache with room for the tokens still to be sampled, so that each step writes in place.

transformers' own layers grow by concatenation, which copies the whole cache at each token. Layers of other
kinds (sliding windows, states) stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
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
                _with_room([part if every else part[rows]], tokens) for part in (layer.keys, layer.values)
            )
            cache.layers[place] = _RoomyLayer(keys, values, filled)
        else:
            layer.reorder_cache(rows)  # type: ignore[arg-type, unused-ignore]


def has_room(cache: Cache) -> bool:
    """Whether rows can join: not if layers keep states."""
    return all(isinstance(layer, _RoomyLayer) for layer in cache.layers)


def join(cache: Cache, filled: int, other: Cache, others_filled: int, tokens: int) -> None:
    """Append the rows of `other` to `cache`, all aligned at their ends, with room for `tokens` more tokens.

    The last `filled` tokens of `cache` and `others_filled` of `other` are kept. Raises `TypeError` for layers
    without room.
    """
    for place, (layer, added) in enumerate(zip(_roomy(cache), _roomy(other), strict=True)):
        keys, values = (
            _with_room([one[:, :, -filled:], two[:, :, -others_filled:]], tokens)
            for one, two in ((layer.keys, added.keys), (layer.values, added.values))
        )
        cache.layers[place] = _RoomyLayer(keys, values, max(filled, others_filled))


def _roomy(cache: Cache) -> list[_RoomyLayer]:
    """The layers. Raises `TypeError` unless all have room."""
    layers = [layer for layer in cache.layers if isinstance(layer, _RoomyLayer)]
    if len(layers) < len(cache.layers):
        raise TypeError("the cache has layers without room, which keep all their tokens and rows")
    return layers


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


def _with_room(parts: Sequence[torch.Tensor], tokens: int) -> torch.Tensor:
    """The rows of all parts, aligned at their ends, with room for `tokens` tokens after them.

    Shorter rows are padded in front with zeros, since a mask does not hide NaN.
    """
    _, heads, _, size = parts[0].shape
    filled = max(part.shape[2] for part in parts)
    room = parts[0].new_empty(sum(map(len, parts)), heads, filled + tokens, size)
    for own, part in zip(torch.split(room, [len(part) for part in parts]), parts, strict=True):
        before = filled - part.shape[2]
        own[:, :, :before] = 0
        own[:, :, before:filled] = part
    return room
