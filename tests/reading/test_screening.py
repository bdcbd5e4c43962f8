"""`screen`: chunks without a relation to problem or memory are passed over, and the result says so."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from facts import READING
from function_engine import FunctionEngine
from memagent import (
    EngineError,
    JournalError,
    Read,
    ReadSettings,
    SettingsError,
    open_document,
    text_document,
)
from memagent.concurrency import drain
from memagent.documents.chunking import split
from memagent.engines.scripted import count_words
from memagent.reading.journal import read_journal
from memagent.reading.lines import Header
from memagent.reading.ranking import Screen
from memagent.reading.workflows import workflows

SETTINGS = ReadSettings(workflow="gated", chunk_tokens=28, memory_tokens=60, answer_tokens=40, screen=True)
PROBLEM = "Where was the designer of the Velvet Engine born?"
FACTS = {4: "The Velvet Engine was designed by Ada Moss.", 11: "Ada Moss came from Ghent."}
ALONE = [name for name in READING if workflows()[name].screens]


def document(facts: dict[int, str], chunks: int = 16) -> str:
    """A chunk a paragraph; those without a fact have no word in common with anything."""
    texts = []
    for number in range(chunks):
        fact = facts.get(number, "")
        texts.append(f"{fact} " + " ".join(f"w{number}x{n}" for n in range(24 - count_words(fact))))
    return "\n\n".join(texts)


def noting(most: int = 1000) -> FunctionEngine:
    """Keeps what its prompts say of Ada Moss or the Velvet Engine; fails after `most` calls."""

    def note(prompt: str) -> str:
        if len(engine.prompts) > most:
            raise EngineError("out of order")
        known = [fact for fact in FACTS.values() if fact in prompt]
        if "<chunk-" not in prompt or not known:  # a note, an answer, or nothing
            return " ".join(known) or ("UNCHANGED" if "<chunk-" in prompt else "unknown")
        if "ADD" in prompt:
            chunk = re.findall(r"<chunk-\w+>\n(.*?)\n</chunk", prompt, re.DOTALL)[0]
            return "\n".join(f'ADD "{fact}"' for fact in known if fact in chunk) or "UNCHANGED"
        return "MEMORY\n" + "\n".join(known)

    engine = FunctionEngine(note)
    return engine


def read(
    engine: FunctionEngine, text: str, trace: Path | None = None, resume: bool = False, **settings: Any
) -> Read:
    async def whole() -> Read:
        reading = Read(
            PROBLEM, text_document(text), engine, SETTINGS.replace(**settings), trace=trace, resume=resume
        )
        await drain(aiter(reading))
        return reading

    return asyncio.run(whole())


def list_shown_chunks(engine: FunctionEngine) -> list[str]:
    """The chunks that were shown."""
    calls = zip(engine.prompts, engine.samplings, strict=True)
    prompts = (prompt for prompt, sampling in calls if not sampling.verdict)
    matches = (re.search(r"<(chunk|text)-\w+>\n(.*?)\n</\1", prompt, re.DOTALL) for prompt in prompts)
    return [match[2].strip() for match in matches if match]


def chunks_of(text: str) -> list[str]:
    """The chunks of a text."""
    return [chunk.text.strip() for chunk in split(text_document(text).blocks(), 28, count_words)]


@pytest.mark.parametrize("workflow", ALONE)
def test_what_the_memory_learned_leads_to_more_chunks(workflow: str) -> None:
    engine = noting()
    done = read(engine, document(FACTS), workflow=workflow)
    chunks = chunks_of(document(FACTS))
    expected = [chunk for chunk in chunks if any(fact in chunk for fact in FACTS.values())]
    assert list_shown_chunks(engine)[:2] == expected, "the second says nothing of the engine"
    assert "Ghent" in done.answer
    result = done.result
    assert (result.chunks, result.passed_over, result.stopped_early) == (len(chunks), len(chunks) - 2, False)
    assert result.document_tokens == count_words(document(FACTS))


def test_a_word_that_ends_a_file_is_seen(tmp_path: Path) -> None:
    for number in range(16):
        (tmp_path / f"{number:02}.txt").write_text(f"nothing {'x' * (number + 1)} happened here today")
    (tmp_path / "07.txt").write_text("nothing of note happened to Zoltan")
    engine = noting()
    reading = Read("What of Zoltan?", open_document(tmp_path), engine, SETTINGS.replace(screen=True))
    asyncio.run(drain(aiter(reading)))
    assert any("Zoltan" in chunk for chunk in list_shown_chunks(engine)) and reading.progress.passed_over


def test_nothing_is_passed_over_unless_it_is_asked_for() -> None:
    engine = noting()
    result = read(engine, document(FACTS), screen=False).result
    assert list_shown_chunks(engine) == chunks_of(document(FACTS)) and result.passed_over == 0


def test_words_are_the_same_with_soft_hyphens() -> None:
    fact = {4: "Of En\u00adgines, the Vel\u00advet one: made by Ada Moss."}
    engine = noting()
    read(engine, document(fact))
    assert fact[4] in list_shown_chunks(engine)[0], "and the text is not altered"


def test_a_problem_that_names_nothing_of_the_document_passes_over_nothing() -> None:
    engine = noting()
    assert read(engine, document({}, 5)).result.passed_over == 0
    assert list_shown_chunks(engine) == chunks_of(document({}, 5))


def test_it_resumes_exactly_wherever_it_was_cut_off(tmp_path: Path) -> None:
    whole = noting()
    expected = read(whole, document(FACTS), tmp_path / "whole.jsonl")
    for calls in range(len(whole.prompts)):
        trace, first, second = tmp_path / f"{calls}.jsonl", noting(most=calls), noting()
        with pytest.raises(EngineError):
            read(first, document(FACTS), trace)
        again = read(second, document(FACTS), trace, resume=True)
        assert first.prompts[:calls] + second.prompts == whole.prompts
        assert (again.answer, again.memory) == (expected.answer, expected.memory)
        assert again.result.passed_over == expected.result.passed_over == len(chunks_of(document(FACTS))) - 2
    header, *_ = read_journal(tmp_path / "whole.jsonl")
    assert isinstance(header, Header) and header.values["screen"] == 3
    with pytest.raises(JournalError, match="screen was 3, now it is null"):
        read(noting(), document(FACTS), tmp_path / "whole.jsonl", resume=True, screen=False)


def test_a_source_of_a_chunk_that_was_passed_over_is_still_found() -> None:
    reading = read(noting(), document({**FACTS, 2: "Ghent it is."}), cite=True)
    assert [statement.source is not None for statement in reading.statements] == [True, True]


@pytest.mark.parametrize("workflow", [name for name, kind in workflows().items() if not kind.screens])
def test_other_workflows_refuse_it(workflow: str) -> None:
    with pytest.raises(SettingsError, match=f"chunk by chunk .*not for {workflow}"):
        read(noting(), document(FACTS), workflow=workflow)


def screen_of(problem: str, chunks: list[str]) -> Screen:
    screen = Screen(problem)
    for chunk in chunks:
        screen.look(chunk)
    return screen


def test_a_word_in_most_chunks_is_not_a_relation() -> None:
    chunks = ["the report names a number"] * 12 + ["the ember report", "nothing at all"]
    screen = screen_of("Which number does the report give for Ember?", chunks)
    assert [screen.relates(text, "") for text in (chunks[0], chunks[12], chunks[13])] == [False, True, False]


def test_words_are_compared_by_their_stems() -> None:
    screen = screen_of("Which wallabies jumped?", ["A wallaby jumps.", "Stones lie.", "Rain falls."])
    assert screen.relates("A wallaby jumps.", "") and not screen.relates("Stones lie.", "")


@pytest.mark.parametrize(
    ("memory", "chunk"),
    [
        ("VAR ABCDE = 12", "VAR FGHIJ = VAR ABCDE"),
        ("The sum was 48,213.", "Paid: 48,213 in May"),
        ("He met Łukasz there.", "łukasz slept"),
        ("東京の塔", "塔は東京の南"),
    ],
)
def test_names_and_numbers_of_the_memory_are_looked_for(memory: str, chunk: str) -> None:
    screen = screen_of("What of the lighthouse?", [chunk, "the lighthouse", *["stones lie about"] * 8])
    assert not screen.relates(chunk, "") and screen.relates(chunk, memory)
    assert not screen.relates("stones lie about", memory)


def test_words_of_the_memory_that_name_nothing_lead_nowhere() -> None:
    screen = screen_of("What of the lighthouse?", ["the lighthouse", "grey stones", "rain", "wind"])
    assert not screen.relates("grey stones", "there are grey stones about the lighthouse")
