"""Optimizer steps: what the gradient is averaged over, and what it does not depend on."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from memagent.errors import TrainingError  # noqa: E402
from memagent.training.metrics import GroupCounts, select_groups  # noqa: E402
from memagent.training.optimization.learner import Learner, group_sequences, learning_rate  # noqa: E402
from memagent.training.optimization.objective import token_losses  # noqa: E402
from memagent.training.optimization.policy import Policy  # noqa: E402
from memagent.training.optimization.sequences import batches  # noqa: E402
from memagent.training.ranks import Ranks  # noqa: E402
from memagent.training.reinforcement import update  # noqa: E402
from memagent.training.settings import (  # noqa: E402
    LossSettings,
    OptimizerSettings,
    WarmStartSettings,
    load_training,
)
from memagent.types import (  # noqa: E402
    Completion,
    Conversation,
    Example,
    Group,
    Message,
    TrainingSequence,
    Trajectory,
)
from training.tiny import VOCABULARY, gradients, group, llama, policy, tokens  # noqa: E402

LAYOUTS = ("shared", "packed", "padded")
PRESET = Path(__file__).parents[3] / "presets" / "tiny.toml"
RATE = 1e-2
NO_KL = LossSettings(kl_weight=0.0)
GROUPS = [sequence for seed in range(3) for sequence in group(seed)]


def learner(trained: Policy | None = None, **settings: Any) -> Learner:
    known: dict[str, Any] = {"max_gradient_norm": 1e9}
    return Learner(trained or policy(), OptimizerSettings(**(known | settings)), Ranks())


def gradient(
    sequences: list[TrainingSequence],
    loss: LossSettings = NO_KL,
    trained: Policy | None = None,
    **settings: Any,
) -> torch.Tensor:
    """What one optimizer step follows, before AdamW makes something of it."""
    learns = learner(trained, **settings)
    learns.reinforce(sequences, loss, 1e-12)
    return gradients(learns.policy)


def at_ratio_one(sequences: list[TrainingSequence], trained: Policy) -> list[TrainingSequence]:
    """The same as if the policy had sampled them, so that nothing is clipped."""
    on_policy = []
    for sequence in sequences:
        logprobs = trained.values(batches([sequence], "padded", 1000)[0]).logprobs
        on_policy.append(replace(sequence, old_logprobs=tuple(logprobs.tolist())))
    return on_policy


def with_adapter(lora_dropout: float = 0.0) -> Policy:
    model = llama().double()
    config = peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=lora_dropout)
    return Policy(peft.get_peft_model(model, config).eval(), None)


def moved(trained: Policy) -> Policy:
    """Its trained weights a little elsewhere."""
    torch.manual_seed(7)
    with torch.no_grad():
        for value in trained.trained_parameters().values():
            value.add_(0.05 * torch.randn_like(value))
    return trained


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch_tokens", [1, 30, 70, 10_000])
def test_the_gradient_is_the_same_whatever_the_split_and_layout(layout: str, batch_tokens: int) -> None:
    whole = gradient(GROUPS, layout="padded", batch_tokens=10_000)
    assert whole.abs().max() > 1e-3
    split = gradient(GROUPS, layout=layout, batch_tokens=batch_tokens)
    assert torch.allclose(split, whole, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpointed_gradients_are_the_same(layout: str) -> None:
    checkpointed = llama()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    result = gradient(GROUPS, trained=policy(checkpointed), layout=layout, batch_tokens=70)
    assert torch.allclose(result, gradient(GROUPS, layout="padded"), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_a_reference_between_forward_and_backward_leaves_checkpointed_gradients_as_they_are() -> None:
    results = []
    for checkpointing in (False, True):
        trained = policy()
        if checkpointing:
            trained.network.gradient_checkpointing_enable({"use_reentrant": False})
        trained.keep_reference()
        results.append(gradient(GROUPS, LossSettings(kl_weight=0.5), moved(trained), batch_tokens=70))
    assert torch.allclose(*results, atol=1e-6)


def test_the_loss_is_a_mean_over_the_tokens_of_the_step() -> None:
    trained = policy()
    values = torch.cat(
        [trained.values(batches([sequence], "padded", 1000)[0]).logprobs for sequence in GROUPS]
    )
    old = torch.tensor([value for sequence in GROUPS for value in sequence.old_logprobs])
    advantages = torch.tensor([sequence.advantage for sequence in GROUPS for _ in sequence.completion_ids])
    (token_losses(values, old, advantages, NO_KL).sum() / tokens(GROUPS)).backward()
    assert torch.allclose(gradient(GROUPS, batch_tokens=30), gradients(trained), atol=1e-6)


def test_a_mean_over_micro_batches_would_be_another_gradient() -> None:
    # one of 1 token and one of 9, each in a micro-batch of its own: weights 1/10 and 9/10, not 1/2 and 1/2
    short, long = (
        TrainingSequence((1, 2, 3), ids, (-3.0,) * len(ids), 1.0) for ids in ((4,), tuple(range(5, 14)))
    )
    both = gradient([short, long], batch_tokens=1)
    alone = gradient([short]), gradient([long])
    assert torch.allclose(both, 0.1 * alone[0] + 0.9 * alone[1], atol=1e-7)
    assert not torch.allclose(both, 0.5 * alone[0] + 0.5 * alone[1], atol=1e-3)


def test_the_sums_are_over_tokens() -> None:
    sums = learner(batch_tokens=30).reinforce(GROUPS, NO_KL, RATE)
    whole = learner().reinforce(GROUPS, NO_KL, RATE)
    assert sums["tokens"] == tokens(GROUPS)
    assert sums["sequence_tokens"] == sum(len(sequence.prompt_ids) for sequence in GROUPS) + tokens(GROUPS)
    for name in ("loss", "entropy", "clip_low", "clip_high", "mismatch"):
        assert sums[name] == pytest.approx(whole[name], abs=1e-5)


def attempt(reward: float, ids: list[tuple[int, ...]]) -> Trajectory:
    """An attempt whose conversations sampled these ids; the last is its answer."""
    conversations = []
    for number, completion_ids in enumerate(ids):
        logprobs = (-3.0,) * len(completion_ids)
        completion = Completion("x", "stop", (1, 2, 3 + number % 30), completion_ids, logprobs)
        kind: Any = "answer" if number == len(ids) - 1 else "update"
        conversations.append(Conversation(kind, None, (Message("user", "?"),), completion, "x"))
    return Trajectory("e", tuple(conversations), "x", reward=reward)


def made_group(*attempts: Trajectory) -> Group:
    return Group(Example("e", "qa", "who?", "a text", ("me",), 2), attempts)


def test_a_long_failed_attempt_weighs_by_its_tokens_and_no_more() -> None:
    # Advantages are 1/2 and -1/2 by attempt. Each token of both counts its share of 10 in all.
    good, bad = [(4, 5)], [(number, number + 1) for number in (6, 8, 10, 12)]
    sequences = group_sequences(made_group(attempt(1.0, good), attempt(0.0, bad)), NO_KL)
    parts = [gradient([replace(sequence, advantage=1.0)]) for sequence in at_ratio_one(sequences, policy())]
    wanted = 0.5 * (2 / 10) * parts[0] - 0.5 * sum(part * 2 / 10 for part in parts[1:])
    assert torch.allclose(gradient(at_ratio_one(sequences, policy())), wanted, atol=1e-7)


def test_all_conversations_are_trained_each_under_its_own_mask() -> None:
    # the answer has one token, the memories have more: with the answer's mask most would be lost
    ids = [(4, 5, 6), (7, 8), (9,)]
    sequences = group_sequences(made_group(attempt(1.0, ids), attempt(0.0, ids)), NO_KL)
    assert learner().reinforce(sequences, NO_KL, RATE)["tokens"] == 2 * 6
    for number in range(3):
        lifted = [
            replace(sequence, advantage=float(index == number))
            for index, sequence in enumerate(sequences[:3])
        ]
        before, after = policy(), learner()
        after.reinforce(at_ratio_one(lifted, before), NO_KL, 1e-4)
        batch = batches([sequences[number]], "padded", 1000)[0]
        assert (after.policy.values(batch).logprobs > before.values(batch).logprobs).all()


def test_prompts_are_not_trained() -> None:
    # a prompt's tokens have no loss: with every completion token at advantage 0 nothing moves
    still = [replace(sequence, advantage=0.0) for sequence in GROUPS]
    assert gradient(still).abs().max() == 0


@pytest.mark.parametrize("updates", [1, 2])
def test_the_number_of_optimizer_steps_does_not_depend_on_the_rows(updates: int) -> None:
    settings = load_training(PRESET, {"optimizer": {"updates": updates}})
    for conversations in (1, 40):
        ids = [(4, 5)] * conversations
        groups = {position: made_group(attempt(1.0, ids), attempt(0.0, ids)) for position in range(4)}
        sums = update(learner(), groups, sorted(groups), settings, 0)
        assert sums["tokens"] == 4 * 2 * conversations * 2
        assert sums["steps"] == updates


def test_each_optimizer_step_has_its_share_of_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_training(PRESET, {"optimizer": {"updates": 3}})
    # of three tasks in turn, told apart by the token that was sampled; the positions are in the data
    groups = {
        position: made_group(attempt(1.0, [(position % 3,)]), attempt(0.0, [(position % 3,)]))
        for position in range(12)
    }
    counts = [GroupCounts(position, "abc"[position % 3], (1.0, 0.0), 1, Counter()) for position in groups]
    learns, steps = learner(), []
    monkeypatch.setattr(
        learns,
        "reinforce",
        lambda sequences, *_: steps.append([sequence.completion_ids[0] for sequence in sequences]) or {},
    )
    update(learns, groups, select_groups(counts, drop_equal=True), settings, 0)
    assert len(steps) == 3 and all(set(tokens) == {0, 1, 2} and len(tokens) == 4 * 2 for tokens in steps)


@pytest.mark.parametrize("updates", [1, 2])
def test_the_learning_rate_warms_up_by_rollout_steps(updates: int) -> None:
    wanted = {"learning_rate": 0.4, "warmup_steps": 4, "updates": updates}
    settings = load_training(PRESET, {"optimizer": wanted})
    groups = {position: made_group(attempt(1.0, [(4, 5)]), attempt(0.0, [(6,)])) for position in range(2)}
    learns = learner()
    rates = [update(learns, groups, [0, 1], settings, step)["learning_rate"] / updates for step in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learns._optimizer.param_groups[0]["lr"] == pytest.approx(0.4)


def test_the_rate_of_a_warm_start_rises_and_falls() -> None:
    wanted = WarmStartSettings(steps=6, learning_rate=0.4, warmup_steps=2, decay_steps=4)
    assert [learning_rate(wanted, step, 6) for step in range(6)] == pytest.approx(
        [0.2, 0.4, 0.4, 0.3, 0.2, 0.1]
    )


def test_the_divergence_is_zero_at_the_first_step_and_not_later() -> None:
    trained = policy()
    trained.keep_reference()
    learns = learner(trained)
    kl = [learns.reinforce(GROUPS, LossSettings(kl_weight=0.1), RATE)["kl"] for _ in range(2)]
    assert kl[0] == 0
    assert kl[1] > 1e-3


def test_the_divergence_pulls_back() -> None:
    still = [replace(sequence, advantage=0.0) for sequence in GROUPS]
    trained = policy()
    trained.keep_reference()
    learns = learner(moved(trained))
    kl = [learns.reinforce(still, LossSettings(kl_weight=0.1), 1e-4)["kl"] for _ in range(5)]
    assert kl[4] < kl[0]


@pytest.mark.parametrize("batch_tokens", [30, 1000])
def test_the_divergence_is_averaged_with_the_loss(batch_tokens: int) -> None:
    trained = policy()
    trained.keep_reference()
    moved(trained)
    values = torch.cat(
        [trained.values(batches([sequence], "padded", 1000)[0]).logprobs for sequence in GROUPS]
    )
    reference = torch.cat(
        [trained.reference_logprobs(batches([sequence], "padded", 1000)[0]) for sequence in GROUPS]
    )
    old = torch.tensor([value for sequence in GROUPS for value in sequence.old_logprobs])
    advantages = torch.tensor([sequence.advantage for sequence in GROUPS for _ in sequence.completion_ids])
    losses = token_losses(values, old, advantages, LossSettings(kl_weight=0.5), reference)
    (losses.sum() / tokens(GROUPS)).backward()
    wanted = gradients(trained)
    result = gradient(GROUPS, LossSettings(kl_weight=0.5), trained, batch_tokens=batch_tokens)
    assert torch.allclose(result, wanted, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [policy, with_adapter])
def test_the_reference_is_the_initial_policy(make: Callable[[], Policy], layout: Any) -> None:
    batch = batches(GROUPS, layout, 1000)[0]
    trained = moved(make())
    before = trained.values(batch).logprobs.detach()
    trained.keep_reference()
    assert torch.equal(trained.reference_logprobs(batch), before)
    moved(trained)
    after = trained.values(batch).logprobs.detach()
    assert (after - before).abs().max() > 0.1
    assert torch.equal(trained.reference_logprobs(batch), before)
    assert not trained.reference_logprobs(batch).requires_grad
    assert torch.equal(trained.values(batch).logprobs, after), "the policy is what it was"


def test_an_adapter_is_trained_with_its_divergence_and_the_base_is_not() -> None:
    trained = moved(with_adapter())
    trained.keep_reference()
    moved(trained)
    base = {name: value.clone() for name, value in trained.model.state_dict().items() if "lora_" not in name}
    names = set(trained.trained_parameters())
    adapted = {name: value.detach().clone() for name, value in trained.trained_parameters().items()}
    sums = learner(trained).reinforce(GROUPS, LossSettings(kl_weight=0.1), RATE)
    assert sums["kl"] > 0
    assert set(trained.trained_parameters()) == names
    assert all("lora_" in name for name in names)
    assert not any(torch.equal(value, adapted[name]) for name, value in trained.trained_parameters().items())
    assert all(torch.equal(trained.model.state_dict()[name], value) for name, value in base.items())


def test_without_a_reference_the_divergence_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="keep_reference"):
        learner().reinforce(GROUPS, LossSettings(kl_weight=0.1), RATE)


def test_a_long_gradient_is_clipped_and_reported_unclipped() -> None:
    learns = learner(max_gradient_norm=0.01)
    sums = learns.reinforce(GROUPS, NO_KL, RATE)
    assert sums["gradient_norm"] == pytest.approx(gradient(GROUPS).norm().item(), rel=1e-4)
    assert gradients(learns.policy).norm().item() == pytest.approx(0.01, rel=1e-3)


BROKEN = [replace(GROUPS[0], advantage=float("nan")), *GROUPS[1:]]


def test_a_step_without_a_finite_gradient_is_skipped_and_counted() -> None:
    learns = learner()
    before = learns.policy.weights()
    before = {name: value.clone() for name, value in before.items()}
    for _ in range(2):
        assert learns.reinforce(BROKEN, NO_KL, RATE)["skipped"] == 1
    assert all(torch.equal(value, before[name]) for name, value in learns.policy.weights().items())
    sums = learns.reinforce(GROUPS, NO_KL, RATE)
    assert (sums["skipped"], sums["steps"]) == (0, 1)
    assert not any(torch.equal(value, before[name]) for name, value in learns.policy.weights().items())
    assert all(value.isfinite().all() for value in learns.policy.weights().values())


def test_several_skipped_steps_in_a_row_end_training() -> None:
    learns = learner()
    for _ in range(4):
        learns.reinforce(BROKEN, NO_KL, RATE)
    with pytest.raises(TrainingError, match="in 5 optimizer steps in a row: lower the learning rate"):
        learns.reinforce(BROKEN, NO_KL, RATE)


@pytest.mark.parametrize("gap", [-2000.0, 2000.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_one_token_far_off_leaves_the_gradient_finite(gap: float, advantage: float) -> None:
    # a sampler that gave a token next to no chance, or a reference that does: e**2000 is infinite
    odd = replace(GROUPS[0], advantage=advantage,
                  old_logprobs=(gap, *GROUPS[0].old_logprobs[1:]))  # fmt: skip
    result = gradient([odd, *GROUPS[1:]])
    assert result.isfinite().all()
    assert result.norm() < 10 * gradient(GROUPS).norm(), "and it does not drown the others"


def test_imitation_makes_the_completions_likelier() -> None:
    learns = learner()
    losses = [learns.fine_tune(GROUPS, 1e-3)["loss"] for _ in range(3)]
    assert losses[0] > losses[1] > losses[2] > 0


def test_a_restored_state_continues_as_if_nothing_had_happened() -> None:
    whole, broken = learner(), learner()
    for _ in range(2):
        whole.reinforce(GROUPS, NO_KL, RATE)
    broken.reinforce(GROUPS, NO_KL, RATE)
    resumed = learner(policy(llama(seed=5)))
    resumed.policy.load_weights(broken.policy.weights())
    resumed.load_state(copy.deepcopy(broken.state()))
    resumed.reinforce(GROUPS, NO_KL, RATE)
    trained = resumed.policy.trained_parameters()
    assert all(torch.equal(value, trained[name]) for name, value in whole.policy.trained_parameters().items())


def test_weights_of_another_policy_are_refused() -> None:
    with pytest.raises(TrainingError, match="for another policy"):
        with_adapter().load_weights(policy().weights())


@pytest.mark.parametrize("checkpointed", [False, True])
def test_no_units_are_dropped_out_since_none_were_in_sampling(checkpointed: bool) -> None:
    trained = moved(with_adapter(lora_dropout=0.5))
    if checkpointed:
        trained.network.gradient_checkpointing_enable({"use_reentrant": False})
    batch = batches(GROUPS, "packed", 1000)[0]
    sampled = trained.values(batch).logprobs
    with trained.training("packed"):
        assert any(module.training for module in trained.network.modules()) == checkpointed
        assert torch.equal(sampled, trained.values(batch).logprobs)
    assert not any(module.training for module in trained.network.modules())


def test_verdicts_of_all_attempts_share_one_pass_over_the_chunks() -> None:
    """The chunks of a document do not depend on the attempt, so only what was drawn differs."""
    source, attempts, chunks = random.Random(0), 8, 3
    prompts = [tuple(source.choices(range(1, VOCABULARY), k=30)) for _ in range(chunks)]
    verdicts = [
        TrainingSequence(prompt, (source.choice((5, 7)),), (source.uniform(-1, -0.1),), advantage)
        for advantage in (source.uniform(-1, 1) for _ in range(attempts))
        for prompt in prompts
    ]
    (batch,) = batches(verdicts, "shared", 4096)
    assert batch.input_ids.numel() <= chunks * (30 + 3)  # and not attempts times as much
    assert batch.tokens == attempts * chunks * 31

    trained, total = policy(), len(verdicts)
    for verdict in verdicts:  # the plain loop: one sequence at a time
        ids = torch.tensor([verdict.prompt_ids])
        logprobs = torch.log_softmax(trained.network(ids).logits[0, -1], dim=-1)
        ratio = torch.exp(logprobs[verdict.completion_ids[0]] - verdict.old_logprobs[0])
        low, high = 1 - NO_KL.clip_low, 1 + NO_KL.clip_high
        gain = torch.minimum(ratio * verdict.advantage, ratio.clamp(low, high) * verdict.advantage)
        if verdict.advantage < 0:
            gain = torch.maximum(gain, torch.tensor(NO_KL.dual_clip * verdict.advantage))
        (-gain / total).backward()
    plain = gradients(trained)
    assert (gradient(verdicts) - plain).norm() < 1e-6 * plain.norm()
