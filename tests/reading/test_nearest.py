"""What is said in other words leads to its nearest passage; what the document lacks leads to none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent import Read, ReadSettings, ScriptedEngine, open_document, text_document
from memagent.concurrency import drain
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer
from memagent.reading.locating import find_sources
from memagent.reading.sources import Statement, statements_of

QUESTION = "When did the new pumps arrive, and what does the delay change?"
LATE = "Delivery was promised for May but the pumps arrived only on 9 June, as the ship was late."
MOVED = "The delay moves the end of the work from 2 July to 30 August 2027."
REPORT = f"""# Waterworks: report

## 1. Pumps

Six new pumps were ordered from Halvorsen in Bergen on 3 March. {LATE} Setting them up takes a week. {MOVED}

## 2. Pipes

The foreman Ole Strand found a leak behind the filter house. The weekly meeting was held as usual. A second
pump house is planned for 2031, and its drawings are kept in the site office.
"""


def traced(answer: str, text: str = REPORT, question: str = QUESTION) -> list[Statement]:
    bare = [Statement(statement, None) for statement in statements_of(answer)]
    return list(find_sources(bare, question, text_document(text, "a.md"), 400))


def passages(answer: str, text: str = REPORT, question: str = QUESTION) -> list[list[str]]:
    """The nearest passages of each statement, of which none is said word for word."""
    statements = traced(answer, text, question)
    assert all(statement.source is None for statement in statements)
    for passage in (passage for statement in statements for passage in statement.nearest):
        assert text[passage.start : passage.end] == passage.excerpt and passage.at == passage.start
    return [[passage.excerpt for passage in statement.nearest] for statement in statements]


@pytest.mark.parametrize(
    ("answer", "nearest"),
    [
        ("The new pumps arrived on 9 June, and the delay moves the end to 30 August 2027.", [LATE, MOVED]),
        ("The end of the work was moved by the delay: from 2 July to 30 August 2027.", [MOVED]),
        ("Ole Strand, the foreman, found the leak.",
         ["The foreman Ole Strand found a leak behind the filter house."]),
    ],
)  # fmt: skip
def test_other_words_lead_to_the_nearest_passages(answer: str, nearest: list[str]) -> None:
    assert passages(answer) == [nearest]


@pytest.mark.parametrize(
    "answer",
    [
        "The new pumps arrived on 8 June, and the delay moves the end to 30 August 2027.",
        "Knut Strand, the foreman, found the leak.",
        "The delay moves the end of the work from 2 July to the spring of 2028.",
        "Several residents complained about noisy lorries.",
        "Yes.",
        "pumps",
    ],
)
def test_other_numbers_names_or_words_lead_nowhere(answer: str) -> None:
    assert passages(answer) == [[]]


def test_a_name_that_only_the_question_has_may_be_repeated() -> None:
    answer = "At Lindholm, the foreman Ole Strand has found the leak."
    assert passages(answer) == [[]]
    assert passages(answer, question="Who found the leak at Lindholm?") != [[]]


def test_a_heading_is_neither_a_passage_nor_a_statement() -> None:
    answer = "## Pumps\n\nThe dates are these:\n- **The end** of work moves from 2 July to 30 August 2027."
    assert passages(answer) == [[MOVED]]
    assert passages("The waterworks have a report.") == [[]]
    assert statements_of("## 9 June") == ["## 9 June"], "it is all that the answer says"
    assert statements_of("Ask Mr. Strand. He knows.") == ["Ask Mr. Strand.", "He knows."]


def test_two_passages_that_have_nothing_in_common_make_no_statement() -> None:
    assert passages("The delay moves the end of the work to 2031.") == [[]], "the year of another house"


WINNERS = (
    "The first prize went to Abel Hart of Dunmore.",
    "Second came Bora Lind with a pear tart.",
    "The third prize was given to Cleo Marsh.",
)
FAIR = "\n\n".join(f"{winner}\n\n{'The minutes of the last meeting were read. ' * 20}" for winner in WINNERS)


def test_what_is_said_piece_by_piece_leads_to_each_passage() -> None:
    question = "Who won the prizes?"
    answer = "The prizes were won by Abel Hart, Bora Lind and Cleo Marsh."
    assert passages(answer, FAIR, question) == [[*WINNERS]]
    assert passages("Abel Hart won, Bora Lind came second, and Cleo Marsh third.", FAIR, question) == [
        [*WINNERS]
    ]
    for wrong in ("Abel Hart, Bora Strand and Cleo Marsh", "Abel Hart, Bora Lind, Ole Strand and Cleo Marsh"):
        assert passages(f"The prizes were won by {wrong}.", FAIR, question) == [[]]


def test_what_is_said_word_for_word_has_its_source_alone() -> None:
    (statement,) = traced("the delay moves the end of the work from 2 July to 30 August 2027")
    assert statement.source and statement.source.excerpt == MOVED and statement.nearest == ()


def test_the_passages_are_found_across_files_and_chunks(tmp_path: Path) -> None:
    rain = "The rain fell all day and the night was cold. " * 60
    (tmp_path / "a.md").write_text(f"{rain}{LATE} {rain}", "utf-8")
    ended = "So late were the pumps that the end moves to 30 August 2027."
    (tmp_path / "b.md").write_text(f"{rain}\n\n{ended} It is June.", "utf-8")
    answer = "The new pumps arrived on 9 June, and the end moves to 30 August 2027."
    trace = tmp_path / "read.jsonl"
    read = Read(
        QUESTION,
        open_document(tmp_path / "a.md", tmp_path / "b.md"),
        ScriptedEngine(lambda _: answer),
        ReadSettings(workflow="full", chunk_tokens=200, cite=True),
        trace=trace,
    )
    asyncio.run(drain(aiter(read)))
    (statement,) = read.statements
    assert statement.source is None and [passage.excerpt for passage in statement.nearest] == [LATE, ended]
    for passage in statement.nearest:
        assert Path(passage.file).read_text("utf-8")[passage.start : passage.end] == passage.excerpt
    (line,) = [line for line in read_journal(trace) if isinstance(line, Answer)]
    assert line.statements == read.statements


@given(st.text(max_size=300), st.text(max_size=80), st.text(max_size=80))
def test_any_passage_is_an_excerpt(text: str, answer: str, question: str) -> None:
    whole = "".join(block.text for block in text_document(text).blocks())
    for statement in traced(answer, text, question):
        for passage in statement.nearest:
            assert whole[passage.start : passage.end] == passage.excerpt
