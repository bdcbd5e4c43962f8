"""From rewards to an optimizer step: advantages, sequences, losses, the gradient.

The gradient is the same however sequences are split into micro-batches or spread over ranks.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memagent.errors import TrainingError
from memagent.training.optimization.objective import group_advantages, k3, probability_ratio, token_losses
from memagent.training.optimization.policy import Policy, TokenValues
from memagent.training.optimization.sequences import Batch, batches
from memagent.training.ranks import Ranks
from memagent.training.settings import Credit, LossSettings, OptimizerSettings, ScheduleSettings
from memagent.types import Group, TrainingSequence, Trajectory

GO_BACK = (
    "lower the learning rate and continue with `resume`; if that fails as well, "
    "remove the newest checkpoint first"
)
_MAX_SKIPPED = 5
_NO_IDS = "{}: the engine gave no {}, which training needs: vLLM returns them from 0.10.2 on"

Sums = defaultdict[str, float]
TokenLoss = Callable[[Batch, TokenValues, Sums], torch.Tensor]
"""The loss of each completion token `(tokens,)`; the function adds its metrics to the sums."""


def learning_rate(schedule: ScheduleSettings, step: int, steps: int) -> float:
    """The learning rate of the step after `step` others, of `steps` in all."""
    rising = min(1.0, (step + 1) / max(schedule.warmup_steps, 1))
    falling = min(1.0, (steps - step) / max(schedule.decay_steps, 1))
    return schedule.learning_rate * rising * falling


def group_sequences(group: Group, loss: LossSettings) -> list[TrainingSequence]:
    """The conversations that get credit, each with its trajectory's advantage in the group.

    With `loss.credit` "shuffled", with that of a random trajectory of the group, which may be its own: the
    expected advantage of each is then 0. The same example is shuffled the same way.
    """
    rewards = torch.tensor([[trajectory.reward or 0.0 for trajectory in group.trajectories]])
    advantages = group_advantages(rewards, loss.divide_by_std)[0].tolist()
    if loss.credit == "shuffled":
        random.Random(group.example.id).shuffle(advantages)
    return [
        sequence
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        for sequence in sequences_of(trajectory, advantage, loss.credit)
    ]


def sequences_of(
    trajectory: Trajectory, advantage: float, credit: Credit = "trajectory"
) -> list[TrainingSequence]:
    """One sequence for each conversation that gets credit, all with this advantage.

    With `credit` "updates", "verdicts" or "answer", these alone. Raises `TrainingError` for a conversation
    without recorded token ids, or without a log-probability for each.
    """
    left_out = {"updates": "answer", "answer": "update"}.get(credit)
    sequences = []
    for conversation in trajectory.conversations:
        if conversation.kind == left_out or (credit == "verdicts" and conversation.verdict is None):
            continue
        completion = conversation.completion
        if not completion.prompt_ids or not completion.completion_ids:
            raise TrainingError(_NO_IDS.format(trajectory.example_id, "token ids"))
        if len(completion.logprobs) != len(completion.completion_ids):
            raise TrainingError(_NO_IDS.format(trajectory.example_id, "log-probability for each token"))
        sequences.append(
            TrainingSequence(completion.prompt_ids, completion.completion_ids, completion.logprobs, advantage)
        )
    return sequences


class Learner:
    """A policy and its AdamW optimizer, with the settings' betas or others."""

    def __init__(
        self,
        policy: Policy,
        settings: OptimizerSettings,
        ranks: Ranks,
        betas: tuple[float, float] | None = None,
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.ranks = ranks
        self.skipped = 0
        """How many steps, up to the last, were skipped in a row."""
        self._parameters = list(policy.trained_parameters().values())
        self._optimizer = torch.optim.AdamW(
            self._parameters, betas=betas or settings.betas, weight_decay=settings.weight_decay
        )

    def reinforce(self, sequences: Sequence[TrainingSequence], loss: LossSettings, rate: float) -> Sums:
        """Take a step of Multi-Conv DAPO on one mini-batch. Returns sums over its tokens."""

        def losses(batch: Batch, values: TokenValues, sums: Sums) -> torch.Tensor:
            reference = self.policy.reference_logprobs(batch) if loss.kl_weight else None
            _measure(batch, values, reference, loss, sums)
            return token_losses(values.logprobs, batch.old_logprobs, batch.advantages, loss, reference)

        return self._step(sequences, losses, rate)

    def fine_tune(self, sequences: Sequence[TrainingSequence], rate: float) -> Sums:
        """Take a supervised step on the completions. Returns sums over their tokens."""
        return self._step(sequences, lambda _batch, values, _sums: -values.logprobs, rate)

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores besides the policy's weights."""
        return {"optimizer": self._optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._optimizer.load_state_dict(state["optimizer"])

    def gradient(self, sequences: Sequence[TrainingSequence], token_loss: TokenLoss) -> Sums:
        """Compute the gradient of the mean loss over the completion tokens of all ranks."""
        total = sum(self.ranks.gather([sum(len(sequence.completion_ids) for sequence in sequences)]))
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

    def _step(self, sequences: Sequence[TrainingSequence], token_loss: TokenLoss, rate: float) -> Sums:
        """Take an optimizer step, or skip and count it if the gradient is not finite.

        Raises `TrainingError` after several skips in a row.
        """
        started = time.perf_counter()
        sums = self.gradient(sequences, token_loss)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.max_gradient_norm).item()
        self.skipped = 0 if math.isfinite(norm) else self.skipped + 1
        if self.skipped == _MAX_SKIPPED:
            raise TrainingError(
                f"the gradient was {norm} in {_MAX_SKIPPED} optimizer steps in a row: {GO_BACK}"
            )
        if not self.skipped:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        seconds = time.perf_counter() - started
        measured = {"skipped": self.skipped > 0, "gradient_norm": norm, "learning_rate": rate}
        return Sums(float, {**sums, **measured, "steps": 1, "seconds": seconds})


def _measure(
    batch: Batch, values: TokenValues, reference: torch.Tensor | None, loss: LossSettings, sums: Sums
) -> None:
    policy_logprobs = values.logprobs.detach()
    ratio = probability_ratio(policy_logprobs, batch.old_logprobs)
    measured = {
        "entropy": values.entropy,
        "mismatch": (policy_logprobs - batch.old_logprobs).abs(),
        "clip_low": (ratio < 1 - loss.clip_low) & (batch.advantages < 0),
        "clip_high": (ratio > 1 + loss.clip_high) & (batch.advantages > 0),
        "clip_dual": (ratio > loss.dual_clip) & (batch.advantages < 0),
    }
    if reference is not None:
        measured["kl"] = k3(policy_logprobs, reference)
    for name, value in measured.items():
        sums[name] += value.sum().item()
