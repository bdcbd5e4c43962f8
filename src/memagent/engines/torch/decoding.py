"""Sample replies to several prompts as one batch.

Each row keeps its token ids as sampled, and their log-probabilities.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from memagent.engines.torch.prefill import forward, read_prompts
from memagent.engines.torch.sampling import Draws, sample
from memagent.types import Sampling


@dataclass(slots=True, eq=False)
class DecodingRow:
    """One call, a row of a batch. `finished` is resolved once the row has ended or failed.

    `turn` is how many batches had begun when it came.
    """

    prompt_ids: list[int]
    sampling: Sampling
    finished: asyncio.Future[None]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn: int = 0


def decode(
    model: PreTrainedModel,
    rows: Sequence[DecodingRow],
    stop_ids: frozenset[int],
    half_precision: bool = False,
    on_end: Callable[[Sequence[DecodingRow]], None] | None = None,
) -> None:
    """Sample all rows to their ends, as one batch. Runs in a thread.

    `on_end` is called with rows as they end, while others are still being sampled.
    """
    was_training = model.training
    model.train(False)  # training mode may apply dropout, and has no cache under gradient checkpointing
    precision = torch.autocast(model.device.type, torch.bfloat16, enabled=half_precision)
    try:
        with torch.no_grad(), precision:  # inference_mode could leave tensors that cannot be trained
            _decode_batch(model, rows, stop_ids, on_end)
    finally:
        model.train(was_training)


def _decode_batch(
    model: PreTrainedModel,
    rows: Sequence[DecodingRow],
    stop_ids: frozenset[int],
    on_end: Callable[[Sequence[DecodingRow]], None] | None,
) -> None:
    batch = _Batch(model, rows)
    while True:
        batch.draw()
        live = [index for index, row in enumerate(batch.rows) if not _has_ended(row, stop_ids)]
        if on_end:
            stay = set(live)
            on_end([row for index, row in enumerate(batch.rows) if index not in stay])
        if not live:
            return
        if len(live) < len(batch.rows):
            batch.keep(_close_gaps(live))
        batch.forward(model)


class _Batch:
    """Rows that are decoded together; between steps, the logits of their next tokens are known.

    `mask` `(sequences, tokens)` marks the places of the cache that are a row's own; `logits` is
    `(sequences, vocabulary)`.
    """

    def __init__(self, model: PreTrainedModel, rows: Sequence[DecodingRow]) -> None:
        self.rows = list(rows)
        self.draws = Draws.of([row.sampling for row in rows], model.device)
        self.logits, self.mask, self.cache = read_prompts(
            model, [row.prompt_ids for row in rows], self.draws.uniforms.shape[1]
        )

    def draw(self) -> None:
        """Draw each row's next token."""
        steps = self.mask.new_tensor([len(row.completion_ids) for row in self.rows])
        _append(self.rows, *(part.tolist() for part in sample(self.logits, self.draws, steps)))

    def keep(self, order: list[int]) -> None:
        """Keep only the rows with these indices, in this order."""
        kept = torch.tensor(order, device=self.mask.device)
        self.cache.reorder_cache(kept)  # the one way to select rows that every kind of cache has
        self.mask = self.mask[kept]
        self.draws = self.draws.of_rows(kept)
        self.rows = [self.rows[index] for index in order]

    def forward(self, model: PreTrainedModel) -> None:
        """Run the model on the tokens that were drawn last."""
        ids = self.mask.new_tensor([[row.completion_ids[-1]] for row in self.rows])
        self.mask = pad(self.mask, (0, 1), value=1)
        self.logits, self.cache = forward(model, ids, self.mask, self.cache)


def _close_gaps(live: list[int]) -> list[int]:
    """The live rows' indices, with the last ones moved into the gaps of ended rows, so that most stay put."""
    stay, movers = set(live), iter(index for index in live if index >= len(live))
    return [place if place in stay else next(movers) for place in range(len(live))]


def _append(rows: Sequence[DecodingRow], token_ids: list[int], logprobs: list[float]) -> None:
    for row, token_id, logprob in zip(rows, token_ids, logprobs, strict=True):
        if math.isnan(logprob):
            raise ArithmeticError("the logits are not numbers: the weights may be broken")
        row.completion_ids.append(token_id)
        row.logprobs.append(logprob)


def _has_ended(row: DecodingRow, stop_ids: frozenset[int]) -> bool:
    # A future's state may be read from any thread; a row that nobody waits for has ended.
    full = len(row.completion_ids) == row.sampling.max_tokens
    return full or row.completion_ids[-1] in stop_ids or row.finished.done()
