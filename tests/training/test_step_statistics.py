"""What the attempts of a step came to, counted by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from memagent.training.metrics import GroupCounts, compute_means, count_group, select_groups
from memagent.types import (
    Completion,
    Conversation,
    Example,
    Group,
    Message,
    Trajectory,
)


def conversation(kind: Any, tokens: int, memory: str, reason: str = "stop") -> Conversation:
    completion = Completion(memory, reason, (1,), (2,) * tokens, (-1.0,) * tokens)
    return Conversation(kind, None, (Message("user", "?"),), completion, memory)


GOOD = Trajectory(
    "e",
    (
        conversation("update", 4, "one"),
        conversation("update", 6, "one", "length"),  # unchanged, and cut
        conversation("update", 5, "two"),
        conversation("answer", 3, "two", "length"),  # a cut answer is no cut memory
    ),
    "two",
    reward=1.0,
)
FAILED = Trajectory("e", (conversation("update", 1, ""),), "", reward=None, error="no answer")
GROUP = Group(Example("e", "qa", "who?", "a text", ("me",), 2), (GOOD, FAILED))


def of(position: int, *rewards: float, task: str = "qa") -> GroupCounts:
    """Counts of which only these matter."""
    return GroupCounts(position, task, rewards, 0, Counter())


def test_a_group_is_counted() -> None:
    assert count_group(GROUP, 7) == GroupCounts(
        position=7,
        task="qa",
        rewards=(1.0, 0.0),
        longest_reply_tokens=6,
        sums=Counter(
            failed=1,
            failed_cut=0,
            conversations=5,
            updates=4,
            memory_tokens=4 + 6 + 5 + 1,
            answer_tokens=3,
            cut=1,
            unchanged=2,  # "one" again; and the failed attempt's memory is as empty as before its first chunk
            completion_tokens=19,
        ),
    )


def test_a_step_is_the_mean_over_its_attempts_and_updates() -> None:
    means = compute_means(
        [count_group(GROUP, 0), count_group(Group(GROUP.example, (GOOD, GOOD)), 1)], 2, 3, True
    )
    assert means == {
        "reward": 3 / 4,
        "reward_std": pytest.approx((3 / 16) ** 0.5),  # of 1, 0, 1, 1: 3/4 * 1/4
        "groups": 2,
        "groups_dropped": 1,
        "equal_groups": 1 / 2,
        "reward/qa": 3 / 4,
        "equal_groups/qa": 1 / 2,
        "rounds": 2,
        "examples_skipped": 3,
        "failed": 1,
        "failed_cut": 0,
        "conversations": 5 + 8,
        "memory_tokens": (16 + 30) / 10,
        "answer_tokens": 9 / 3,
        "longest_reply_tokens": 6,
        "cut": 3 / 10,
        "unchanged": 4 / 10,
        "completion_tokens": 19 + 36,
    }


def test_failures_at_the_limit_are_distinguished_from_empty_answers() -> None:
    thinking = conversation("answer", 9, "", "length")
    cut = Trajectory("e", (conversation("update", 1, "a", "length"), thinking), "", error="empty answer")
    means = compute_means([count_group(Group(GROUP.example, (GOOD, cut, FAILED)), 0)], 1, 0, True)
    assert (means["failed"], means["failed_cut"]) == (2, 1)


def test_an_attempt_with_no_conversation_at_all_is_counted() -> None:
    empty = Trajectory("e", (), "", error="no engine")
    means = compute_means([count_group(Group(GROUP.example, (empty,)), 0)], 1, 0, True)
    assert (means["reward"], means["failed"], means["conversations"]) == (0.0, 1, 0)
    assert means["memory_tokens"] == means["longest_reply_tokens"] == 0


def test_equal_groups_and_rewards_are_told_by_task_whether_groups_are_dropped_or_not() -> None:
    counts = [of(0, 1.0, 1.0, task="a"), of(1, 0.0, 1.0, task="a"), of(2, 0.0, 0.0, task="b")]
    for drop_equal in (False, True):
        means = compute_means(counts, 1, 0, drop_equal)
        assert means["groups_dropped"] == 2 * drop_equal and means["equal_groups"] == 2 / 3
        assert (means["reward/a"], means["equal_groups/a"]) == (3 / 4, 1 / 2)
        assert (means["reward/b"], means["equal_groups/b"]) == (0.0, 1.0)


def test_groups_are_chosen_task_by_task_so_that_each_update_has_its_share() -> None:
    # nine documents of three tasks in turn; the groups of 4 and 7, both of task b, are equal
    counts = [of(number, 0.0, float(number not in (4, 7)), task="abc"[number % 3]) for number in range(9)]
    order = select_groups(counts, drop_equal=True)
    assert order == [0, 3, 6, 1, 2, 5, 8]
    assert [order[part::3] for part in range(3)] == [[0, 1, 8], [3, 2], [6, 5]]
    every = select_groups(counts, drop_equal=False)
    for part in range(3):
        assert sorted("abc"[position % 3] for position in every[part::3]) == ["a", "b", "c"]


def test_groups_of_equal_rewards_are_dropped_only_where_asked() -> None:
    tallies = [of(5, 1.0, 1.0), of(3, 0.0, 1.0), of(4, 0.0, 0.0), of(1, 0.5, 0.25)]
    assert select_groups(tallies, drop_equal=True) == [1, 3]
    assert select_groups(tallies, drop_equal=False) == [1, 3, 4, 5]


def test_memory_is_measured_in_mebibytes() -> None:
    pytest.importorskip("torch")
    from memagent.training.reinforcement import measure_mib

    assert 10 < measure_mib() < 1e6
