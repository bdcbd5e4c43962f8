"""Our advantages and our loss against verl's functions, on the same random batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.config import omega_conf_to_dataclass

from memagent.training.optimization.objective import group_advantages, token_losses
from memagent.training.settings import LossSettings

GROUPS, ATTEMPTS, TOKENS = 3, 4, 11


@pytest.fixture(params=[0.4, 4.0], ids=["near", "far"])
def batch(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Rows of random lengths, one to five for an attempt, in an order of their own."""
    torch.manual_seed(7)
    attempts = [(group, attempt) for group in range(GROUPS) for attempt in range(ATTEMPTS)]
    rows = [(*pair, index) for pair in attempts for index in range(int(torch.randint(1, 6, ())))]
    rows = [rows[at] for at in torch.randperm(len(rows))]
    lengths = torch.randint(1, TOKENS + 1, (len(rows), 1))
    rewards = torch.rand(GROUPS, ATTEMPTS)
    old = -torch.rand(len(rows), TOKENS)
    return {
        "rows": rows,
        "rewards": rewards,
        "mask": (torch.arange(TOKENS) < lengths).long(),  # (rows, tokens)
        "old": old,
        "policy": (old + request.param * torch.randn_like(old)).requires_grad_(),
        "reference": old + 0.5 * request.param * torch.randn_like(old),
        "advantages": torch.stack([group_advantages(rewards)[group, attempt] for group, attempt, _ in rows]),
    }


@pytest.mark.parametrize("by_std", [False, True])
def test_advantages(batch: dict[str, Any], by_std: bool) -> None:
    mask, rows = batch["mask"], batch["rows"]
    scores = torch.zeros(mask.shape)
    scores[torch.arange(len(rows)), mask.sum(1) - 1] = torch.stack(
        [batch["rewards"][row[:2]] for row in rows]
    )
    data = DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_rewards": scores},
        non_tensors={"uid": np.array([str(group) for group, _, _ in rows], dtype=object)},
    )
    keys = ["_".join(map(str, row)) for row in rows]
    theirs = compute_advantage_for_multi_trajectories(
        data, keys, "grpo", norm_adv_by_std_in_grpo=by_std
    ).batch["advantages"]
    each = torch.stack([group_advantages(batch["rewards"], by_std)[row[:2]] for row in rows])
    torch.testing.assert_close(theirs, each[:, None] * mask, rtol=0, atol=1e-6)


def test_loss_and_its_gradient_over_micro_batches(batch: dict[str, Any], compose: Callable[..., Any]) -> None:
    actor = omega_conf_to_dataclass(
        compose("actor_rollout_ref.actor.use_kl_loss=true").actor_rollout_ref.actor
    )
    mask, policy = batch["mask"].bool(), batch["policy"]
    advantages = batch["advantages"][:, None].expand(mask.shape)
    ours = (
        token_losses(
            policy[mask],
            batch["old"][mask],
            advantages[mask],
            LossSettings(clip_low=0.2, clip_high=0.28, kl_weight=1e-3),
            batch["reference"][mask],
        ).sum()
        / mask.sum()
    )
    our_gradient = torch.autograd.grad(ours, policy)[0]
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
    theirs = torch.zeros(())
    for part in torch.arange(len(mask)).split(4):
        loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
            old_log_prob=batch["old"][part],
            log_prob=policy[part],
            advantages=advantages[part],
            response_mask=mask[part],
            loss_agg_mode=actor.loss_agg_mode,
            config=actor,
        )
        kl = kl_penalty(policy[part], batch["reference"][part], actor.kl_loss_type)
        kl_loss = agg_loss(kl, mask[part], actor.loss_agg_mode, **actor.global_batch_info)
        theirs = theirs + loss + actor.kl_loss_coef * kl_loss
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    torch.testing.assert_close(our_gradient, torch.autograd.grad(theirs, policy)[0], rtol=0, atol=1e-6)
