"""Which prompts begin alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from memagent.engines.torch.prefill import common_length, group_by_beginning

IDS = st.lists(st.integers(0, 2), max_size=12)
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=12)


@given(IDS, IDS, IDS)
def test_common_length_is_where_they_first_differ(both: Any, left: Any, right: Any) -> None:
    left, right = both + left, both + right
    pairs = list(zip(left, right, strict=False))
    wanted = next((index for index, (one, other) in enumerate(pairs) if one != other), len(pairs))
    assert common_length(left, right) == wanted


@given(PROMPTS)
def test_every_prompt_is_in_one_family(prompts: Any) -> None:
    members = [index for _, family in group_by_beginning(prompts) for index in family]
    assert sorted(members) == list(range(len(prompts)))


@given(PROMPTS)
def test_a_family_begins_alike_and_each_keeps_its_last_token(prompts: Any) -> None:
    for shared, family in group_by_beginning(prompts):
        assert len({tuple(prompts[index][:shared]) for index in family}) == 1
        assert all(shared < len(prompts[index]) for index in family)


@given(PROMPTS)
def test_families_are_in_the_order_of_their_first_members(prompts: Any) -> None:
    families = [family for _, family in group_by_beginning(prompts)]
    assert all(family == sorted(family) for family in families)
    assert [family[0] for family in families] == sorted(family[0] for family in families)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=6))
def test_no_other_families_leave_less_to_compute(prompts: Any) -> None:
    prompts = [[*prompt, 9] for prompt in prompts]  # as all chats end, so that none begins another

    def computed(families: list[list[int]]) -> int:
        tokens = sum(map(len, prompts))
        for family in families:
            shared = min(len(prompts[index]) - 1 for index in family)
            for one, other in combinations(family, 2):
                shared = min(shared, common_length(prompts[one], prompts[other]))
            tokens -= (len(family) - 1) * shared
        return tokens

    least = min(map(computed, partitions(range(len(prompts)))))
    groups = group_by_beginning(prompts)
    assert computed([family for _, family in groups]) == least
    whole = sum(map(len, prompts))
    assert whole - sum((len(family) - 1) * shared for shared, family in groups) == least


def partitions(indices: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to part them."""
    if not indices:
        yield []
        return
    for rest in partitions(indices[1:]):
        yield [[indices[0]], *rest]
        for index, family in enumerate(rest):
            yield [*rest[:index], [indices[0], *family], *rest[index + 1 :]]


def test_attempts_at_one_chunk_are_a_family() -> None:
    # two groups that take turns; after the chunk of six tokens each has a memory of its own
    one, other = [1, 2, 3, 4, 5, 6], [7, 8, 9, 7, 8, 9]
    prompts = [[*one, 20], [*other, 30, 31], [*one, 21, 22], [*other, 32]]
    assert group_by_beginning(prompts) == [(6, [0, 2]), (6, [1, 3])]


def test_the_words_that_every_prompt_opens_with_make_no_family() -> None:
    opening = [1, 2]
    prompts = [opening + [start] * 8 + [own] for start in (5, 6) for own in (7, 8)]
    assert group_by_beginning(prompts) == [(10, [0, 1]), (10, [2, 3])]


def test_long_instructions_that_all_prompts_open_with_make_no_family_either() -> None:
    prompts = [[1] * 20 + [start] * 21 + [own] for start in (5, 6) for own in (7, 8)]
    assert group_by_beginning(prompts) == [(41, [0, 1]), (41, [2, 3])]


def test_identical_prompts_share_all_but_the_last_token() -> None:
    assert group_by_beginning([[1, 2, 3]] * 3) == [(2, [0, 1, 2])]


def test_a_prompt_like_no_other_is_a_family_by_itself() -> None:
    assert group_by_beginning([[1, 2, 3], [4, 5, 6]]) == [(2, [0]), (2, [1])]
    assert group_by_beginning([[1], [1]]) == [(0, [0]), (0, [1])]
    assert group_by_beginning([]) == []
