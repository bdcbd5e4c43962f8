"""The cache with room: the same keys and values as transformers' own, however rows leave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache, LlamaConfig  # noqa: E402
from transformers.utils import ModelOutput  # noqa: E402

from memagent.engines.torch.prefill import forward, make_room  # noqa: E402

SHAPE = (2, 3)  # heads and size of keys


def grow(cache: DynamicCache, rows: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    heads, size = SHAPE
    keys, values = torch.randn(2, rows, heads, tokens, size)
    return cache.update(keys, values, layer_idx=0)


def both(cache: DynamicCache, *rest: int) -> torch.Tensor:
    return torch.stack(grow(cache, *rest))


def test_tokens_are_appended_in_place_and_rows_leave_like_in_transformers_own_cache() -> None:
    own, roomy = DynamicCache(), DynamicCache()
    for cache in (own, roomy):
        grow(cache, rows=5, tokens=7, seed=1)
    own.reorder_cache(rows := torch.tensor([1, 0, 1, 4, 2]))
    make_room(roomy, rows, tokens=3)
    address = roomy.layers[0].keys.data_ptr()
    assert torch.equal(both(own, 5, 1, 2), both(roomy, 5, 1, 2))
    for selection in (torch.tensor([0, 4, 2]), torch.tensor([1, 0])):
        for cache in (own, roomy):
            cache.reorder_cache(selection)
        rows = len(selection)
        assert torch.equal(both(own, rows, 1, rows), both(roomy, rows, 1, rows))
    assert roomy.layers[0].keys.data_ptr() == address
    assert roomy.get_seq_length() == own.get_seq_length() == 10


def test_an_empty_layer_is_left_alone() -> None:
    cache = DynamicCache(config=LlamaConfig(num_hidden_layers=1))
    make_room(cache, torch.tensor([0, 1]), tokens=4)
    assert torch.equal(both(cache, 2, 3, 1), both(DynamicCache(), 2, 3, 1))


@dataclass
class _Output(ModelOutput):
    logits: Any = None
    cache: Any = None


class _Renamed(torch.nn.Module):
    """A model that calls its cache as transformers does since 5.24."""

    def forward(self, input_ids: torch.Tensor, cache: Any = None, **_: Any) -> _Output:
        return _Output(logits=torch.zeros(1, input_ids.shape[1], 3), cache=[*(cache or ()), input_ids])


def test_the_cache_has_the_name_that_the_model_gives_it() -> None:
    model: Any = _Renamed()
    ids = torch.tensor([[1, 2]])
    _, cache = forward(model, ids, torch.ones(1, 2))
    _, cache = forward(model, ids, torch.ones(1, 4), cache)
    assert len(cache) == 2
