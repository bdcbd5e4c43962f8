"""The names in a question that a document lacks."""

from __future__ import annotations

import pytest

from memagent.reading.names import lacks_a_name, names_of, seen_in

TEXT = """Mr. Berg came to Malmö in 1987, with 1,200 Kroner and his co-founder's map.
The code for red-fox is 12, that for blue-hen is 13."""


@pytest.mark.parametrize(
    "problem",
    [
        "When did Mr. Berg come to Malmo?",
        "Who owns the boat?",
        "What is the code for red-fox?",
        "Where did he, with 1200 Kroner, live?",
        "Who were the cofounders and what is Berg's code?",
        "You are Otto. Reply in Markdown, in 100 words.\nWhere did Berg live? Say Yes or No.",
        "Name the mayor of Oslo in 2001.",
        "Wann kam Herr Lund nach Malmö?",
        "誰がオスロに住んでいますか?",
    ],
)
def test_these_are_all_there(problem: str) -> None:
    assert not lacks_a_name(TEXT, problem)


@pytest.mark.parametrize(
    ("problem", "missing"),
    [
        ("When did Mr. Lund come to Malmo?", {"lund"}),
        ("Who came in 1988?", {"1988"}),
        ("What is the code for red-hen?", {"redhen"}),
        ("Reply in German.\nWhere did the Lunds live, and who said “Berg came?”", {"lund"}),
    ],
)
def test_these_are_lacking(problem: str, missing: set[str]) -> None:
    names = names_of(problem)
    assert names - seen_in(TEXT, names) == missing and lacks_a_name(TEXT, problem)
