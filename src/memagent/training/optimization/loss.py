"""The loss of Multi-Conv DAPO, token by token (arXiv 2507.02259 section 3.2; DAPO, arXiv 2503.14476).

Everything is flat over tokens. What is averaged over is the caller's business, and it is one thing
only: all sampled tokens of the optimizer step, over all its micro-batches and ranks. Nothing here averages.
"""

from __future__ import annotations

import torch


def clipped_objective(
    policy_logprobs: torch.Tensor,  # (tokens,)
    old_logprobs: torch.Tensor,  # (tokens,)
    advantages: torch.Tensor,  # (tokens,)
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """What each token adds to the objective, to be maximised: `min(r A, clip(r, 1 - low, 1 + high) A)`.

    `r` is the ratio of the token's probabilities under the policy and under the sampler.
    """
    ratio = torch.exp(policy_logprobs - old_logprobs)  # (tokens,)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratio * advantages, clipped * advantages)


def k3(policy_logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Schulman's estimate of the KL divergence of the policy from the reference, per token `(tokens,)`.

    Unbiased for tokens drawn from the policy, and never negative.
    """
    difference = reference_logprobs - policy_logprobs  # (tokens,)
    return torch.exp(difference) - difference - 1


def token_losses(
    policy_logprobs: torch.Tensor,  # (tokens,)
    old_logprobs: torch.Tensor,  # (tokens,)
    advantages: torch.Tensor,  # (tokens,)
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    reference_logprobs: torch.Tensor | None = None,  # (tokens,)
    kl_weight: float = 0.0,
) -> torch.Tensor:
    """The loss of each token, to be minimised `(tokens,)`; their sum over their number is the loss."""
    losses = -clipped_objective(policy_logprobs, old_logprobs, advantages, clip_low, clip_high)
    if reference_logprobs is not None and kl_weight:
        losses = losses + kl_weight * k3(policy_logprobs, reference_logprobs)
    return losses
