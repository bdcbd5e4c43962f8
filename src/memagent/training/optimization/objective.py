"""From rewards to the loss: Multi-Conv DAPO (arXiv 2507.02259, section 3.2; DAPO, arXiv 2503.14476).

What differs from the paper:
- Exponents are clamped and k3 is capped at 10, so that no single token can make the gradient infinite.
- Where A < 0, a dual clip bounds a token's loss, as in the authors' scripts. These also clip at 0.2 on both
  sides, where the paper and the defaults here have DAPO's 0.2 and 0.28.

Mistakes that are easy to make; a test guards against each of them:
- Normalising advantages per row: a trajectory that read more has more rows, yet counts once in its group.
  So advantages are per trajectory, then given to every token of all its conversations.
- Averaging per micro-batch or rank: the gradient would depend on the batching. Losses are not averaged here;
  the learner divides their sum by the sampled tokens of the whole optimizer step.
- As many optimizer steps as the rows fill: long documents would get more updates than short ones.
- Tokenising text again: the ids and log-probabilities are the sampler's, or it is an error.
"""

from __future__ import annotations

import torch

from memagent.training.settings import LossSettings

_EPSILON = 1e-6
_MAX_DIFFERENCE = 20.0  # between two log-probabilities, in either direction
_MAX_K3 = 10.0


def group_advantages(rewards: torch.Tensor, divide_by_std: bool = False) -> torch.Tensor:
    """A_i = R_i - mean(R), group by group: `(groups, attempts)` to `(groups, attempts)`.

    With `divide_by_std`, they are also divided by the group's standard deviation (with Bessel's
    correction, as in GRPO, arXiv 2402.03300), which gives more weight to groups of nearly equal rewards.
    """
    above = rewards - rewards[:, :1]  # the mean of equal rewards may be rounded; that of zeros is exact
    centred = above - above.mean(dim=1, keepdim=True)
    if not divide_by_std or rewards.shape[1] < 2:
        return centred
    return centred / (centred.std(dim=1, keepdim=True) + _EPSILON)


def probability_ratio(policy_logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """r: each token's probability under the policy divided by that under the sampler `(tokens,)`."""
    return torch.exp((policy_logprobs - old_logprobs).clamp(-_MAX_DIFFERENCE, _MAX_DIFFERENCE))


def clipped_objective(
    policy_logprobs: torch.Tensor,  # (tokens,)
    old_logprobs: torch.Tensor,  # (tokens,)
    advantages: torch.Tensor,  # (tokens,)
    clip_low: float,
    clip_high: float,
    dual_clip: float,
) -> torch.Tensor:
    """A token's term of the objective: min(r A, clip(r, 1 - low, 1 + high) A), and at least c A if A < 0.

    c is the dual clip (arXiv 1912.09729).
    """
    ratio = probability_ratio(policy_logprobs, old_logprobs)  # (tokens,)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    return torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)


def k3(policy_logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Schulman's estimate of the KL divergence of the policy from the reference, per token `(tokens,)`.

    Never negative, and unbiased for tokens drawn from the policy, but capped at 10, as in verl: where the
    reference gives a token more than 13.6 times the policy's probability, it pulls no more.
    """
    difference = (reference_logprobs - policy_logprobs).clamp(-_MAX_DIFFERENCE, _MAX_DIFFERENCE)
    return (torch.exp(difference) - difference - 1).clamp(max=_MAX_K3)


def token_losses(
    policy_logprobs: torch.Tensor,  # (tokens,)
    old_logprobs: torch.Tensor,  # (tokens,)
    advantages: torch.Tensor,  # (tokens,)
    loss: LossSettings,
    reference_logprobs: torch.Tensor | None = None,  # (tokens,)
) -> torch.Tensor:
    """The loss of each token, to be minimised `(tokens,)`: -(objective - beta * k3)."""
    clips = loss.clip_low, loss.clip_high, loss.dual_clip
    losses = -clipped_objective(policy_logprobs, old_logprobs, advantages, *clips)
    if reference_logprobs is not None and loss.kl_weight:
        losses = losses + loss.kl_weight * k3(policy_logprobs, reference_logprobs)
    return losses
