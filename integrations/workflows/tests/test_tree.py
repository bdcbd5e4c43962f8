"""Parts of a document read side by side: as `parallel`, and each part begins where the last ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from facts import run
from memagent import JournalError
from reading import test_chain
from reading import test_side_by_side as ours
from reading.test_side_by_side import SETTINGS, document, noter, read


@pytest.mark.parametrize(
    "test",
    [
        ours.test_all_facts_are_in_the_answer_whatever_is_ready_first,
        ours.test_memory_stays_within_its_budget_and_a_person_can_follow_it,
        ours.test_one_chunk_is_read_once,
        ours.test_a_memory_to_start_from_is_kept,
        ours.test_the_calls_do_not_hold_the_document,
        ours.test_a_scripted_engine_plays_it_to_the_end,
    ],
)
def test_it_gathers_as_parallel_does(test: Callable[..., None]) -> None:
    test("tree")


@pytest.mark.parametrize("reply", ["", "UNCHANGED", "MEMORY", "MEMORY\n" + "x " * 500])
def test_odd_replies_to_a_merge_lose_no_memory(reply: str) -> None:
    ours.test_odd_replies_to_a_merge_lose_no_memory("tree", reply)


def test_a_call_that_fails_is_an_error_and_no_answer(tmp_path: Path) -> None:
    ours.test_a_call_that_fails_is_an_error_and_no_answer("tree", tmp_path)


def test_calls_are_side_by_side(monkeypatch: Any) -> None:
    monkeypatch.setattr(ours, "SETTINGS", SETTINGS.replace(shards=3))
    ours.test_calls_are_side_by_side("tree", busy=3)


def test_merges_wait_for_all_parts() -> None:
    test_chain.test_calls_that_wait_for_each_other_are_the_critical_path("tree", (2, 2, 2, 1))


def test_other_shards_are_another_read(tmp_path: Path) -> None:
    """Their number follows from the engine: a journal says what it was begun with."""
    trace, settings = tmp_path / "read.jsonl", SETTINGS.replace(workflow="tree", shards=None)
    run(noter(calls=2), document("fact1"), settings, trace)
    with pytest.raises(JournalError, match="shards was 2, now it is 4"):
        run(noter(calls=4), document("fact1"), settings, trace, resume=True)
    run(noter(calls=4), document("fact1"), settings.replace(shards=2), trace, resume=True)


@pytest.mark.parametrize("shards", [1, 2, 5, 40])
def test_each_part_begins_where_the_last_ends(shards: int) -> None:
    text = document(*(f"fact{number}" for number in range(9)))
    answer, conversations = read(noter(), text, "tree", shards=shards)
    spans = sorted({item.span for item in conversations if item.span})
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    assert sorted(set(answer.split())) == [f"fact{number}" for number in range(9)]
