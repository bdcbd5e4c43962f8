"""Sample replies to several prompts as one batch, and queue the calls that wait for the next.

Each row keeps its token ids as sampled, and their log-probabilities. Its random numbers depend on its seed
alone; each picks a token from the cumulative distribution.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from memagent.engines.torch.prefill import forward, read_prompts
from memagent.errors import EngineError
from memagent.types import MAX_ALTERNATIVES, Sampling

_SHORT_PROMPT_TOKENS = 512


@dataclass(slots=True, eq=False)
class DecodingRow:
    """One call, a row of a batch. `finished` is resolved once the row has ended or failed.

    `turn` is how many batches had begun when it was queued. `alternatives` are the likeliest first tokens of
    a verdict with their log-probabilities at temperature 1, likeliest first. `adapted` says whether it is
    decoded with the model's adapter.
    """

    prompt_ids: list[int]
    sampling: Sampling
    finished: asyncio.Future[None]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[tuple[int, float]] = field(default_factory=list)
    turn: int = 0
    adapted: bool = True

    def has_ended(self, stop_ids: frozenset[int]) -> bool:
        """Whether nothing more is to be sampled, or nobody waits for it. May be called from any thread."""
        full = len(self.completion_ids) == self.sampling.max_tokens
        return full or self.completion_ids[-1] in stop_ids or self.finished.done()


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
            batch = _DecodingBatch(model, rows)
            while True:
                batch.draw()
                ended = [row for row in batch.rows if row.has_ended(stop_ids)]
                if on_end:
                    on_end(ended)
                if len(ended) == len(batch.rows):
                    return
                if ended:
                    batch.drop(ended)
                batch.forward(model)
    finally:
        model.train(was_training)


class _DecodingBatch:
    """Rows that are decoded together; between steps, the logits of their next tokens are known.

    `mask` `(sequences, tokens)` marks the positions in the cache that are a row's own; `logits` is
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
        for index, row in enumerate(self.rows):
            if row.sampling.verdict and not row.completion_ids:
                best = torch.log_softmax(self.logits[index].float(), dim=-1).topk(MAX_ALTERNATIVES)
                row.alternatives = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        steps = self.mask.new_tensor([len(row.completion_ids) for row in self.rows])
        drawn = (part.tolist() for part in sample(self.logits, self.draws, steps))
        for row, token_id, logprob in zip(self.rows, *drawn, strict=True):
            if math.isnan(logprob):
                raise ArithmeticError("the logits are not numbers: the weights may be broken")
            row.completion_ids.append(token_id)
            row.logprobs.append(logprob)

    def drop(self, ended: Sequence[DecodingRow]) -> None:
        """Drop these rows; the last of the others move into their places, so that most stay put."""
        live = [index for index, row in enumerate(self.rows) if row not in ended]
        stay, movers = set(live), iter(index for index in live if index >= len(live))
        order = [index if index in stay else next(movers) for index in range(len(live))]
        retained = torch.tensor(order, device=self.mask.device)
        self.cache.reorder_cache(retained)  # the one way to select rows that every kind of cache has
        self.mask = self.mask[retained]
        self.draws = Draws(*(part[retained] for part in self.draws))
        self.rows = [self.rows[index] for index in order]

    def forward(self, model: PreTrainedModel) -> None:
        """Run the model on the tokens that were drawn last."""
        ids = self.mask.new_tensor([[row.completion_ids[-1]] for row in self.rows])
        self.mask = pad(self.mask, (0, 1), value=1)
        self.logits, self.cache = forward(model, ids, self.mask, self.cache)


class Draws(NamedTuple):
    """How each row of a batch draws its tokens."""

    temperature: torch.Tensor  # (sequences, 1), 1 where greedy
    greedy: torch.Tensor  # (sequences,)
    top_p: torch.Tensor  # (sequences, 1), above 1 where nothing is cut
    uniforms: torch.Tensor  # (sequences, tokens), a number in [0, 1) for each token

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> Draws:
        """The draws of rows with these sampling settings."""
        # Drawn on the CPU, row by row: they depend neither on the other rows nor on the device.
        uniforms = torch.zeros(
            len(samplings), max(sampling.max_tokens for sampling in samplings), dtype=torch.float64
        )
        for row, sampling in zip(uniforms, samplings, strict=True):
            generator = torch.Generator()
            generator.seed() if sampling.seed is None else generator.manual_seed(sampling.seed % 2**63)
            row[: sampling.max_tokens] = torch.rand(
                sampling.max_tokens, generator=generator, dtype=torch.float64
            )
        column = partial(torch.tensor, device=device, dtype=torch.float32)
        return cls(
            temperature=column([[sampling.temperature or 1.0] for sampling in samplings]),
            greedy=column([sampling.temperature for sampling in samplings]) == 0,
            top_p=column([[sampling.top_p if sampling.top_p < 1 else 2.0] for sampling in samplings]),
            uniforms=uniforms.to(device),
        )


