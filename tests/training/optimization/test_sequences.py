"""From trajectories to micro-batches: what is in them, and within which budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memagent.errors import TrainingError  # noqa: E402
from memagent.training.optimization.learner import sequences_of  # noqa: E402
from memagent.training.optimization.sequences import PADDING, Batch, batches  # noqa: E402
from memagent.types import (  # noqa: E402
    Completion,
    Conversation,
    Message,
    TrainingSequence,
    Trajectory,
)

LAYOUTS = ("shared", "packed", "padded")
IDS = st.lists(st.integers(1, 4), min_size=1, max_size=9).map(tuple)  # few tokens: many begin alike
PAIRS = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=9)


def numbered(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[TrainingSequence]:
    """Sequences that can be told apart: each has its number for an advantage."""
    return [
        TrainingSequence(
            prompt, completion, tuple(-float(index) for index, _ in enumerate(completion)), number
        )
        for number, (prompt, completion) in enumerate(pairs)
    ]


def count_sequences(batch: Batch) -> Counter[tuple[int, ...]]:
    """The sequences as the model's attention puts them together."""
    if batch.trees is None:  # a row's last token is the last one that is predicted
        width = batch.input_ids.shape[1]
        ends = {index // width: index % width + 2 for index in batch.indices.tolist()}
        return Counter(tuple(batch.input_ids[row, :end].tolist()) for row, end in ends.items())
    counts: Counter[tuple[int, ...]] = Counter()
    prefixes = {prefix[0] for block in batch.trees.blocks for prefix in block.before.tolist() if prefix}
    for block in batch.trees.blocks:
        every = torch.cat([block.before, block.rows], dim=1)
        for places, positions, own in zip(every, block.positions, block.rows.tolist(), strict=True):
            if own[0] not in prefixes:
                counts[tuple(batch.input_ids[0, places[positions < PADDING]].tolist())] += 1
    return counts


def conversation(ids: tuple[int, ...], kind: Any = "update", **changes: Any) -> Conversation:
    known: dict[str, Any] = {
        "prompt_ids": (1, *ids), "completion_ids": ids, "logprobs": tuple(-float(token) for token in ids)
    }  # fmt: skip
    completion = Completion("not what the ids say", **(known | changes))
    return Conversation(kind, 0, (Message("user", "?"),), completion, "")


def attempt(*conversations: Conversation) -> Trajectory:
    return Trajectory("example-7", conversations, "x", reward=1.0)


def test_every_conversation_has_the_advantage_of_its_attempt() -> None:
    sequences = sequences_of(attempt(*map(conversation, ((5, 6), (7,), (8, 9)))), -0.25)
    assert [sequence.completion_ids for sequence in sequences] == [(5, 6), (7,), (8, 9)]
    assert [sequence.advantage for sequence in sequences] == [-0.25] * 3


@pytest.mark.parametrize(
    ("credit", "trained"),
    [("trajectory", [(5, 6), (7,), (8, 9)]), ("updates", [(5, 6), (7,)]), ("answer", [(8, 9)])],
)
def test_credit_trains_the_conversations_that_it_names(credit: Any, trained: list[Any]) -> None:
    whole = attempt(conversation((5, 6)), conversation((7,)), conversation((8, 9), "answer"))
    sequences = sequences_of(whole, 0.5, credit)
    assert [(sequence.completion_ids, sequence.advantage) for sequence in sequences] == [
        (ids, 0.5) for ids in trained
    ]


def test_credit_to_verdicts_leaves_out_notes_and_answers() -> None:
    verdict = replace(conversation((5,)), verdict=0.7)
    whole = attempt(verdict, conversation((6, 7)), conversation((8, 9), "answer"))
    assert [sequence.completion_ids for sequence in sequences_of(whole, 0.5, "verdicts")] == [(5,)]


def test_an_attempt_without_an_answer_has_no_answer_to_credit() -> None:
    broken_off = attempt(conversation((5, 6)), conversation((7,)))
    assert sequences_of(broken_off, -0.5, "answer") == []
    assert len(sequences_of(broken_off, -0.5, "updates")) == 2


def test_the_ids_and_logprobs_are_the_samplers_whatever_the_text() -> None:
    sequences = sequences_of(attempt(conversation((5, 6))), 1.0)
    assert sequences == [TrainingSequence((1, 5, 6), (5, 6), (-5.0, -6.0), 1.0)]


def test_an_attempt_without_conversations_trains_nothing() -> None:
    assert sequences_of(attempt(), 1.0) == []
    assert sequences_of(attempt(), 1.0, "answer") == []


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"prompt_ids": ()}, "example-7: the engine gave no token ids"),
        ({"completion_ids": (), "logprobs": ()}, "example-7: the engine gave no token ids"),
        ({"logprobs": ()}, "example-7: the engine gave no log-probability for each token"),
        ({"logprobs": (-1.0,)}, "example-7: the engine gave no log-probability for each token"),
    ],
)
def test_what_the_engine_did_not_record_cannot_be_trained(missing: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        sequences_of(attempt(conversation((5, 6)), conversation((5, 6), **missing)), 1.0)


@given(PAIRS, st.sampled_from(LAYOUTS), st.integers(1, 60))
def test_every_sequence_is_in_one_batch_with_its_own_numbers(
    pairs: list[Any], layout: Any, budget: int
) -> None:
    sequences = numbered(pairs)
    batch_list = batches(sequences, layout, budget)
    tokens = Counter(
        triple
        for batch in batch_list
        for triple in zip(
            batch.advantages.tolist(), batch.targets.tolist(), batch.old_logprobs.tolist(), strict=True
        )
    )
    assert tokens == Counter(
        (sequence.advantage, token, old)
        for sequence in sequences
        for token, old in zip(sequence.completion_ids, sequence.old_logprobs, strict=True)
    )


@given(PAIRS, st.sampled_from(LAYOUTS), st.integers(1, 60))
def test_the_model_sees_exactly_the_ids_that_were_sampled(pairs: list[Any], layout: Any, budget: int) -> None:
    sequences = numbered(pairs)
    counts: Counter[tuple[int, ...]] = Counter()
    for batch in batches(sequences, layout, budget):
        counts += count_sequences(batch)
    wanted = Counter(sequence.prompt_ids + sequence.completion_ids for sequence in sequences)
    if layout == "padded":
        assert counts == wanted
    else:  # copies are computed once
        assert counts.keys() == wanted.keys() and counts <= wanted


@given(PAIRS, st.sampled_from(LAYOUTS), st.integers(1, 60))
def test_a_batch_stays_within_its_budget_or_is_one_sequence(
    pairs: list[Any], layout: Any, budget: int
) -> None:
    for batch in batches(numbered(pairs), layout, budget):
        numbers = {int(advantage) for advantage in batch.advantages.tolist()}
        different = numbers if layout == "padded" else {pairs[number] for number in numbers}
        assert batch.input_ids.numel() <= budget or len(different) == 1


@given(PAIRS, st.sampled_from(LAYOUTS), st.integers(1, 60))
@settings(max_examples=30)
def test_the_same_sequences_make_the_same_batches(pairs: list[Any], layout: Any, budget: int) -> None:
    once, again = (batches(numbered(pairs), layout, budget) for _ in range(2))
    assert [batch.input_ids.tolist() for batch in once] == [batch.input_ids.tolist() for batch in again]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_budget_makes_one_batch(layout: Any) -> None:
    sequences = numbered([((1,) * length, (2,)) for length in (1, 3, 40)])
    assert len(batches(sequences, layout, 1000)) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_sequences_make_no_batches(layout: Any) -> None:
    assert batches([], layout, 100) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_count_from_a_sequences_own_first_token(layout: Any) -> None:
    sequences = numbered([((1, 2, 3), (4,)), ((1, 2, 3), (5, 5)), ((9,), (9, 9, 9, 9))])
    for batch in batches(sequences, layout, 1000):
        positions = {int(position) for position in batch.position_ids.flatten()}
        assert positions == set(range(5))


def test_what_a_group_begins_with_is_computed_once() -> None:
    # three attempts read the same 20 tokens, then differ in one, and say one
    sequences = numbered([((7,) * 20 + (own,), (own,)) for own in (1, 2, 3)])
    computed = {
        layout: sum(batch.input_ids.numel() for batch in batches(sequences, layout, 1000))
        for layout in LAYOUTS
    }
    assert computed == {"shared": 20 + 3 * 2, "packed": 3 * 22, "padded": 3 * 22}
    assert batches(sequences, "shared", 1000)[0].tokens == 3 * 22  # counted as often as it occurs


def test_sequences_that_are_the_same_are_computed_once() -> None:
    sequences = numbered([((7,) * 20, (own, 2)) for own in (1, 3, 1, 1)])
    for layout in ("shared", "packed"):
        (batch,) = batches(sequences, layout, 1000)
        assert batch.input_ids.numel() == (19 + 2 * 3 if layout == "shared" else 2 * 22)
        assert len(batch.indices) == 2 * 2 and len(batch.select) == 4 * 2 and batch.tokens == 4 * 22
        tokens = batch.input_ids[0, batch.indices[batch.select] + 1]  # each is predicted one place before
        assert tokens.tolist() == batch.targets.tolist()
        assert batch.advantages.unique().tolist() == [0, 1, 2, 3]
        assert len(batches(sequences, layout, 26)) == (1 if layout == "shared" else 2)


def test_a_beginning_too_large_for_its_branches_is_repeated() -> None:
    # a budget of 25: the 20 shared tokens with two branches of 2 tokens, and again with the third
    sequences = numbered([((7,) * 20 + (own,), (own,)) for own in (1, 2, 3)])
    batch_list = batches(sequences, "shared", 25)
    assert sorted(batch.input_ids.numel() for batch in batch_list) == [22, 24]


def test_packed_rows_have_no_padding_and_padded_rows_are_of_like_length() -> None:
    sequences = numbered([((1,) * length, (2,)) for length in (30, 2, 29, 3, 4)])
    assert sum(batch.input_ids.numel() for batch in batches(sequences, "packed", 1000)) == 68 + 5
    shapes = [tuple(batch.input_ids.shape) for batch in batches(sequences, "padded", 62)]
    assert shapes == [(2, 31), (3, 5)]


def test_logits_are_kept_for_completion_tokens_alone() -> None:
    sequences = numbered([((1,) * 50, (2, 3)), ((1,) * 40, (4,))])
    for layout in LAYOUTS:
        assert batches(sequences, layout, 1000)[0].indices.shape == (3,)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_text_that_nobody_sampled_has_no_old_logprobs(layout: Any) -> None:
    batch = batches([TrainingSequence((1, 2), (3, 4))], layout, 100)[0]
    assert batch.old_logprobs.tolist() == [0.0, 0.0]
    assert batch.advantages.tolist() == [1.0, 1.0]
