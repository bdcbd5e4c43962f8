"""What rows come to, on numbers worked by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.measured import row
from memagent.evaluation.statistics import (
    MAX_WRONG,
    Scored,
    Size,
    by_depth,
    by_size,
    by_task,
    confidence_interval,
    differences,
    failures,
    growth,
    growth_of,
    paired_interval,
    summarise,
    wrong,
)
from memagent.tasks.recipe import ABSENT_ANSWERS


def result(series: str = "gated", folder: str = "run", **fields: Any) -> Scored:
    return Scored(series, folder, row(**fields))


def failed(text: str = "HTTP 503", **fields: Any) -> Scored:
    return result(score=0.0, error=text, cause="EngineError", calls=0, prompt_tokens=7, **fields)


def test_a_failure_scores_0_and_stays_in_the_denominator() -> None:
    summary = summarise([result(index=0), result(index=1), result(index=2), failed(index=3)])
    assert (summary.score, summary.examples, summary.attempts, summary.failed) == (0.75, 4, 4, 1)
    assert summary.prompt_tokens == 100, "a failure's tokens are no cost of reading"
    assert summary.tokens == 110 and summary.calls == 2


def test_failures_alone_have_a_score_and_no_cost() -> None:
    summary = summarise([failed(index=0), failed(index=1)])
    assert summary.score == 0.0 and summary.tokens is summary.calls is summary.seconds is None


def test_samples_of_an_example_are_one_question() -> None:
    ones = [result(index=0, sample=sample, score=float(sample == 0)) for sample in range(4)]
    summary = summarise([*ones, result(index=1)])
    assert summary.score == (0.25 + 1) / 2
    assert (summary.examples, summary.attempts) == (2, 5)
    narrow = summarise([result(index=index, sample=0) for index in range(8)])
    wide = summarise([result(index=0, sample=sample) for sample in range(8)])
    assert narrow.low > wide.low == 0.0, "eight samples of one example say little"


def test_differences_are_taken_example_by_example() -> None:
    easy = [result(series, index=0, score=1.0) for series in ("gated", "full")]
    hard = [result("gated", index=1, score=0.25), result("full", index=1, sample=0, score=1.0)]
    again = result("full", index=1, sample=1, score=0.0)
    longer = [
        result(series, index=0, length=4096, score=float(series == "full")) for series in ("gated", "full")
    ]
    alone = [result("gated", index=2, score=0.0), result("rag", index=7)]
    other = [result("gated", index=3), result("full", index=3, answers=("of another example",), score=0.0)]
    elsewhere = result("full", "other run", index=5, example_id="a", score=0.5)
    named = [result("gated", index=4, example_id="a"), elsewhere]
    by_group = differences([*easy, *hard, again, *longer, *alone, *other, *named], "gated")
    assert {group: (difference.examples, difference.mean) for group, difference in by_group.items()} == {
        ("full", Size("tokens", 2048)): (3, -0.25 / 3),  # 0, 0.5 - 0.25 and 0.5 - 1
        ("full", Size("tokens", 4096)): (1, 1.0),
        ("full", None): (3, 0.25 / 3),  # the first question, at two sizes, has 0.5
    }


def test_another_problem_of_the_same_name_and_answer_is_another_example() -> None:
    of_files = [result(series, length=None, problem=f"Is it {series}?") for series in ("gated", "full")]
    assert differences(of_files, "gated") == {}


def test_examples_that_tokenizers_count_differently_are_compared() -> None:
    results = [
        result(series, length=None, length_tokens=tokens, score=score)
        for series, tokens, score in (("gated", 700, 0.0), ("full", 1400, 1.0))
    ]
    assert {group: difference.mean for group, difference in differences(results, "gated").items()} == {
        ("full", Size("tokens", 512)): 1.0,
        ("full", None): 1.0,
    }


def test_a_question_at_several_sizes_counts_once_in_the_pool() -> None:
    results = [
        result(series, index=index, length=length, problem=f"Question {index}?", score=score)
        for index, score in ((0, 1.0), (1, 0.0))
        for length in (1024, 2048, 4096)
        for series, score in (("gated", 0.0), ("full", score))
    ]
    difference = differences(results, "gated")["full", None]
    assert (difference.examples, difference.mean) == (2, 0.5)


def test_one_question_to_many_documents_counts_for_each() -> None:
    results = [
        result(series, index=index, length=None, length_tokens=tokens, example_id=f"contract {index}",
               problem="Is there a clause?", score=float(series == "full"))
        for index, tokens in enumerate([4096] * 40 + [8192] * 30)
        for series in ("gated", "full")
    ]  # fmt: skip
    counts = {size: difference.examples for (_, size), difference in differences(results, "gated").items()}
    assert counts == {Size("tokens", 4096): 40, Size("tokens", 8192): 30, None: 40}


def test_the_pooled_interval_covers_the_truth_about_19_times_in_20() -> None:
    # Each of 20 questions favours one of two equal readers, mostly the same one at all of eight lengths.
    source = random.Random(0)
    hits = 0
    for _ in range(150):
        results = []
        for index in range(20):
            favour = source.choice((0.1, 0.9))
            for length in range(1, 9):
                won = source.random() < favour
                results += [result("gated", index=index, length=length, score=float(not won)),
                            result("full", index=index, length=length, score=float(won))]  # fmt: skip
        difference = differences(results, "gated")["full", None]
        hits += difference.low <= 0 <= difference.high
    assert 0.9 <= hits / 150 <= 0.99


def test_capture_and_retention_are_shares_of_what_is_known() -> None:
    results = [
        result(index=0, captured=True, retained=True),
        result(index=1, captured=True, retained=False),
        result(index=2, captured=False, retained=False),
        result(index=3, captured=True, retained=True),
        result(index=4),
        result(index=5, error="HTTP 503", captured=False, retained=False),
    ]
    summary = summarise(results)
    assert summary.capture is not None and summary.retention is not None
    assert (summary.capture.examples, summary.capture.mean) == (4, 0.75)
    assert (summary.retention.examples, summary.retention.mean) == (3, pytest.approx(2 / 3))
    assert summarise([result()]).capture is None


def test_what_is_declined_and_what_is_invented_are_counted_apart() -> None:
    none = {"answers": ABSENT_ANSWERS[:1]}
    rows = [
        result(index=0), result(index=1, score=0.0, prediction="Rome"),
        result(index=2, score=0.0, prediction="The text does not mention it."),
        result(index=3, prediction="An unknown man"), failed(index=4),
        result(index=5, prediction="It does not say.", **none),
        result(index=6, score=0.0, prediction="Rome", **none), failed(index=7, **none),
    ]  # fmt: skip
    summary = summarise(rows)
    shares = summary.declined, summary.declined_rightly, summary.invented
    assert [(share.examples, share.mean) for share in shares if share] == [(5, 1 / 5), (3, 1 / 3), (3, 1 / 3)]
    assert summary.invented and (summary.invented.low, summary.invented.high) == confidence_interval(
        [1, 0, 0]
    )
    assert summarise(rows[:2]).invented is None
    assert [attempt.row.index for attempt in wrong(rows)] == [1, 2, 4, 6, 7]


def test_of_wrong_answers_the_worst_come_first_one_for_each_question_and_not_too_many() -> None:
    rows = [result(index=index, sample=sample, score=index / 100 + sample / 2) for index in range(40)
            for sample in range(2)]  # fmt: skip
    attempts = wrong([*reversed(rows), result("full", score=0.5), result("full", index=1)])
    assert [(attempt.series, attempt.row.index, attempt.row.sample) for attempt in attempts] == [
        *(("gated", index, 0) for index in range(MAX_WRONG)), ("full", 0, 0)
    ]  # fmt: skip


def test_examples_of_one_name_are_paired_in_their_order() -> None:
    gated = [result("gated", index=index, example_id="a", score=float(index < 5)) for index in range(10)]
    full = [result("full", index=index, example_id="a", score=1.0) for index in reversed(range(10))]
    difference = differences([*gated, *full], "gated")["full", None]
    assert (difference.examples, difference.mean) == (10, 0.5)
    difference = differences([*gated, *full[:5]], "gated")["full", None]
    assert (difference.examples, difference.mean) == (5, 1.0), (
        "a run that is not finished lacks the first five"
    )


def test_paired_differences_show_what_two_scores_cannot() -> None:
    half = [result("gated", index=index, score=float(index % 2)) for index in range(100)]
    more = [result("full", index=index, score=float(index % 2 or index < 20)) for index in range(100)]
    one, other = summarise(half), summarise(more)
    assert one.high > other.low, "their intervals overlap"
    difference = differences([*half, *more], "gated")["full", None]
    assert difference.mean == 0.1 and difference.low > 0


def test_growth_of_linear_data_is_1() -> None:
    assert growth((length, 3.7 * length) for length in (2048, 4096, 65536)) == pytest.approx(1.0, abs=1e-12)
    assert growth((length, length**2 / 9) for length in (10, 100, 1000)) == pytest.approx(2.0, abs=1e-12)
    assert growth((length, 5) for length in (10, 100)) == pytest.approx(0.0, abs=1e-12)


@given(st.floats(0.2, 3), st.floats(0.01, 1e4), st.lists(st.floats(1e3, 4e6), min_size=3, unique=True))
def test_growth_finds_the_exponent(exponent: float, factor: float, lengths: list[float]) -> None:
    estimate = growth((length, factor * length**exponent) for length in lengths)
    if max(lengths) < 1.5 * min(lengths) * (1 - 1e-9):
        assert estimate is None
    elif estimate is not None:
        assert estimate == pytest.approx(exponent, abs=1e-6)


def test_too_little_growth_is_not_reported() -> None:
    assert growth([]) is None
    assert growth([(2048, 10)]) is None
    assert growth([(2048, 10), (2050, 900)]) is None, "lengths of one size differ by chance"
    assert growth([(0, 1), (10, 0), (1000, 5)]) is None


def test_growth_is_fitted_to_the_means_at_each_size() -> None:
    results = [
        result(
            index=index, length=length, length_tokens=length, prompt_tokens=2 * length, completion_tokens=0
        )
        for length in (1024, 2048, 8192)
        for index in range(3)
    ]
    results.append(failed(length=8192, length_tokens=8192, index=9))
    sizes = by_size(results)
    assert growth_of(sizes, "gated", lambda summary: summary.tokens) == pytest.approx(1.0, abs=1e-12)
    assert growth_of(sizes, "gated", lambda summary: summary.seconds) == pytest.approx(0.0, abs=1e-12)
    assert growth_of(sizes, "full", lambda summary: summary.tokens) is None


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (Size("tokens", 2048), "2K"),
        (Size("tokens", 131072), "128K"),
        (Size("tokens", 1 << 20), "1M"),
        (Size("tokens", 3_500_000), "3,500,000"),
        (Size("tokens", 128_000), "128,000"),  # which is not 128K
        (Size("tokens", 1_024_000), "1,024,000"),
        (Size("tokens", 300), "300"),
        (Size("tokens", 12345), "12,345"),
        (Size("documents", 25600), "25,600 documents"),
    ],
)
def test_sizes_are_written_as_people_say_them(size: Size, name: str) -> None:
    assert str(size) == name


def test_the_size_is_what_was_asked_for_or_about_what_it_is() -> None:
    assert result(length=2048, length_tokens=1900).size == Size("tokens", 2048)
    assert result(length=None, documents=50, length_tokens=7000).size == Size("documents", 50)
    assert result(length=None, length_tokens=7000).size == Size("tokens", 8192)


def test_cells_are_kept_apart_and_sizes_in_order() -> None:
    results = [
        result(task=task, length=length, index=index)
        for task in ("vt", "cwe")
        for length in (8192, 2048)
        for index in range(2)
    ]
    assert [(key, summary.examples) for key, summary in by_task(results).items()] == [
        (("gated", "vt", Size("tokens", 8192)), 2),
        (("gated", "vt", Size("tokens", 2048)), 2),
        (("gated", "cwe", Size("tokens", 8192)), 2),
        (("gated", "cwe", Size("tokens", 2048)), 2),
    ]
    assert [(size.number, summary.examples) for (_, size), summary in by_size(results).items()] == [
        (2048, 4),
        (8192, 4),
    ]


def test_depths_fall_into_tenths() -> None:
    depths = [0.0, 0.05, 0.1, 0.55, 0.99, 1.0]
    cells = by_depth(result(index=index, depth=depth) for index, depth in enumerate(depths))
    tenths = {tenth: summary.examples for (_, _, tenth), summary in cells.items()}
    assert tenths == {0: 2, 1: 1, 5: 1, 9: 2}


def test_depth_is_that_of_needles_where_there_are_any() -> None:
    words = result(task="hqa", depth=0.3)
    assert len(by_depth([words, result(depth=None)])) == 1
    assert [tenth for _, _, tenth in by_depth([words, result(depth=0.8)])] == [8]


def test_failures_are_counted_by_cause() -> None:
    counts = failures(
        [
            failed("http://h:80 failed 7 times, last: HTTP 503"),
            failed("http://h:81 failed 3 times, last: HTTP 503", index=1),
            failed("x" * 300 + " at first", series="full"),
            failed("x" * 300 + " later", series="full", index=1),
            result(index=3),
        ]
    )
    assert sorted(counts.values()) == [2, 2]
    assert counts["gated", "EngineError", "http://h:N failed N times, last: HTTP N"] == 2
    assert counts["full", "EngineError", "x" * 300 + " at first"] == 2, "whole, and alike if it begins alike"


def test_intervals_hold_the_mean() -> None:
    for count in (1, 2, 10, 128):
        summary = summarise([result(index=index, score=index % 3 / 2) for index in range(count)])
        assert 0 <= summary.low <= summary.score <= summary.high <= 1
        assert math.isfinite(summary.low)


def test_128_questions_mean_about_seven_points_to_each_side() -> None:
    low, high = confidence_interval([1.0] * 102 + [0.0] * 26)
    assert (low, high) == pytest.approx((0.7190, 0.8574), abs=1e-4)  # Wilson, worked by hand
    low, high = confidence_interval([1.0] * 64 + [0.0] * 64)
    assert high - low == pytest.approx(0.171, abs=1e-3)


def test_the_interval_of_other_scores_has_a_zero_and_a_one_more() -> None:
    # Mean 3.4 / 6 = 0.56667; mean of squares 2.46 / 6 = 0.41; deviation 0.29814, by sqrt 6, 1.95996 times.
    low, high = confidence_interval([0.5, 0.7, 0.6, 0.6])
    assert (low, high) == pytest.approx((0.56667 - 0.23856, 0.56667 + 0.23856), abs=1e-4)


@pytest.mark.parametrize("scores", [[0.25, 0.25], [0.0, 0.0, 0.0, 0.2], [1.0, 1.0, 0.9]])
def test_the_interval_of_a_few_scores_that_are_alike_is_wide(scores: list[float]) -> None:
    low, high = confidence_interval(scores)
    assert low <= min(scores) and high - low > 0.3


def test_too_few_scores_tell_nothing_and_equal_ones_not_everything() -> None:
    assert confidence_interval([]) == (0, 1) == confidence_interval([1.0])
    assert confidence_interval([1.0] * 10)[0] == pytest.approx(0.7225, abs=1e-3)


def test_paired_interval_is_that_of_agresti_and_min() -> None:
    # Of 100 questions one reader alone is right at 20, the other alone at 10: with half an answer more
    # in each of the four cells (20 - 10) / 102, and to each side 1.96 * sqrt(31 - 10 ** 2 / 102) / 102.
    low, high = paired_interval([1.0] * 20 + [-1.0] * 10 + [0.0] * 70)
    assert (low, high) == pytest.approx((0.0980 - 0.1053, 0.0980 + 0.1053), abs=1e-4)
    low, high = paired_interval([0.0] * 8)  # 1.96 * sqrt(1 / 10 / 10)
    assert (low, high) == pytest.approx((-0.196, 0.196), abs=1e-3), "eight ties are no proof of a tie"


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1.0]), min_size=2))
def test_the_interval_holds_the_mean_and_stays_within_0_and_1(scores: list[float]) -> None:
    low, high = confidence_interval(scores)
    assert 0 <= low <= sum(scores) / len(scores) + 1e-9
    assert sum(scores) / len(scores) - 1e-9 <= high <= 1


def test_the_interval_covers_the_truth_about_19_times_in_20() -> None:
    source = random.Random(0)
    hits = 0
    for _ in range(500):
        low, high = confidence_interval([float(source.random() < 0.3) for _ in range(60)])
        hits += low <= 0.3 <= high
    assert 0.92 <= hits / 500 <= 0.98
