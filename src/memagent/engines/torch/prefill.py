"""Prefill: compute prompts as one batch; beginnings that they share are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as cache_results
from inspect import signature
from typing import Any

import torch
from transformers import PreTrainedModel

from memagent.engines.torch.cache import make_room
from memagent.engines.torch.prefixes import Families, group_by_beginning

_MIN_SAVED = 0.25  # as a share of all prompt tokens; below this saving, a separate pass does not pay


def read_prompts(
    model: PreTrainedModel, prompt_ids: Sequence[Sequence[int]], steps: int
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Read all prompts, computing repeated prompts and shared beginnings only once.

    Returns, for each prompt, the logits of the next token `(sequences, vocabulary)`; a mask of the places
    in the cache that are its own `(sequences, tokens)`; and the cache, with room for `steps` more tokens.
    """
    wanted = [tuple(ids) for ids in prompt_ids]
    prompts = list(dict.fromkeys(wanted))
    families = group_by_beginning(prompts)
    if _sees_all(model) and _pays(families, prompts):
        logits, mask, cache = _read_by_family(model, prompts, families)
        prompts = [prompts[index] for _, members in families for index in members]
    else:
        logits, mask, cache = _read_whole(model, prompts)
    places = {prompt: place for place, prompt in enumerate(prompts)}
    of_wanted = torch.tensor([places[prompt] for prompt in wanted], device=model.device)
    make_room(cache, of_wanted, steps)
    return logits[of_wanted], mask[of_wanted], cache


def _pays(families: Families, prompts: Sequence[Sequence[int]]) -> bool:
    """Whether to read beginnings in a pass of their own: every family has one, and they save enough."""
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

    Returns the logits after each `(sequences, vocabulary)`; a mask of the places in the cache that are its
    own `(sequences, tokens)`; and the cache. If every layer sees all tokens, padding comes last, where causal
    attention never looks. It needs no mask then, and its kernels skip the half that no token sees.
    """
    if not _sees_all(model):
        input_ids, mask = pad_left(prompts, model.device)
        logits, cache = forward(model, input_ids, mask)
        return logits, mask, cache
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    width = int(lengths.max())
    input_ids = lengths.new_tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
    ends, places = (lengths - 1).unique(return_inverse=True)  # type: ignore[no-untyped-call, unused-ignore]
    output = model(input_ids=input_ids, use_cache=True, logits_to_keep=ends)
    logits = output.logits[torch.arange(len(prompts), device=model.device), places]
    mask = (torch.arange(width, device=model.device) < lengths[:, None]).long()
    return logits, mask, _cache_of(output)


def _sees_all(model: PreTrainedModel) -> bool:
    """Whether each layer attends to all tokens so far: none keeps a state, or only the last tokens."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return not (model._is_stateful or getattr(config, "sliding_window", None))
    return set(kinds) == {"full_attention"}


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
        logits_to_keep=1,
        **{_cache_name(kind): cache},
    )
    return output.logits[:, -1], _cache_of(output)


@cache_results
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
