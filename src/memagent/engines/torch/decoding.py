"""Sample the rest of several prompts as one batch; what they begin with is computed once.

Kept for each row: the token ids as sampled, and their log-probabilities. Calls that come while a batch runs
may join it, where the model's cache lets them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from memagent.engines.torch.cache import can_join, join, make_room
from memagent.engines.torch.prefixes import shared_beginnings
from memagent.types import Sampling

_LEAST_SAVED = 0.25  # of all tokens of the prompts: a pass of its own is not worth less


@dataclass(slots=True, eq=False)
class DecodingRow:
    """One call, a row of a batch. `finished` is resolved once the row has ended or failed."""

    prompt_ids: list[int]
    sampling: Sampling
    finished: asyncio.Future[None]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Draws(NamedTuple):
    """How each row of a batch draws its tokens."""

    temperature: torch.Tensor  # (sequences, 1), 1 where greedy
    greedy: torch.Tensor  # (sequences,)
    top_p: torch.Tensor  # (sequences, 1), above 1 where nothing is cut
    uniforms: torch.Tensor  # (sequences, tokens), a number in [0, 1) for each token

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> Draws:
        """The draws of rows that are sampled so, one for each."""
        # Each row has its own generator and draws on the CPU, all at once: its numbers depend on
        # its seed alone, not on the rows beside it, nor on the device.
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

    def left_after(self, steps: int) -> Draws:
        """The draws of the tokens after so many."""
        return self._replace(uniforms=self.uniforms[:, steps:])

    def above(self, other: Draws) -> Draws:
        """These rows and, below them, those of another batch."""
        width = max(self.uniforms.shape[1], other.uniforms.shape[1])
        wide = (
            it._replace(uniforms=pad(it.uniforms, (0, width - it.uniforms.shape[1]))) for it in (self, other)
        )
        return Draws(*map(torch.cat, zip(*wide, strict=True)))


def decode(
    model: PreTrainedModel,
    rows: Sequence[DecodingRow],
    stop_ids: frozenset[int],
    half_precision: bool = False,
    door: Door | None = None,
) -> None:
    """Sample all rows to their ends, as one batch; others join it through the `door`. Runs in a thread."""
    was_training = model.training
    model.train(False)  # training mode may drop units out, and has no cache under gradient checkpointing
    precision = torch.autocast(model.device.type, torch.bfloat16, enabled=half_precision)
    try:
        with torch.no_grad(), precision:  # inference_mode could leave tensors that refuse training
            _decode_batch(model, rows, stop_ids, door)
    finally:
        model.train(was_training)


def _decode_batch(
    model: PreTrainedModel, rows: Sequence[DecodingRow], stop_ids: frozenset[int], door: Door | None
) -> None:
    batch = _Batch(model, rows)
    takes_in = can_join(batch.cache)
    while True:
        token_ids, logprobs = sample(batch.logits, batch.draws, batch.step)
        _append(batch.rows, token_ids.tolist(), logprobs.tolist())
        live = [index for index, row in enumerate(batch.rows) if not _ended(row, stop_ids)]
        if door:
            stay = set(live)
            door.leave([row for index, row in enumerate(batch.rows) if index not in stay])
        if not live:
            return
        if len(live) < len(batch.rows):
            token_ids = batch.keep(_closed_up(live), token_ids)
        batch.forward(model, token_ids)
        if door and takes_in and (more := door.join(len(live))):
            batch.join(_Batch(model, more))


class Door(Protocol):
    """Where the rows of a batch that runs come and go. It is asked in the batch's thread."""

    def leave(self, rows: Sequence[DecodingRow]) -> None:
        """These have ended."""

    def join(self, live: int) -> Sequence[DecodingRow]:
        """The rows that are to join a batch of so many."""


class _Batch:
    """Rows that are decoded together, at a moment when the logits of their next tokens are known.

    `mask` `(sequences, tokens)` tells which places of the cache are a row's own; `step` is the column of the
    draws that is next.
    """

    def __init__(self, model: PreTrainedModel, rows: Sequence[DecodingRow]) -> None:
        self.rows = list(rows)
        self.draws = Draws.of([row.sampling for row in rows], model.device)
        self.step = 0
        self.logits, self.mask, self.cache = _read_prompts(model, rows, self.draws.uniforms.shape[1])

    def keep(self, order: list[int], token_ids: torch.Tensor) -> torch.Tensor:
        """Keep the rows of these indices alone, in this order; returns the tokens of those rows."""
        kept = torch.tensor(order, device=token_ids.device)
        self.cache.reorder_cache(kept)  # the one selection of rows that every kind of cache has
        self.mask = self.mask[kept]
        self.draws = Draws(*(part[kept] for part in self.draws))
        self.rows = [self.rows[index] for index in order]
        return token_ids[kept]

    def forward(self, model: PreTrainedModel, token_ids: torch.Tensor) -> None:
        """Read the tokens that were sampled `(sequences,)`."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        self.logits, self.cache = _forward(model, token_ids[:, None], self.mask, self.cache)
        self.step += 1

    def join(self, other: _Batch) -> None:
        """Take in the rows of another batch, which is at its first token."""
        self.draws = self.draws.left_after(self.step).above(other.draws)
        self.step = 0
        widths = [int(mask.any(0).flip(0).nonzero().max()) + 1 for mask in (self.mask, other.mask)]
        join(self.cache, widths[0], other.cache, widths[1], self.draws.uniforms.shape[1])
        self.mask = torch.cat([
            pad(mask[:, -width:], (max(widths) - width, 0))
            for mask, width in zip((self.mask, other.mask), widths, strict=True)
        ])  # fmt: skip
        self.logits = torch.cat([self.logits, other.logits])
        self.rows += other.rows


def _forward(
    model: PreTrainedModel, input_ids: torch.Tensor, mask: torch.Tensor, cache: Any = None
) -> tuple[torch.Tensor, Any]:
    """Read tokens behind those in the cache; `mask` `(sequences, tokens)` tells what of both is no padding.

    Returns the logits of the next token `(sequences, vocabulary)`, and the cache with the tokens in it.
    """
    output = model(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1], output.past_key_values


def _read_prompts(
    model: PreTrainedModel, rows: Sequence[DecodingRow], steps: int
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Read all prompts; one that several rows have, once, and what several begin with, once.

    Returns, for each row, the logits of its first token `(sequences, vocabulary)`; which places of the cache
    are its own `(sequences, tokens)`; and the cache, with room for so many more steps.
    """
    prompts = list(dict.fromkeys(tuple(row.prompt_ids) for row in rows))
    prompts, mask, cache = _read_beginnings(model, prompts)
    counts = mask.sum(1).tolist()
    rest = [prompt[int(count) :] for prompt, count in zip(prompts, counts, strict=True)]
    input_ids, tail = _left_padded(rest, model.device)
    mask = torch.cat([mask, tail], dim=1)
    logits, cache = _forward(model, input_ids, mask, cache)
    places = {prompt: place for place, prompt in enumerate(prompts)}
    of_rows = torch.tensor([places[tuple(row.prompt_ids)] for row in rows], device=model.device)
    make_room(cache, of_rows, steps)
    return logits[of_rows], mask[of_rows], cache


