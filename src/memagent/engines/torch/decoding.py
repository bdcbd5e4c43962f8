"""Sample replies to several prompts as one batch.

Each row keeps its token ids as sampled, and their log-probabilities. If the model's cache allows it, calls
that arrive while a batch runs may join it, and one pass may yield several tokens of a row.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from memagent.engines.torch.cache import has_room, join, put_behind, take_back
from memagent.engines.torch.lookup import MATCHED, Lookup
from memagent.engines.torch.prefill import forward, read_prompts
from memagent.engines.torch.sampling import Draws, sample
from memagent.types import Sampling

if TYPE_CHECKING:
    from memagent.engines.torch.calls import Calls


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
    lookup: Lookup | None = None
    turn: int = 0

    def guess(self) -> list[int]:
        """Guess the next tokens; none for a reply that has only begun."""
        if len(self.completion_ids) < MATCHED:
            return []
        if not self.lookup:
            self.lookup = Lookup((*self.prompt_ids, *self.completion_ids))
        return self.lookup.guess(self.sampling.max_tokens - len(self.completion_ids) - 1)

    def learn(self, guessed: int, true: int) -> None:
        """Note that `true` of `guessed` guessed tokens came true."""
        if self.lookup:
            self.lookup.learn(guessed, true)


def decode(
    model: PreTrainedModel,
    rows: Sequence[DecodingRow],
    stop_ids: frozenset[int],
    half_precision: bool = False,
    door: Calls | None = None,
) -> None:
    """Sample all rows to their ends, as one batch that others may join through `door`. Runs in a thread."""
    was_training = model.training
    model.train(False)  # training mode may apply dropout, and has no cache under gradient checkpointing
    precision = torch.autocast(model.device.type, torch.bfloat16, enabled=half_precision)
    try:
        with torch.no_grad(), precision:  # inference_mode could leave tensors that cannot be trained
            _decode_batch(model, rows, stop_ids, door)
    finally:
        model.train(was_training)


def _decode_batch(
    model: PreTrainedModel, rows: Sequence[DecodingRow], stop_ids: frozenset[int], door: Calls | None
) -> None:
    batch = _Batch(model, rows)
    while True:
        batch.draw(stop_ids)
        live = [index for index, row in enumerate(batch.rows) if not _ended(row, stop_ids)]
        if door:
            stay = set(live)
            door.leave([row for index, row in enumerate(batch.rows) if index not in stay])
        if not live:
            return
        if len(live) < len(batch.rows):
            batch.keep(_closed_up(live))
        batch.forward(model)
        if door and batch.has_room and (more := door.join(len(live))):
            batch.join(_Batch(model, more))


class _Batch:
    """Rows that are decoded together; between steps, the logits of their next tokens are known.

    `mask` `(sequences, tokens)` marks the places of the cache that are a row's own. `logits`
    `(sequences, places, vocabulary)` are those of the next token and, where tokens were guessed, of the
    token after each guess.
    """

    def __init__(self, model: PreTrainedModel, rows: Sequence[DecodingRow]) -> None:
        self.rows = list(rows)
        self.draws = Draws.of([row.sampling for row in rows], model.device)
        self.logits, self.mask, self.cache = read_prompts(
            model, [row.prompt_ids for row in rows], self.draws.uniforms.shape[1]
        )
        self.has_room = has_room(self.cache)
        self._guesses: list[list[int]] = [[] for _ in rows]

    def draw(self, stop_ids: frozenset[int]) -> None:
        """Draw each row's next token and, as long as its guesses come true, those after it."""
        going, true = list(range(len(self.rows))), [0] * len(self.rows)
        for place in range(self.logits.shape[1]):
            rows = [self.rows[index] for index in going]
            chosen = torch.tensor(going, device=self.logits.device)
            steps = chosen.new_tensor([len(row.completion_ids) for row in rows])
            if len(going) == len(self.rows):
                drawn = sample(self.logits[:, place], self.draws, steps)
            else:
                drawn = sample(self.logits[chosen, place], self.draws.of_rows(chosen), steps)
            _append(rows, *(part.tolist() for part in drawn))
            going = [
                index for index, row in zip(going, rows, strict=True)
                if self._guesses[index][place : place + 1] == row.completion_ids[-1:]
                and not _ended(row, stop_ids)
            ]  # fmt: skip
            for index in going:
                true[index] += 1
            if not going:
                break
        self._forget_wrong(true)

    def keep(self, order: list[int]) -> None:
        """Keep only the rows with these indices, in this order."""
        kept = torch.tensor(order, device=self.mask.device)
        self.cache.reorder_cache(kept)  # the one way to select rows that every kind of cache has
        self.mask = self.mask[kept]
        self.draws = self.draws.of_rows(kept)
        self.rows = [self.rows[index] for index in order]

    def forward(self, model: PreTrainedModel) -> None:
        """Run the model on the tokens that were drawn last, and on the guesses after them."""
        self._guesses = _even([row.guess() if self.has_room else [] for row in self.rows])
        width = 1 + max(map(len, self._guesses))
        read = [[row.completion_ids[-1], *guess] for row, guess in zip(self.rows, self._guesses, strict=True)]
        ids = self.mask.new_tensor([it + [0] * (width - len(it)) for it in read])
        own = self.mask.new_tensor([[1] * len(it) + [0] * (width - len(it)) for it in read])
        self.mask = torch.cat([self.mask, own], dim=1)
        self.logits, self.cache = forward(model, ids, self.mask, self.cache, width)

    def join(self, other: _Batch) -> None:
        """Take in the rows of another batch, which is at its first token."""
        if guessed := self.logits.shape[1] - 1:
            other._put_behind(guessed)
        self.draws = self.draws.above(other.draws)
        widths = [int(mask.any(0).flip(0).nonzero().max()) + 1 for mask in (self.mask, other.mask)]
        join(self.cache, widths[0], other.cache, widths[1], self.draws.uniforms.shape[1])
        self.mask = torch.cat([
            pad(mask[:, -width:], (max(widths) - width, 0))
            for mask, width in zip((self.mask, other.mask), widths, strict=True)
        ])  # fmt: skip
        self.logits = torch.cat([self.logits, other.logits])
        self.rows += other.rows
        self._guesses += other._guesses

    def _put_behind(self, tokens: int) -> None:
        """Append `tokens` padding tokens to each row."""
        self.logits = pad(self.logits, (0, 0, 0, tokens))
        self.mask = pad(self.mask, (0, tokens))
        put_behind(self.cache, tokens)

    def _forget_wrong(self, true: list[int]) -> None:
        """Remove the wrong guesses from the cache; `true` has each row's number of right ones."""
        guessed = self.logits.shape[1] - 1
        if not guessed:
            return
        for row, guess, number in zip(self.rows, self._guesses, true, strict=True):
            row.learn(len(guess), number)
        filled, kept = self.mask.shape[1] - guessed, max(true)
        self.mask = self.mask[:, : filled + kept]
        places = torch.arange(kept, device=self.mask.device)
        self.mask[:, filled:] = places < self.mask.new_tensor(true)[:, None]
        take_back(self.cache, guessed - kept)


