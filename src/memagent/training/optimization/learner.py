"""Optimizer steps: the same gradient however sequences are cut into micro-batches or spread over ranks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memagent.errors import TrainingError
from memagent.training.optimization.loss import k3, token_losses
from memagent.training.optimization.policy import Policy, TokenValues
from memagent.training.optimization.sequences import Batch, batches
from memagent.training.ranks import Ranks
from memagent.training.settings import LossSettings, OptimizerSettings
from memagent.types import TrainingSequence

Sums = defaultdict[str, float]
TokenLoss = Callable[[Batch, TokenValues, Sums], torch.Tensor]
"""The loss of each completion token `(tokens,)`; adds what it measures to the sums."""


class Learner:
    """A policy with its optimizer. `steps` counts the optimizer steps, which the warm-up goes by."""

    def __init__(self, policy: Policy, settings: OptimizerSettings, ranks: Ranks) -> None:
        self.policy = policy
        self.settings = settings
        self.ranks = ranks
        self.steps = 0
        self._parameters = list(policy.trained().values())
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=settings.learning_rate,
            betas=(settings.betas[0], settings.betas[1]),
            weight_decay=settings.weight_decay,
        )

    def reinforce(self, sequences: Sequence[TrainingSequence], loss: LossSettings) -> Sums:
        """A step of Multi-Conv DAPO on one mini-batch. Returns sums over its tokens."""

        def losses(batch: Batch, values: TokenValues, sums: Sums) -> torch.Tensor:
            reference = self.policy.reference_logprobs(batch) if loss.kl_weight else None
            _measure(batch, values, reference, loss, sums)
            return token_losses(
                values.logprobs, batch.old_logprobs, batch.advantages,
                loss.clip_low, loss.clip_high, reference, loss.kl_weight,
            )  # fmt: skip

        return self._step(sequences, losses)

    def imitate(self, sequences: Sequence[TrainingSequence], scale: float = 1.0) -> Sums:
        """A step towards the completions as they are, with the learning rate times `scale`.

        Returns sums over their tokens.
        """
        return self._step(sequences, lambda _batch, values, _sums: -values.logprobs, scale)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: trained weights, optimizer, count of steps."""
        trained = {name: value.detach().cpu() for name, value in self.policy.trained().items()}
        return {"trained": trained, "optimizer": self._optimizer.state_dict(), "steps": self.steps}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint. Raises `TrainingError` if it is of another policy."""
        self.load_weights(state)
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    def load_weights(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint's weights alone. Raises `TrainingError` if they are of another policy."""
        trained = self.policy.trained()
        if {name: value.shape for name, value in trained.items()} != {
            name: value.shape for name, value in state["trained"].items()
        }:
            raise TrainingError("the checkpoint is of another policy: its weights have other names or shapes")
        with torch.no_grad():
            for name, value in state["trained"].items():
                trained[name].copy_(value)

    def gradient(self, sequences: Sequence[TrainingSequence], token_loss: TokenLoss) -> Sums:
        """Leave in the parameters the gradient of the mean loss over all completion tokens, of all ranks."""
        total = self.ranks.total(sum(len(sequence.completion_ids) for sequence in sequences))
        sums = Sums(float)
        self._optimizer.zero_grad(set_to_none=True)
        with self.policy.training(self.settings.layout):
            for batch in batches(sequences, self.settings.layout, self.settings.batch_tokens):
                here = batch.to(self.policy.device)
                values = self.policy.values(here)
                losses = token_loss(here, values, sums)
                torch.autograd.backward(losses.sum() / total)
                sums["tokens"] += len(batch.targets)
                sums["sequence_tokens"] += batch.tokens
                sums["loss"] += losses.detach().sum().item()
        self.ranks.sum_gradients(self._parameters)
        return sums

    def _step(self, sequences: Sequence[TrainingSequence], token_loss: TokenLoss, scale: float = 1.0) -> Sums:
        started = time.perf_counter()
        sums = self.gradient(sequences, token_loss)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_gradient_norm).item()
        if not norm < float("inf"):
            raise TrainingError(
                f"the gradient is {norm} at optimizer step {self.steps + 1}: lower the learning rate"
            )
        self.steps += 1
        rate = self.settings.learning_rate * scale * min(1.0, self.steps / max(1, self.settings.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        sums["steps"] += 1
        sums["gradient_norm"] += norm
        sums["learning_rate"] += rate
        sums["seconds"] += time.perf_counter() - started
        return sums


def _measure(
    batch: Batch, values: TokenValues, reference: torch.Tensor | None, loss: LossSettings, sums: Sums
) -> None:
    """Add what is worth knowing of a micro-batch, as sums over its tokens."""
    policy_logprobs = values.logprobs.detach()
    ratio = torch.exp(policy_logprobs - batch.old_logprobs)
    measured = {
        "entropy": values.entropy,
        "mismatch": (policy_logprobs - batch.old_logprobs).abs(),
        "clip_low": (ratio < 1 - loss.clip_low) & (batch.advantages < 0),
        "clip_high": (ratio > 1 + loss.clip_high) & (batch.advantages > 0),
    }
    if reference is not None:
        measured["kl"] = k3(policy_logprobs, reference)
    for name, value in measured.items():
        sums[name] += value.sum().item()
