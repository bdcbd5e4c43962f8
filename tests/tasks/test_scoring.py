"""Scorers, and the answer in a reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.tasks.scoring import (
    SCORERS,
    boxed_match,
    exact_match,
    extract_answer,
    f1,
    published_substring_match,
    rouge_l,
    score_reply,
    string_match_all,
    string_match_part,
    substring_match,
)

WORDS = st.lists(st.sampled_from(["the", "a", "cat", "Dog,", "7", "on!", "mat"]), max_size=9).map(" ".join)


def test_ruler_counts_answers_found_and_any_answer() -> None:
    assert string_match_all("it is 12 and 34", ("12", "34", "56")) == pytest.approx(2 / 3)
    assert string_match_all("PARIS", ("Paris",)) == 1
    assert string_match_part("the capital, paris", ("London", "Paris")) == 1
    assert string_match_part("rome", ("London", "Paris")) == 0


def test_squad_normalisation_ignores_case_articles_and_punctuation() -> None:
    assert exact_match("The  Eiffel-Tower!", ("eiffeltower", "x")) == 1
    assert exact_match("Eiffel", ("Eiffel Tower",)) == 0


def test_f1_is_of_words_and_the_best_over_the_answers() -> None:
    assert f1("the big red dog", ("red dog", "cat")) == pytest.approx(0.8)  # 2 of 3 said, 2 of 2 wanted
    assert f1("dog dog", ("dog",)) == pytest.approx(2 / 3)
    assert f1("cat", ("dog",)) == 0


@pytest.mark.parametrize(
    ("reply", "answer", "score"),
    [
        ("北京。", "北京", 1),
        ("答案是北京", "北京", 1),
        ("南京", "北京", 0),
        ("서울은 수도이다", "서울", 1),
        ("It is “Paris”.", "Paris", 1),
        ("It’s O’Brien.", "O'Brien", 1),
        ("in Paris—where else?", "Paris", 1),
        ("1939–1945", "1945", 1),
        ("1939–1945", "1939-1945", 1),
        ("a well\u2011known man", "well-known", 1),
        ("Jean-Paul Sartre", "Jean\u2010Paul Sartre", 1),
        ("cafe\u0301", "café", 1),
        ("42\u200b", "42", 1),
        ("£5 million", "5 million", 1),
        ("５", "5", 1),
        ("Parisian", "Paris", 0),
        ("有15个", "5", 0),
    ],
)
def test_substring_match_knows_the_words_of_other_scripts(reply: str, answer: str, score: float) -> None:
    assert score_reply("substring_match", reply, (answer,)) == score


@pytest.mark.parametrize(
    "name", ["string_match_all", "string_match_part", "exact_match", "f1", "substring_match"]
)
def test_a_minus_is_one_whichever_character_it_is(name: str) -> None:
    assert score_reply(name, "\u22125", ("-5",)) == 1 == score_reply(name, "-5", ("\u22125",))


def test_substring_match_goes_one_way_and_by_whole_words() -> None:
    assert substring_match("It was Ada Lovelace, in 1843.", ("ada lovelace",)) == 1
    assert substring_match("Ada", ("Ada Lovelace",)) == 0
    assert substring_match("nothing is known", ("no",)) == 0
    assert substring_match("No, they are not.", ("no",)) == 1


def test_the_published_scorer_counts_either_way_and_only_the_first_answer() -> None:
    assert published_substring_match("Ada", ("Ada Lovelace",)) == 1
    assert published_substring_match("It is Ada Lovelace", ("Ada Lovelace",)) == 1
    assert published_substring_match("Ada", ("Byron", "Ada")) == 0
    assert published_substring_match("", ("Ada",)) == 0 == published_substring_match("...", ("Ada",))


def test_an_answer_that_normalises_to_nothing_is_not_in_everything() -> None:
    for name in ("exact_match", "f1", "substring_match"):
        assert SCORERS[name]("whatever", ("A",)) == 0, name
        assert SCORERS[name]("a", ("A",)) == 1, name


@given(WORDS, st.lists(WORDS.filter(str.strip), min_size=1, max_size=3).map(tuple))
def test_scores_lie_between_0_and_1_and_more_answers_never_hurt_the_best(
    prediction: str, answers: tuple[str, ...]
) -> None:
    for name, scorer in SCORERS.items():
        assert 0 <= scorer(prediction, answers) <= 1
        assert scorer("", answers) == 0
        assert scorer(answers[0], answers[:1]) in (0, 1)
        if name not in ("string_match_all", "published_substring_match"):
            assert scorer(prediction, (*answers, "mat")) >= scorer(prediction, answers)
    if exact_match(prediction, answers):
        assert substring_match(prediction, answers) == 1 == f1(prediction, answers)


@pytest.mark.parametrize(
    ("ours", "gold", "expected"),
    [  # recorded from the package rouge 1.0.1, get_scores(...)["rouge-l"]["f"]
        ("the cat sat on the mat", "the cat was on the mat", 0.799999995),
        ("The cat sat. The dog ran away.", "A dog ran away. The cat sat down.", 0.857142852),
        ("a b c d a b", "b a d c b a", 0.499999995),
        (
            "Costs rose by 3.5 percent. It urges reform.",
            "Costs rose 3.5 percent. Reform is urged.",
            0.588235289,
        ),
        ("Ends with a newline.\n", "Ends with a space. ", 0.799999995),
        ("one two three. four five.\nsix seven. one two", "six seven one. two three four. five", 0.999999995),
        ("Nothing in common", "entirely other words", 0.0),
        ("word word word word", "word", 0.999999995),
        ("Grüße aus Köln, und zwar viele.", "Viele Grüße aus Köln.", 0.399999995),
        ("x y z w v", "v w x y z", 0.599999995),
        (
            "The meeting discussed the budget. The budget was cut by a third. Nobody objected to the cut.",
            "The committee met about the budget, which was cut by a third. No one objected.",
            0.571428566,
        ),
    ],
)
def test_rouge_l_is_that_of_the_package_which_longbench_uses(ours: str, gold: str, expected: float) -> None:
    assert rouge_l(ours, ("another", gold)) == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{no}, rather \boxed{Paris}.", "Paris"),
        (r"\boxed{f(x) = \frac{a}{b}}", r"f(x) = \frac{a}{b}"),
        (r"\boxed{\text{Paris}}", "Paris"),
        (r"\boxed {7} and \boxed{}", "7"),
        ("\\boxed{Paris\nand so on", "Paris"),
        (r"The answer is Rome. But \boxed{Paris}", "Paris"),
        ("I think the answer is: **Paris**.\nBecause.", "Paris"),
        ("The answer is Rome.\nNo: the final answer is Paris", "Paris"),
        ("The answer is 3.5.", "3.5"),
        ("Paris is what the answer is.", "Paris is what the answer is."),
        ("The answer is Paris!", "Paris"),
        ("The answer is\n", "The answer is"),
        ("  Paris \n", "Paris"),
        ("", ""),
    ],
)
def test_the_answer_in_a_reply(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@given(st.text("ab{} ", max_size=20))
def test_whatever_is_balanced_in_a_box_comes_out_of_it(content: str) -> None:
    depths, depth = [], 0
    for letter in content:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        depths.append(depth)
    if content.strip() and depth == 0 and min(depths) >= 0:
        assert extract_answer(f"so \\boxed{{{content}}} }}") == content.strip()


def test_scorers_of_whole_answers_see_the_answer_in_the_reply() -> None:
    reply = "I thought long. The answer is Paris."
    assert score_reply("exact_match", reply, ("Paris",)) == 1.0
    assert score_reply("string_match_all", f"2 and 3. {reply}", ("2", "3")) == 1.0


@pytest.mark.parametrize(
    ("reply", "answers", "score"),
    [
        (r"So it is \boxed{Vienna}.", ("vienna",), 1),
        (r"\boxed{the  Beatles}", ("TheBeatles", "x"), 1),
        (r"\boxed{50\%}", ("50",), 1),
        (r"\boxed{\frac{1}{2}}", (r"\dfrac{1}{2}",), 1),
        ("Vienna", ("Vienna",), 0),  # no box
        (r"\boxed{Vienna", ("Vienna",), 0),  # not closed
        (r"\boxed{}", ("",), 0),
        (r"\boxed{Vienna, Paris}", ("Vienna",), 0),
        (r"\boxed{Vienna} or \boxed{Paris}", ("Vienna",), 0),  # the last box counts
        (r"\boxed{Vienna}" + "." * 300, ("Vienna",), 0),  # out of reach
    ],
)
def test_boxed_match_is_the_published_reward(reply: str, answers: tuple[str, ...], score: float) -> None:
    assert boxed_match(reply, answers) == score == score_reply("boxed_match", reply, answers)
