"""Group-relative advantages, on numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memagent.training.optimization.learner import group_sequences  # noqa: E402
from memagent.training.optimization.objective import group_advantages  # noqa: E402
from memagent.training.settings import LossSettings  # noqa: E402
from memagent.types import (  # noqa: E402
    Completion,
    Conversation,
    Example,
    Group,
    Message,
    Trajectory,
)

EXAMPLE = Example("e", "qa", "who?", "a text", ("me",), 2)


def attempt(reward: float | None, count: int) -> Trajectory:
    completion = Completion("x", prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.5,))
    kinds: list[Any] = ["update"] * (count - 1) + ["answer"]
    conversations = (Conversation(kind, None, (Message("user", "?"),), completion, "x") for kind in kinds)
    return Trajectory("e", tuple(conversations), "x", reward=reward)


def advantages(group: Group, **loss: Any) -> list[float]:
    """Of each sequence of the group, in order."""
    return [sequence.advantage for sequence in group_sequences(group, LossSettings(**loss))]


def test_a_reward_less_the_mean_of_its_own_group() -> None:
    # the means are (1 + 0 + 0 + 1) / 4 = 0.5 and (4 + 0 + 0 + 0) / 4 = 1
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [4.0, 0.0, 0.0, 0.0]])
    assert group_advantages(rewards).tolist() == [[0.5, -0.5, -0.5, 0.5], [3.0, -1.0, -1.0, -1.0]]


def test_nothing_is_divided_by_the_standard_deviation_unless_asked_for() -> None:
    # rewards ten times as far apart have advantages ten times as large
    near, far = torch.tensor([[0.1, 0.0]]), torch.tensor([[1.0, 0.0]])
    assert (10 * group_advantages(near)).tolist() == [pytest.approx(group_advantages(far)[0].tolist())]


def test_division_by_the_standard_deviation_with_bessels_correction() -> None:
    # mean 0.25; squares 0.5625 + 3 * 0.0625 = 0.75; over 3 gives 0.25, its root is 0.5
    divided = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), divide_by_std=True)
    assert divided[0].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


@pytest.mark.parametrize("attempts", [3, 7, 16])
@pytest.mark.parametrize("reward", [0.1, 2 / 3, 0.8])
def test_equal_rewards_have_advantages_of_zero_also_when_divided(reward: float, attempts: int) -> None:
    """The rounding of a mean, divided by a deviation of next to nothing, is not next to nothing."""
    for divide in (False, True):
        assert not group_advantages(torch.full((1, attempts), reward), divide).any()


@pytest.mark.parametrize("divide", [False, True])
def test_a_group_of_one_has_an_advantage_of_zero(divide: bool) -> None:
    assert group_advantages(torch.tensor([[0.8], [0.0]]), divide).tolist() == [[0.0], [0.0]]


def test_an_attempt_counts_once_in_its_group_however_many_conversations_it_has() -> None:
    # Over attempts the mean is (1 + 0) / 2. Over the rows it would be 1 / 10, and the long failed
    # attempt would have -0.1, the short good one 0.9.
    group = Group(EXAMPLE, (attempt(1.0, 1), attempt(0.0, 9)))
    assert advantages(group) == [0.5] + [-0.5] * 9


def test_the_standard_deviation_is_also_over_attempts() -> None:
    # of 1 and 0: mean 0.5, squares 0.25 + 0.25, over 1, root 0.7071; 0.5 / 0.7071 = 0.7071
    group = Group(EXAMPLE, (attempt(1.0, 2), attempt(0.0, 7)))
    assert advantages(group, divide_by_std=True) == pytest.approx([0.7071] * 2 + [-0.7071] * 7, abs=1e-4)


def test_updates_alone_or_the_answer_alone_have_the_advantage_of_the_whole_group() -> None:
    # of 1, 0, 0, 0 the mean is 0.25: 0.75 and three times -0.25, whatever is trained
    group = Group(EXAMPLE, (attempt(1.0, 3), *(attempt(0.0, 2),) * 3))
    assert advantages(group, credit="updates") == [0.75] * 2 + [-0.25] * 3
    assert advantages(group, credit="answer") == [0.75] + [-0.25] * 3


def test_shuffled_advantages_are_as_large_and_say_nothing_of_their_attempt() -> None:
    # of 1, 0, 0, 0: 0.75 and three times -0.25. Over random permutations, the attempt that earned the 1 has
    # (0.75 - 3 * 0.25) / 4 = 0 in the mean, and the 0.75 in a quarter of them.
    attempts = (attempt(1.0, 2), *(attempt(0.0, 2),) * 3)
    groups = [Group(replace(EXAMPLE, id=str(number)), attempts) for number in range(400)]
    shuffled = [advantages(group, credit="shuffled") for group in groups]
    for of_group in shuffled:
        assert of_group[::2] == of_group[1::2], "all conversations of an attempt have the same"
        assert sorted(of_group[::2]) == [-0.25, -0.25, -0.25, 0.75]
    for number in range(4):
        share = fmean(of_group[2 * number] == 0.75 for of_group in shuffled)
        assert 0.18 < share < 0.32
    assert shuffled == [advantages(group, credit="shuffled") for group in groups], "also after a resume"


def test_a_failed_attempt_has_a_reward_of_zero_in_its_group() -> None:
    group = Group(EXAMPLE, (attempt(1.0, 1), attempt(None, 1)))
    assert advantages(group) == [0.5, -0.5]