def _read_beginnings(
    model: PreTrainedModel, prompts: list[tuple[int, ...]]
) -> tuple[list[tuple[int, ...]], torch.Tensor, Any]:
    """Read what several prompts begin with, each beginning once.

    Returns the prompts, family after family; which places of the cache are a prompt's own
    `(prompts, tokens)`, their sum being how much of it is read; and the cache, with an entry for each
    prompt. Where that saves less than a quarter of the tokens nothing is read, and the cache is None.
    """
    families = shared_beginnings(prompts)
    saved = sum(shared * (len(members) - 1) for shared, members in families)
    few = saved < _LEAST_SAVED * sum(map(len, prompts))
    if few or not all(shared for shared, _ in families):
        return prompts, torch.ones(len(prompts), 0, dtype=torch.long, device=model.device), None
    ids, mask = _left_padded([prompts[members[0]][:shared] for shared, members in families], model.device)
    _, cache = _forward(model, ids, mask)
    of_prompts = torch.tensor(
        [number for number, (_, members) in enumerate(families) for _ in members], device=model.device
    )
    cache.reorder_cache(of_prompts)  # a prompt's beginning is its family's
    return [prompts[index] for _, members in families for index in members], mask[of_prompts], cache


def _closed_up(live: list[int]) -> list[int]:
    """The live rows' indices, the last of them in the gaps of those that ended: most stay at their places."""
    stay, movers = set(live), iter(index for index in live if index >= len(live))
    return [place if place in stay else next(movers) for place in range(len(live))]


def _left_padded(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids `(sequences, tokens)`, all ending in the last place, and a mask of what is no padding."""
    width = max(map(len, ids))
    padded = [[0] * (width - len(row)) + list(row) for row in ids]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in ids]
    return torch.tensor(padded, device=device), torch.tensor(mask, device=device)


def _append(rows: Sequence[DecodingRow], token_ids: list[int], logprobs: list[float]) -> None:
    for row, token_id, logprob in zip(rows, token_ids, logprobs, strict=True):
        if math.isnan(logprob):
            raise ArithmeticError("the logits are not numbers, the weights may be broken")
        row.completion_ids.append(token_id)
        row.logprobs.append(logprob)


def _ended(row: DecodingRow, stop_ids: frozenset[int]) -> bool:
    # The state of a future may be read from any thread; a row that nobody waits for has ended.
    full = len(row.completion_ids) == row.sampling.max_tokens
    return full or row.completion_ids[-1] in stop_ids or row.finished.done()


def sample(logits: torch.Tensor, draws: Draws, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row and its log-probability before `top_p`, both `(sequences,)`.

    `logits` are `(sequences, vocabulary)`. A token is where the row's uniform number lies in the
    cumulative distribution, which follows the order of the vocabulary: in that of the
    probabilities, rounding would make tokens that are nearly as likely change places.
    """
    logprobs = torch.log_softmax(logits.float() / draws.temperature, dim=-1)  # (sequences, vocabulary)
    cumulative = nucleus(logprobs.double().exp(), draws.top_p).cumsum(-1)
    targets = draws.uniforms[:, step, None] * cumulative[:, -1:]  # (sequences, 1)
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    drawn = drawn.clamp(max=logits.shape[-1] - 1)  # only logits that are not numbers lead past the end
    token_ids = torch.where(draws.greedy, logits.argmax(-1), drawn)
    return token_ids, logprobs.gather(-1, token_ids[:, None])[:, 0]


def nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probabilities, zero but for each row's fewest tokens that together reach `top_p`."""
    if bool((top_p > 1).all()):
        return probabilities
    ordered, order = probabilities.sort(-1, descending=True)  # (sequences, vocabulary)
    before = ordered.cumsum(-1) - ordered
    before[:, 0] = -1.0  # the likeliest token stays, however small top_p is
    return probabilities * torch.zeros_like(probabilities).scatter(-1, order, (before < top_p).double())
