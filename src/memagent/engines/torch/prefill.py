"""Prefill: compute prompts as one batch; beginnings that they share are computed once.

Rollouts of one example read the same chunk before they differ. transformers' cache grows by concatenation,
which copies all of it at each token; here it gets room for the tokens still to be sampled, except in layers
of other kinds (sliding windows, states).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache as cached
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

Families = list[tuple[int, list[int]]]
"""The length of each family's common prefix, and the indices of its members."""

_MIN_SAVED = 0.25  # as a share of all prompt tokens; below this saving, a separate pass does not pay


def read_prompts(
    model: PreTrainedModel, prompt_ids: Sequence[Sequence[int]], steps: int
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Read all prompts, computing repeated prompts and shared beginnings only once.

    Returns, for each prompt, the logits of the next token `(sequences, vocabulary)`; a mask of its own
    positions in the cache `(sequences, tokens)`; and the cache, with room for `steps` more tokens.
    """
    requested = [tuple(ids) for ids in prompt_ids]
    prompts = list(dict.fromkeys(requested))
    families = group_by_beginning(prompts)
    if _sees_all(model) and _pays(families, prompts):
        logits, mask, cache = _read_by_family(model, prompts, families)
        prompts = [prompts[index] for _, members in families for index in members]
    else:
        logits, mask, cache = _read_whole(model, prompts)
    indices = {prompt: index for index, prompt in enumerate(prompts)}
    of_requested = torch.tensor([indices[prompt] for prompt in requested], device=model.device)
    make_room(cache, of_requested, steps)
    return logits[of_requested], mask[of_requested], cache


def _pays(families: Families, prompts: Sequence[Sequence[int]]) -> bool:
    """Whether to read beginnings in a separate pass: every family has one, and it saves enough."""
    saved = sum(shared * (len(members) - 1) for shared, members in families)
    return saved >= _MIN_SAVED * sum(map(len, prompts)) and all(shared for shared, _ in families)


def _read_by_family(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], families: Families
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Read each family's beginning once, then what follows it in each prompt.

    Returns what `_read_whole` does, with the prompts family after family. Padding lies between a
    beginning and a shorter rest, where it would fill a sliding window or enter a state, so every layer has to
    see all tokens.
    """
    beginnings = [prompts[members[0]][:shared] for shared, members in families]
    _, mask, cache = _read_whole(model, beginnings)
    of_prompts = torch.tensor(
        [number for number, (_, members) in enumerate(families) for _ in members], device=model.device
    )
    cache.reorder_cache(of_prompts)  # a prompt's beginning is its family's
    rests = [prompts[index][shared:] for shared, members in families for index in members]
    input_ids, tail = pad_left(rests, model.device)
    mask = torch.cat([mask[of_prompts], tail], dim=1)
    logits, cache = forward(model, input_ids, mask, cache)
    return logits, mask, cache


def _read_whole(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Read prompts of which nothing is in a cache.

    Returns the logits after each `(sequences, vocabulary)`; a mask of its own positions in the cache
    `(sequences, tokens)`; and the cache. If every layer sees all tokens, padding comes last, where causal
    attention never looks. It needs no mask then, and its kernels skip the half that no token sees.
    """
    if not _sees_all(model):
        input_ids, mask = pad_left(prompts, model.device)
        logits, cache = forward(model, input_ids, mask)
        return logits, mask, cache
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    width = int(lengths.max())
    input_ids = lengths.new_tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
    lasts = torch.arange(len(prompts), device=model.device) * width + lengths - 1
    with logits_at(model, lasts):
        output = model(input_ids=input_ids, use_cache=True)
    mask = (torch.arange(width, device=model.device) < lengths[:, None]).long()
    return output.logits, mask, _cache_of(output)


def _sees_all(model: PreTrainedModel) -> bool:
    """Whether each layer attends to all tokens so far: none keeps a state, or only the last tokens."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return not (model._is_stateful or getattr(config, "sliding_window", None))
    return set(kinds) == {"full_attention"}


@contextmanager
def logits_at(model: PreTrainedModel, indices: torch.Tensor) -> Iterator[None]:
    """Within the block, the model's head computes logits only at these indices.

    `indices` `(logits,)` count through the flattened rows; the logits are `(logits, vocabulary)`. The logits
    of all tokens of a batch would need more memory than everything else.
    """

    def choose(_: Any, hidden: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        return (hidden[0].flatten(0, 1)[indices],)

    head = model.get_output_embeddings()  # type: ignore[no-untyped-call, unused-ignore]
    hook = head.register_forward_pre_hook(choose)
    try:
        yield
    finally:
        hook.remove()


def forward(
    model: PreTrainedModel, input_ids: torch.Tensor, mask: torch.Tensor, cache: Any = None
) -> tuple[torch.Tensor, Any]:
    """Run the model on tokens that follow the cache; `mask` `(sequences, tokens)` of both is 0 for padding.

    Returns the logits of the token after them `(sequences, vocabulary)`, and the cache with the tokens in it.
    """
    kind: Any = type(getattr(model, "get_base_model", lambda: model)())  # not peft's, which takes anything
    output = model(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :],
        use_cache=True,
        # With a number the head gets a view, for which bfloat16 takes 200 times as long on a CPU.
        logits_to_keep=torch.tensor([-1], device=input_ids.device),
        **{_cache_name(kind): cache},
    )
    return output.logits[:, -1], _cache_of(output)


@cached
def _cache_name(kind: Any) -> str:
    """What a class of models calls its cache: `cache` since transformers 5.24."""
    return "cache" if "cache" in signature(kind.forward).parameters else "past_key_values"


def _cache_of(output: Any) -> Any:
    return output.cache if "cache" in output else output.past_key_values


def pad_left(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids `(sequences, tokens)`, padded on the left, and a mask that is 0 for padding."""
    width = max(map(len, ids))
    padded = [[0] * (width - len(row)) + list(row) for row in ids]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in ids]
    return torch.tensor(padded, device=device), torch.tensor(mask, device=device)


def make_room(cache: Cache, rows: torch.Tensor, tokens: int) -> None:
    """Make row i of the cache a copy of its row `rows[i]`, with room for `tokens` more tokens."""
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            filled = layer.keys.shape[2]
            every = rows.equal(torch.arange(len(layer.keys), device=rows.device))
            keys, values = (
                _with_room(part if every else part[rows], tokens) for part in (layer.keys, layer.values)
            )
            cache.layers[index] = _RoomyLayer(keys, values, filled)
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
        """Move row `beam_idx[i]` to index i, without adding rows; a row that stays costs nothing."""
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


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the sequences' common prefix."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # comparing slices is far faster than comparing tokens
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def group_by_beginning(prompts: Sequence[Sequence[int]]) -> Families:
    """Group prompts into families by their common prefixes.

    The grouping is the one that leaves the fewest tokens to compute if each family's prefix is computed once.
    If every prompt opens with the same words, the prompts that share a chunk are a family, rather than all of
    them. A prefix never includes a prompt's last token, since each prompt needs the logits after it. Families
    are in the order of their first members; a prompt that is like no other is a family by itself.
    """
    order = sorted(range(len(prompts)), key=lambda index: (tuple(prompts[index]), index))
    ordered = [prompts[index] for index in order]
    common = [min(common_length(one, other), len(one) - 1) for one, other in pairwise(ordered)]

    @cached
    def divide(begin: int, end: int, above: int) -> _Parts:
        """The best grouping of sorted prompts `begin` to `end`, which may share `above` with others."""
        if end - begin == 1:
            return _Parts(above, [begin], [])
        depth = min(common[begin : end - 1])
        borders = [index for index in range(begin + 1, end) if common[index - 1] == depth]
        branches = [*pairwise((begin, *borders, end))]
        closed = _join([divide(*branch, above) for branch in branches])
        opened = _join([divide(*branch, depth) for branch in branches])
        if opened.saved - depth > closed.saved:
            return _Parts(opened.saved - depth, [], [*opened.families, (depth, opened.left)])
        return closed

    parts = divide(0, len(order), 0) if order else _join([])
    alone = [(len(ordered[index]) - 1, [index]) for index in parts.left]
    families = [
        (shared, sorted(order[index] for index in places)) for shared, places in alone + parts.families
    ]
    return sorted(families, key=lambda family: family[1][0])


class _Parts(NamedTuple):
    """The tokens saved; the prompts left to a wider family; the families."""

    saved: int
    left: list[int]
    families: Families


def _join(parts: Sequence[_Parts]) -> _Parts:
    return _Parts(
        sum(part.saved for part in parts),
        [index for part in parts for index in part.left],
        [family for part in parts for family in part.families],
    )