def sample(logits: torch.Tensor, draws: Draws, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row and its log-probability before `top_p`, both `(sequences,)`.

    `logits` are `(sequences, vocabulary)`, `steps` `(sequences,)` the columns of the draws. The row's uniform
    number picks a token from the cumulative distribution in vocabulary order: if sorted by probability,
    rounding would make tokens that are nearly as likely swap places.
    """
    logprobs = torch.log_softmax(logits.float() / draws.temperature, dim=-1)  # (sequences, vocabulary)
    cumulative = nucleus(logprobs.double().exp(), draws.top_p).cumsum(-1)
    targets = draws.uniforms.gather(1, steps[:, None]) * cumulative[:, -1:]  # (sequences, 1)
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    drawn = drawn.clamp(max=logits.shape[-1] - 1)  # only NaN logits lead past the end
    token_ids = torch.where(draws.greedy, logits.argmax(-1), drawn)
    return token_ids, logprobs.gather(-1, token_ids[:, None])[:, 0]


def nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probabilities, set to zero except for each row's fewest tokens that together reach `top_p`."""
    if bool((top_p > 1).all()):
        return probabilities
    ordered, order = probabilities.sort(-1, descending=True)  # (sequences, vocabulary)
    before = ordered.cumsum(-1) - ordered
    before[:, 0] = -1.0  # the likeliest token stays, however small top_p is
    return probabilities * torch.zeros_like(probabilities).scatter(-1, order, (before < top_p).double())


class Calls:
    """The calls that wait and those of the running batch, ended ones included; at most `most_rows` run."""

    def __init__(self, most_rows: int) -> None:
        self.waiting: list[DecodingRow] = []
        self.running: list[DecodingRow] = []
        self._most_rows = most_rows
        self._batches = 0  # that have begun

    def add(self, row: DecodingRow) -> None:
        """Queue a call."""
        row.turn = self._batches
        self.waiting.append(row)

    def begin(self, in_order: bool = False) -> bool:
        """Make the next batch from the waiting calls; False if there are none.

        With `in_order`, it does not matter in which order calls came between two batches.
        """
        if in_order:
            self.waiting.sort(key=lambda row: (row.turn, row.prompt_ids, row.sampling.seed or 0))
        self._batches += 1
        self.running, self.waiting = next_batch(self.waiting, self._most_rows)
        return bool(self.running)

    def give_up(self) -> None:
        """Fail every call; a running batch ends with its next token, as nobody waits for it."""
        rows, self.waiting = [*self.waiting, *self.running], []
        fail(rows, "the engine was closed before the call was done")


def next_batch(waiting: Sequence[DecodingRow], most_rows: int) -> tuple[list[DecodingRow], list[DecodingRow]]:
    """The call that has waited longest with others of about its length, and the rest; no cancelled ones.

    Rows are padded to the longest prompt of their batch, so a far shorter one would cost as much. A batch is
    decoded with the adapter or without it.
    """
    rows = [row for row in waiting if not row.finished.done()]
    lengths = [sorted((len(row.prompt_ids), len(rows[0].prompt_ids))) for row in rows]
    alike = [row for row, (short, long) in zip(rows, lengths, strict=True)
             if long <= max(2 * short, _SHORT_PROMPT_TOKENS) and row.adapted == rows[0].adapted]  # fmt: skip
    batch = alike[:most_rows]
    return batch, [row for row in rows if row not in batch]


def leave(rows: Sequence[DecodingRow]) -> None:
    """Hand ended rows of the batch to their callers' event loop. Called in the batch's thread."""
    if rows:
        rows[0].finished.get_loop().call_soon_threadsafe(finish, rows)


def finish(rows: Iterable[DecodingRow]) -> None:
    """Hand the rows to their callers."""
    for row in rows:
        if not row.finished.done():
            row.finished.set_result(None)


def fail(rows: Iterable[DecodingRow], reason: str, cause: BaseException | None = None) -> None:
    """Raise `EngineError` in the rows' callers."""
    for row in rows:
        if not row.finished.done():
            failure = EngineError(reason)
            failure.__cause__ = cause
            row.finished.set_exception(failure)