def _even(guesses: list[list[int]]) -> list[list[int]]:
    """The guesses, cut to a length that a quarter of the rows reach: all cost as much as the longest."""
    longest = sorted(map(len, guesses), reverse=True)[len(guesses) // 4]
    return [guess[:longest] for guess in guesses]


def _closed_up(live: list[int]) -> list[int]:
    """The live rows' indices, with the last ones moved into the gaps of ended rows, so that most stay put."""
    stay, movers = set(live), iter(index for index in live if index >= len(live))
    return [place if place in stay else next(movers) for place in range(len(live))]


def _append(rows: Sequence[DecodingRow], token_ids: list[int], logprobs: list[float]) -> None:
    for row, token_id, logprob in zip(rows, token_ids, logprobs, strict=True):
        if math.isnan(logprob):
            raise ArithmeticError("the logits are not numbers: the weights may be broken")
        row.completion_ids.append(token_id)
        row.logprobs.append(logprob)
        if row.lookup:
            row.lookup.extend([token_id])


def _ended(row: DecodingRow, stop_ids: frozenset[int]) -> bool:
    # A future's state may be read from any thread; a row that nobody waits for has ended.
    full = len(row.completion_ids) == row.sampling.max_tokens
    return full or row.completion_ids[-1] in stop_ids or row.finished.done()
