"""A source that is shown stands in the document, character for character; what nothing says has none."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent import Read, ReadSettings, ScriptedEngine, open_document, text_document
from memagent.concurrency import drain
from memagent.documents.chunking import split
from memagent.documents.tokens import estimate_tokens
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer
from memagent.reading.locating import find_sources
from memagent.reading.quotes import says
from memagent.reading.sources import Statement, find, statements_of
from memagent.types import Chunk, Message, Part

STORY = (Path(__file__).parents[2] / "examples" / "blue_carbuncle.txt").read_text("utf-8")


def chunk_of(text: str, start: int = 0) -> Chunk:
    end = start + len(text)
    return Chunk(0, text, start, end, len(text.split()), (Part("a.txt", start, end),))


def read(text: str, reply: str, answer: str, workflow: str = "gated") -> Read:
    def replies(messages: tuple[Message, ...]) -> str:
        return f"MEMORY\n{reply}" if "<chunk" in messages[-1].content else answer

    settings = ReadSettings(workflow=workflow, cite=True, chunk_tokens=400)
    reading = Read("Who?", text_document(text, "a.txt"), ScriptedEngine(replies), settings)
    asyncio.run(drain(aiter(reading)))
    return reading


@pytest.mark.parametrize(
    ("statement", "excerpt"),
    [
        ("Catherine Cusack, maid to\nthe Countess", "Catherine Cusack, maid to\nthe Countess"),
        ("Catherine Cusack was maid to the Countess.", "Catherine Cusack, maid to\nthe Countess"),
        ("- A reward offered of 1,000 pounds", "the reward offered of 1000 pounds"),
        ("Catherine Cusack", "Catherine Cusack, maid to\nthe Countess"),
        ("goose", None),
        ("Catherine Cusack stole the goose in Vienna.", None),
        ("Napoleon was there in 1812.", None),
    ],
)
def test_a_statement_is_found_or_is_not(statement: str, excerpt: str | None) -> None:
    source = find(statement, chunk_of(STORY))
    assert (source is None) == (excerpt is None)
    if source and excerpt:
        assert excerpt in source.excerpt
        assert STORY[source.start : source.end] == source.excerpt


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("The rent is 900 euros", "The monthly rent is 900 euros, due on the first."),
        ("The rent: 900 euros", "The rent is 900 euros."),
        ("The price is 1000 euros", "The price is 1,000 euros."),
        ("It fell by 5 %", "It fell by 5%, as in May."),
        ("It was -5 degrees", "It was \u22125 degrees."),
        ("-5 degrees", "It was -5 degrees."),
        ("The rate is 0.5", "The rate is .5 today."),
        ("It fell by -0.5%", "It fell by -.5%, not more."),
        ("5 lamps", "See page.5 lamps stand there."),
        ("5 lamps", "And then ...5 lamps."),
        ("5 lamps", 'He said "no".5 lamps.'),
        ("a well known man", "He was a well-known man."),
        ("He came back", "He came back--and slept."),
        ("X-ray pictures were made", "X-ray pictures were made."),
        ("the **code** is `7421`", "The vault's code is 7421."),
        ("Mr Holmes came", "Mr. Holmes came."),
        ("押金是五百元", "合同规定押金是五百元。"),
        ("The building firm owes it", "The buil\u00adding firm owes\u00ad it."),
        ("Cusack was maid to the Countess", "Catherine Cusack, maid to\nthe Countess, cried."),
    ],
)
def test_the_same_words_are_found_whatever_stands_around_them(statement: str, text: str) -> None:
    assert says(text, statement)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("Alice owes Bob", "Bob owes Alice."),
        ("The firm owes the bank 50 million in bonds", "The bank owes the firm 50 million in bonds."),
        ("Bob was paid by Alice", "Bob paid Alice."),
        ("Bob paid 5 dollars", "Bob was paid 5 dollars."),
        ("Smith lives in Paris", "Smith lives in London."),
        ("Smith was born in Paris", "He was born in Paris."),
        ("The bank owes Alice", "The bank's client owes Alice."),
        ("Paris is Madrid", "Paris, Madrid and Rome."),
        ("He ate Alice", "He ate. Alice slept."),
        ("He is king", "He was king."),
        ("5%", "-5%"),
        ("It fell by 5%", "It fell by -5%."),
        ("It is 5 degrees", "It is minus 5 degrees."),
        ("The walk is 3 km", "The walk is 3 miles."),
        ("The rent is 950 euros", "The rent is 900 euros."),
        ("The rent is $900", "The rent is €900."),
        ("The rent is 900", "The rent is 900.50 euros."),
        ("The debt is 5", "The debt is 5 million."),
        ("The rate is 5", "The rate is 5%."),
        ("The rate is 3.141", "The rate is 3141."),
        ("The rate is 5", "The rate is .5 today."),
        ("The fee is $50", "The fee is $.50 today."),
        ("Version 1.5 ships", "Version 5.1 ships."),
        ("The dose is 5 mg", "The dose is 5 mg/kg per day."),
        ("The rate is 1.5", "The rate is 1.5e-3."),
        ("The load was 10", "The load was 10^5 N."),
        ("He is in room 12", "He is in room 12B."),
        ("It is 5", "It is 5 ± 2."),
        ("It is written in C", "It is written in C++."),
        ("It takes 5 days", "It takes 3-5 days."),
        ("It is guilty of theft", "It is not guilty of theft."),
        ("guilty of theft", "He wasn't guilty of theft."),
        ("Horner stole", "Horner stole nothing."),
        ("a < b", "a > b"),
        ("押金是六万元整", "合同规定不收取任何费用。"),
        ("收取任何费用", "合同规定不收取任何费用。"),
        ("押金是五百元", "合同规定押金不是五百元。"),
    ],
)  # fmt: skip
def test_what_is_not_said_in_these_words_is_not_said(statement: str, text: str) -> None:
    assert not says(text, statement)


def test_the_answer_tells_the_places_that_its_memory_came_from() -> None:
    reading = read(STORY, "Catherine Cusack was maid to the Countess.", "Catherine Cusack, maid.")
    (statement,) = reading.statements
    assert statement.source and "Catherine Cusack, maid to" in statement.source.excerpt
    assert reading.result.statements == reading.statements
    assert STORY[statement.source.start : statement.source.end] == statement.source.excerpt


@pytest.mark.parametrize("cut_off", ["before", "behind"])
def test_half_of_a_long_sentence_says_nothing_of_its_own(cut_off: str) -> None:
    lamp, debt = "The lamp of Ada was green", "debt of Bob was 5"
    for length in range(140, 200):
        filler = f" {('and so on ' * 20)[:length].strip()} "
        behind, before = f"{lamp}{filler}{debt} million pounds.", f"We saw no {debt}{filler}{lamp}."
        reading = read(behind if cut_off == "behind" else before, lamp, debt)
        assert [(statement.text, statement.source) for statement in reading.statements] == [(debt, None)]


def test_a_fabricated_statement_is_marked() -> None:
    reading = read(STORY, "Moriarty hid the stone in Vienna.", "Moriarty hid the stone in Vienna.")
    assert reading.statements == (Statement("Moriarty hid the stone in Vienna.", None),)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("The code is 12", "The code is 1234, and no other."),
        ("The rent is 900", "The rent is 900.50 euros."),
        ("He had no money", "He had no moneylender."),
        ("cat is in", "The bobcat is inside."),
        ("यह राम", "यह रामायण है।"),
        ("पिता", "पिताजी आए।"),
        ("राम आया", "बलिराम आया।"),
        ("This is a cafe", "This is a cafe\u0301."),
        ("It contains sugar", "It contains sugar-free syrup."),
        ("toxic paint was used", "Only non-toxic paint was used."),
        ("It is open from Monday", "It is open from Monday\u2011Friday."),
    ],
)
def test_the_very_words_are_no_part_of_longer_ones(statement: str, text: str) -> None:
    assert find(statement, chunk_of(text)) is None
    assert find(statement, chunk_of(f"{text} ({statement}).")) is not None


def test_what_the_memory_dropped_or_says_in_other_words_is_found_in_the_document() -> None:
    reading = read(STORY, "A lady's servant.", "Catherine Cusack was maid to the Countess.")
    (statement,) = reading.statements
    assert statement.source and "Catherine Cusack, maid to" in statement.source.excerpt


def test_an_answer_from_notes_on_several_chunks_has_the_sources_of_all() -> None:
    text = "The lamp stands in Oslo, green.\n\n" + "Nothing. " * 400 + "\n\nThe anchor lies in Bergen.\n"

    def replies(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if "<chunk" not in prompt:
            return "The lamp stands in Oslo. The anchor lies in Bergen."
        return "UNCHANGED" if "Oslo" not in prompt else "MEMORY\nThe lamp stands in Oslo."

    settings = ReadSettings(workflow="map_reduce", cite=True, chunk_tokens=300)
    reading = Read("Where?", text_document(text, "a.txt"), ScriptedEngine(replies), settings)
    asyncio.run(drain(aiter(reading)))
    assert [statement.source is not None for statement in reading.statements] == [True, True]


def test_a_reply_that_is_asked_about_has_its_sources() -> None:
    text = "The lamp stands in Oslo, green.\n\n" + "Nothing. " * 400 + "\n\nThe anchor lies in Bergen.\n"

    def replies(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if "<chunk" not in prompt:
            return "MEMORY" if "what the reader wrote" in prompt else "No."
        facts = [fact for fact in ("The lamp stands in Oslo", "The anchor lies in Bergen") if fact in prompt]
        return (
            f"MEMORY\n{facts[-1]}." if facts and "<chunk" in prompt.partition(facts[-1])[0] else "UNCHANGED"
        )

    settings = ReadSettings(workflow="gated", cite=True, chunk_tokens=300)
    reading = Read("Where?", text_document(text, "a.txt"), ScriptedEngine(replies), settings)

    async def run() -> list[str]:
        return [conversation.memory async for conversation in reading]

    memories = asyncio.run(run())
    assert memories[-2:] == ["The anchor lies in Bergen."] * 2 and "Oslo" in memories[-3]
    (remembered,) = reading.progress.statements
    assert remembered.source and remembered.source.excerpt == "The anchor lies in Bergen."


@pytest.mark.parametrize("workflow", ["full", "rag", "truncate"])
def test_without_a_memory_the_whole_document_is_searched(workflow: str) -> None:
    reading = read(STORY, "", "Catherine Cusack was maid. It was in Vienna, in 1812.", workflow)
    supported, unsupported = reading.statements
    assert supported.source and "Catherine Cusack" in supported.source.excerpt
    assert unsupported.source is None


def test_files_and_their_own_offsets_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The lamp stands in Oslo, green.\n")
    (tmp_path / "b.txt").write_text("Nothing.\nThe anchor lies\nin Bergen, red.\n")
    document = open_document(tmp_path)
    statements = [Statement("The anchor lies in Bergen", None), Statement("The lamp stands in Oslo", None)]
    for statement in find_sources(statements, "Where?", document, 400):
        assert statement.source is not None
        text = Path(statement.source.file).read_text()
        assert text[statement.source.start : statement.source.end] == statement.source.excerpt


def test_a_file_without_a_last_line_end_is_searched_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The code of the safe is 4711")
    (tmp_path / "b.txt").write_text("Hello everybody.")
    (chunk,) = split(open_document(tmp_path), 400, estimate_tokens)
    source = find("The code of the safe is 4711.", chunk)
    assert source and (source.start, source.end) == (0, 28)
    assert find("4711 Hello everybody.", chunk) is None


def test_notes_on_notes_have_no_place_in_the_document() -> None:
    text = "".join(
        f"Lamp {number} stands in Oslo, {number}00 paces from the gate.\n\n" for number in range(60)
    )

    def replies(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if "<chunk" not in prompt:
            return "Lamp 7 stands in Oslo, at the very gate."
        return "MEMORY\nLamp 7 stands in Oslo, at the very gate. " + "It does. " * 9

    settings = ReadSettings(
        workflow="map_reduce", cite=True, chunk_tokens=20, memory_tokens=40, answer_tokens=30
    )
    engine = ScriptedEngine(replies, window_tokens=600)
    reading = Read("Where?", text_document(text, "a.txt"), engine, settings)

    async def run() -> list[tuple[int | None, tuple[int, int] | None]]:
        return [(conversation.chunk_index, conversation.span) async for conversation in reading]

    places = asyncio.run(run())
    assert places.count((None, None)) > 1, "notes were taken on notes"
    for statement in reading.statements:
        assert (
            statement.source is None
            or text[statement.source.start : statement.source.end] == statement.source.excerpt
        )


def test_what_is_verbatim_is_found_unless_a_negation_was_cut_off() -> None:
    paragraphs = (" ".join(paragraph.split()) for paragraph in STORY.split("\n\n"))
    words = [
        statement.split()
        for text in paragraphs
        for statement in statements_of(text)
        if len(statement.split()) > 3
    ]
    cuts = [
        " ".join(cut)
        for sentence in words
        for cut in (sentence, sentence[: max(2, len(sentence) * 2 // 3)], sentence[len(sentence) // 3 :])
    ]
    lost = [cut for cut in cuts if find(cut, chunk_of(STORY)) is None]
    assert (len(cuts), len(lost)) == (1419, 17)
    assert {" ".join(sentence) for sentence in words}.isdisjoint(lost)


@given(st.text(max_size=300), st.text(max_size=80))
def test_any_source_is_an_excerpt(text: str, statement: str) -> None:
    if (source := find(statement, chunk_of(text))) is not None:
        assert text[source.start : source.end] == source.excerpt


@pytest.mark.parametrize("workflow", ["gated", "evidence", "full"])
def test_the_journal_says_where_the_answer_stands_in_the_document(tmp_path: Path, workflow: str) -> None:
    for name, fact in (("a.txt", "The anchor lies in Bergen."), ("b.txt", "The lamp stands in Oslo.")):
        (tmp_path / name).write_text(f"Nothing was said of it.\n\n{fact}\n")

    def reply(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if workflow == "full" or "<chunk" not in prompt:
            return "The lamp stands in Oslo. It is red."
        sentences = re.findall(r"The (?:anchor|lamp) [\w ]+\.", prompt)
        return "\n".join(
            ["MEMORY", *sentences] if workflow == "gated" else [f"ADD {sentence}" for sentence in sentences]
        )

    document, trace = open_document(tmp_path / "a.txt", tmp_path / "b.txt"), tmp_path / "read.jsonl"
    settings = ReadSettings(workflow=workflow, chunk_tokens=60, cite=workflow != "evidence")
    reading = Read("What stands where?", document, ScriptedEngine(reply), settings, trace=trace)
    asyncio.run(drain(aiter(reading)))
    (answer,) = [line for line in read_journal(trace) if isinstance(line, Answer)]
    assert (answer.answer, answer.statements) == (reading.answer, reading.statements)
    lamp, red = answer.statements or ()
    assert lamp.source and lamp.source.at is not None and red.source is None
    whole = "".join(block.text for block in document.blocks())
    assert whole[lamp.source.at :].startswith("The lamp stands in Oslo.")
    remembered = [statement.source for statement in reading.progress.statements if statement.source]
    assert len(remembered) == (0 if workflow == "full" else 2)
    assert all(whole[source.at :].startswith(source.excerpt) for source in remembered)
