"""Every task: solvable from its document, not guessable, of the length asked, the same each time."""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from memagent.documents.tokens import estimate_tokens
from memagent.errors import SettingsError
from memagent.tasks import RULER, TASKS, Corpora, Recipe, examples
from memagent.tasks.needle import Needles, like_needles
from memagent.tasks.passages import load_passages
from memagent.tasks.scoring import SCORERS
from memagent.tasks.words import _list, compound, distinct_words
from memagent.types import Example, TokenCounter
from tasks.oracles import solve

SIZED = ("hqa", "squad", "2wiki", "musique")


def score(example: Example, prediction: str) -> float:
    return SCORERS[TASKS[example.task].scorer](prediction, example.answers)


def total_tokens(example: Example, count: TokenCounter) -> int:
    room = TASKS[example.task].answer_tokens
    return count(example.document) + count(example.problem) + room


@pytest.mark.parametrize("length", [8192, pytest.param(131_072, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", [*RULER, *SIZED])
def test_an_oracle_scores_all_and_a_null_reader_nothing(task: str, length: int, count: TokenCounter) -> None:
    recipe = Recipe(length_tokens=length, seed=3, count_tokens=count)
    first, second = examples(task, recipe, 2)
    for example in (first, second):
        assert score(example, solve(example)) == 1
        assert score(example, "") == 0
        assert 0.98 * length <= total_tokens(example, count) <= length
        assert abs(example.length_tokens - count(example.document)) <= length / 10_000
    assert score(first, " ".join(second.answers)) <= 0.2, "another example's answers must not do"


@pytest.mark.parametrize(
    "task",
    [
        "niah_single_1",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("niah_multikey_3", "vt", "cwe", "fwe", "niah_single_2")
        ),
    ],
)
def test_a_million_tokens_are_met_within_two_percent(task: str) -> None:
    counted = [0]

    def counting(text: str) -> int:
        counted[0] += len(text)
        return -(-len(text) // 4)

    recipe = Recipe(length_tokens=1_000_000, count_tokens=counting)
    (example,) = examples(task, recipe, 1)
    assert 980_000 <= total_tokens(example, lambda text: -(-len(text) // 4)) <= 1_000_000
    assert score(example, solve(example)) == 1
    counts = counted[0] / len(example.document)
    assert counts < (2.2 if task == "cwe" else 1.2), "the text is counted about once, not searched for"


@pytest.mark.parametrize("task", [*RULER, *SIZED])
def test_a_tiny_length_makes_an_example_that_fits_or_says_that_it_cannot(task: str) -> None:
    successes = 0
    for length in [*range(1, 700, 53), 1500, 4500]:
        recipe = Recipe(length_tokens=length, count_tokens=lambda text: len(text.split()))
        try:
            (example,) = examples(task, recipe, 1)
        except SettingsError as error:
            assert f"{length} tokens are too few" in str(error)
            continue
        successes += 1
        assert total_tokens(example, lambda text: len(text.split())) <= length
        assert score(example, solve(example)) == 1
    assert successes >= 1


@pytest.mark.parametrize("task", [*RULER, *SIZED])
def test_an_example_depends_on_its_recipe_and_number_alone(task: str) -> None:
    recipe = Recipe(length_tokens=3000, seed=5)
    alone = TASKS[task].make(recipe, 2)
    assert list(examples(task, recipe, 3))[2] == alone
    assert list(examples(task, recipe, 1, start=2)) == [alone]
    assert alone.id == f"{task}-3000-5-2"
    other_seed = TASKS[task].make(replace(recipe, seed=6), 2)
    assert other_seed.document != alone.document
    assert TASKS[task].make(recipe, 1).document != alone.document


def test_examples_stay_what_they_were() -> None:
    """Recorded digests: a change here makes scores of different versions incomparable."""
    recipe = Recipe(length_tokens=2000, seed=1, count_tokens=lambda text: len(text) // 4)
    digests = {}
    for task in ("niah_multikey_3", "vt", "fwe", "qa_2"):
        (example,) = examples(task, recipe, 1)
        bare = replace(example, evidence=(), rationale="", haystack="")
        representation = repr(bare).replace(", evidence=(), rationale='', haystack=''", "")
        digests[task] = hashlib.sha256(representation.encode()).hexdigest()[:12]
    assert digests == DIGESTS


DIGESTS = {
    "niah_multikey_3": "cfa424709844",
    "vt": "def9c7901502",
    "fwe": "2423a58dfe5f",
    "qa_2": "05169cd13d29",
}


@pytest.mark.parametrize("documents", [10, 50, 400, 1000])
def test_hqa_has_the_documents_asked_for(documents: int) -> None:
    (example,) = examples("hqa", Recipe(documents=documents), 1)
    headings = [line for line in example.document.split("\n") if line.startswith("Document ")]
    assert headings == [f"Document {number}:" for number in range(1, documents + 1)]
    assert score(example, solve(example)) == 1


def test_fewer_documents_than_a_question_came_with_keep_those_that_it_needs() -> None:
    (example,) = examples("hqa", Recipe(documents=3), 1)
    assert example.document.count("Document ") == 3 and score(example, solve(example)) == 1
    with pytest.raises(SettingsError, match="1 documents are fewer than the 2"):
        list(examples("hqa", Recipe(documents=1), 1))


def slots(example: Example) -> list[int]:
    """Where the question's own documents stand, in their order in the set."""
    passages = load_passages(Corpora().find("hotpot"))
    question = next(candidate for candidate in passages.questions if candidate.problem == example.problem)
    texts = example.document.split("\n\nDocument ")
    bodies = [text.partition(":\n")[2] for text in texts]
    return [bodies.index(text) for text in question.own]


@pytest.mark.parametrize("seed", [42, 4])
def test_with_ruler_positions_a_question_s_documents_stand_in_the_same_slots(seed: int) -> None:
    order = list(range(200))
    random.Random(seed).shuffle(order)  # RULER (42) and MemAgent (4) shuffle the own documents and the others
    expected = [order.index(number) for number in range(10)]
    ruler = list(examples("hqa", Recipe(documents=200, seed=seed, positions="ruler"), 4))
    assert [slots(example) for example in ruler] == [expected] * 4
    seeded = [slots(example) for example in examples("hqa", Recipe(documents=200, seed=42), 4)]
    assert len({tuple(places) for places in seeded}) == 4


def test_the_last_question_of_a_set_is_the_last_example() -> None:
    recipe = Recipe(documents=10)
    assert len(list(examples("hqa", recipe, 40))) == 40
    with pytest.raises(SettingsError, match="has 40 questions"):
        list(examples("hqa", recipe, 41))


def test_distractors_are_of_the_same_article_first() -> None:
    (example,) = examples("squad", Recipe(documents=5), 1)
    assert example.document.count("Norman") >= 5 and example.document.count("\nDocument ") == 4
    texts = example.document.split("\n\nDocument ")
    assert all("Norman" in text for text in texts)


def make_examples(task: str, lengths: range, count: TokenCounter) -> Iterator[Example]:
    """Those of the lengths that are not too few."""
    for length in lengths:
        with suppress(SettingsError):
            yield from examples(task, Recipe(length_tokens=length, count_tokens=count), 1)


def test_the_third_coded_word_is_clearly_more_common_than_the_fourth() -> None:
    small = list(make_examples("fwe", range(330, 600, 3), len))
    assert 20 < len(small) < 90, "at some of these lengths two words would be equally common"
    for example in small:
        counts = [count for _, count in Counter(example.document.split()).most_common(5)]
        assert counts[3] > counts[4]


def test_a_list_has_other_words_than_the_common_ones() -> None:
    small = list(make_examples("cwe", range(240, 320, 2), lambda text: len(text.split())))
    assert 5 < len(small) < 40
    assert all(len(set(re.findall(r"\d+\. (\S+)", example.document))) > 10 for example in small)


def test_words_never_repeat_however_many_are_needed() -> None:
    words = list(islice(distinct_words(random.Random(1)), 60_000))
    assert len(set(words)) == len(words)


def test_no_needle_of_the_haystack_has_the_key_that_is_asked() -> None:
    key = compound(random.Random(4))
    assert f" for {key} is: " in next(like_needles(Needles("needle"), random.Random(4), ()))
    assert f" for {key} is: " not in next(like_needles(Needles("needle"), random.Random(4), {key}))


def test_essays_repeat_from_the_start_when_they_run_out() -> None:
    (example,) = examples("niah_single_2", Recipe(length_tokens=60_000), 1)
    assert example.document.count("I had called upon my friend Sherlock Holmes upon the second") >= 4


def test_a_needle_stands_between_sentences(tmp_path: Path) -> None:
    essay = tmp_path / "essays.txt"
    essay.write_text("Mr. Fogg left. He came back in 80 days. “Why?” asked Passepartout. " * 40)
    recipe = Recipe(length_tokens=2000, corpora=Corpora((("essays", essay),)))
    for example in examples("niah_multivalue", recipe, 10):
        before = re.findall(r"(.{4})One of the special magic \w+ for [^:]+: \w+\. [^O]", example.document)
        assert {part[-2:] for part in before} <= {". ", "” "} and "Mr. " not in before


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"length_tokens": 0}, "`length_tokens` is 0"),
        ({"documents": -1}, "`documents` is -1"),
        ({"length_tokens": 9, "documents": 9}, "not both"),
        ({"positions": "sorted"}, "'sorted'"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(recipe: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Recipe(**recipe)  # type: ignore[arg-type]


def test_a_task_that_does_not_exist_or_has_no_size_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'niah_9'.*niah_single_1"):
        examples("niah_9", Recipe(length_tokens=100), 1)
    with pytest.raises(SettingsError, match="vt needs a length in tokens"):
        list(examples("vt", Recipe(documents=5), 1))
    with pytest.raises(SettingsError, match="hqa needs a length"):
        list(examples("hqa", Recipe(), 1))


def test_tokens_are_estimated_without_a_tokenizer() -> None:
    (example,) = examples("niah_single_1", Recipe(length_tokens=4000), 1)
    assert example.length_tokens == estimate_tokens(example.document)


def test_without_the_extra_a_task_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    _list.cache_clear()
    with pytest.raises(SettingsError, match=r"\[eval\]"):
        list(examples("niah_single_1", Recipe(length_tokens=1024), 1))
