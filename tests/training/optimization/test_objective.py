"""The loss, token by token, on numbers worked by hand."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memagent.training.optimization.objective import clipped_objective, k3, probability_ratio, token_losses  # noqa: E402
from memagent.training.settings import LossSettings  # noqa: E402

# With clips of 0.2 and 0.28 a ratio is held within [0.8, 1.28]; the smaller of r A and clip(r) A counts.
# Its gradient in the logprob is r A where r A counts, and nothing where the clip does.
REGIONS = [
    # ratio, advantage, objective, gradient
    (0.5, 2.0, 1.0, 1.0),  # min(0.5 * 2, 0.8 * 2): lifting an unlikely token is never held back
    (1.1, 2.0, 2.2, 2.2),  # within
    (2.0, 2.0, 2.56, 0.0),  # min(2 * 2, 1.28 * 2): it was lifted enough
    (0.5, -2.0, -1.6, 0.0),  # min(0.5 * -2, 0.8 * -2): it was lowered enough
    (1.1, -2.0, -2.2, -2.2),  # within
    (2.0, -2.0, -4.0, -4.0),  # min(2 * -2, 1.28 * -2): lowering a likely token is held back
    (3.5, -2.0, -6.0, 0.0),  # only from 3 on, by the dual clip: max(3.5 * -2, 3 * -2)
]


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("ratio", "advantage", "objective", "_"), REGIONS)
def test_the_objective_in_every_region(ratio: float, advantage: float, objective: float, _: float) -> None:
    result = clipped_objective(column(log(ratio) - 3), column(-3), column(advantage), 0.2, 0.28, 3.0)
    assert result.item() == pytest.approx(objective)


@pytest.mark.parametrize(("ratio", "advantage", "_", "gradient"), REGIONS)
def test_the_gradient_is_zero_exactly_where_it_is_clipped(
    ratio: float, advantage: float, _: float, gradient: float
) -> None:
    policy_logprobs = column(log(ratio) - 3).requires_grad_()
    clipped_objective(policy_logprobs, column(-3), column(advantage), 0.2, 0.28, 3.0).sum().backward()
    assert policy_logprobs.grad.item() == pytest.approx(gradient)


def test_at_a_ratio_of_one_the_gradient_is_the_advantage() -> None:
    policy_logprobs = column(-1, -2, -3).requires_grad_()
    old, advantages = column(-1, -2, -3), column(0.5, -0.5, 0)
    clipped_objective(policy_logprobs, old, advantages, 0.2, 0.28, 3.0).sum().backward()
    assert policy_logprobs.grad.tolist() == pytest.approx([0.5, -0.5, 0.0])


def test_the_two_clips_are_two() -> None:
    # a ratio of 1.25 is past a clip of 0.2 but not of 0.28; one of 0.75 is past 0.2 below
    ratios = column(log(1.25), log(0.75))
    objectives = clipped_objective(ratios, column(0, 0), column(1, -1), 0.2, 0.28, 3.0)
    assert objectives.tolist() == pytest.approx([1.25, -0.8])
    swapped = clipped_objective(ratios, column(0, 0), column(1, -1), 0.28, 0.2, 3.0)
    assert swapped.tolist() == pytest.approx([1.2, -0.75])


def test_tokens_are_kept_apart() -> None:
    ratios, advantages, objectives, _ = zip(*REGIONS, strict=True)
    result = clipped_objective(
        column(*map(log, ratios)), column(*[0] * len(REGIONS)), column(*advantages), 0.2, 0.28, 3.0
    )
    assert result.tolist() == pytest.approx(list(objectives))


def test_k3_by_hand() -> None:
    # the reference twice as likely: 2 - ln 2 - 1 = 0.3069; half as likely: 0.5 + ln 2 - 1 = 0.1931
    divergences = k3(column(-3, -3, -3), column(log(2) - 3, -log(2) - 3, -3))
    assert divergences.tolist() == pytest.approx([0.30685, 0.19315, 0.0], abs=1e-5)


def test_the_dual_clip_is_for_negative_advantages_alone() -> None:
    # ratio 5: 3 * -2 and min(5 * 2, 1.28 * 2); without it -10
    ratios, old, advantages = column(log(5), log(5)), column(0, 0), column(-2, 2)
    objectives = clipped_objective(ratios, old, advantages, 0.2, 0.28, dual_clip=3.0)
    assert objectives.tolist() == pytest.approx([-6.0, 2.56])
    assert clipped_objective(ratios, old, advantages, 0.2, 0.28, dual_clip=9.0)[0].item() == pytest.approx(
        -10
    )


@pytest.mark.parametrize(("gap", "ratio"), [(-2000.0, exp(-20)), (2000.0, exp(20)), (19.0, exp(19))])
def test_the_ratio_is_clamped_at_e_to_the_20(gap: float, ratio: float) -> None:
    assert probability_ratio(column(gap - 3), column(-3)).item() == pytest.approx(ratio)


def test_k3_of_tokens_far_off_is_10_and_pulls_no_more() -> None:
    # by hand e**100 - 101 and 100 - 1 + e**-100; both past 10
    policy_logprobs = column(-103, -3).requires_grad_()
    divergences = k3(policy_logprobs, column(-3, -103))
    assert divergences.tolist() == [10.0, 10.0]
    divergences.sum().backward()
    assert policy_logprobs.grad.tolist() == [0.0, 0.0]


def test_k3_pulls_towards_the_reference() -> None:
    # its derivative in the policy's logprob is 1 - reference / policy: 1 - 2 = -1 and 1 - 1/2
    policy_logprobs = column(-3, -3).requires_grad_()
    k3(policy_logprobs, column(log(2) - 3, -log(2) - 3)).sum().backward()
    assert policy_logprobs.grad.tolist() == pytest.approx([-1.0, 0.5])


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_k3_is_never_negative(policy_logprob: float, reference_logprob: float) -> None:
    assert k3(column(policy_logprob), column(reference_logprob)).item() >= 0


def test_k3_is_the_kl_divergence_on_average() -> None:
    policy, reference = column(0.5, 0.3, 0.2), column(0.2, 0.2, 0.6)
    divergence = (policy * (policy / reference).log()).sum()
    assert (policy * k3(policy.log(), reference.log())).sum().item() == pytest.approx(divergence.item())


def test_the_loss_is_minus_the_objective_without_a_reference() -> None:
    # ratios 1.1, and 2 clipped at 1.28
    losses = token_losses(column(log(1.1), log(2)), column(0, 0), column(2, 2), LossSettings())
    assert losses.tolist() == pytest.approx([-2.2, -2.56])


def test_the_loss_has_the_divergence_with_its_weight() -> None:
    # -2.2 + 0.1 * 0.30685, the reference being twice as likely as the policy
    policy_logprobs = column(log(1.1))
    loss = LossSettings(kl_weight=0.1)
    losses = token_losses(policy_logprobs, column(0), column(2), loss, policy_logprobs + log(2))
    assert losses.item() == pytest.approx(-2.2 + 0.030685, abs=1e-6)


def test_a_weight_of_zero_leaves_the_reference_out() -> None:
    losses = token_losses(column(0), column(0), column(1), LossSettings(kl_weight=0.0), column(-9))
    assert losses.item() == pytest.approx(-1)


def test_the_exponent_is_of_policy_over_sampler() -> None:
    # the policy e times as likely as the sampler was
    assert clipped_objective(column(-1), column(-2), column(1), 0.2, 9, 3.0).item() == pytest.approx(exp(1))
