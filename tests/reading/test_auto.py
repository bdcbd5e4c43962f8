"""The default reads in one prompt what fits one, and takes notes on what does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from facts import run, section
from function_engine import FunctionEngine
from memagent import (
    Completion,
    ContextOverflowError,
    Conversation,
    Message,
    Read,
    ReadSettings,
    Result,
    ScriptedEngine,
    open_document,
    text_document,
)

PROBLEM = "Where is the green lamp of Mrs. Brown?"
TOLD = "The green lamp of Mrs. Brown stands in Oslo."
RAIN = "It rained on hill {0}. Nobody came by road {0}."
DOCUMENT = "\n\n".join(
    [*(RAIN.format(number) for number in range(20)), TOLD, *map(RAIN.format, range(20, 80))]
)
SETTINGS = ReadSettings(chunk_tokens=60, memory_tokens=100, answer_tokens=40)
NARROW, HALF_TOO_NARROW, WIDE = 600, 1200, 8192  # the document has 730 tokens


def reply(messages: tuple[Message, ...]) -> str:
    prompt = messages[-1].content
    text = section(prompt, "document") or section(prompt, "text")
    return "It stands in Oslo." if TOLD in text else "It does not say."


def read(
    window_tokens: int = WIDE, text: str = DOCUMENT, trace: Path | None = None, **settings: object
) -> tuple[Result, list[Conversation]]:
    engine = ScriptedEngine(reply, window_tokens=window_tokens)
    return run(engine, text_document(text), SETTINGS.replace(**settings), trace, problem=PROBLEM)


def test_a_document_that_fits_is_read_in_one_prompt(tmp_path: Path) -> None:
    result, (answer,) = read(trace=tmp_path / "read.jsonl")
    assert section(answer.messages[-1].content, "document") == DOCUMENT
    assert (result.workflow, result.answer, result.found) == ("auto", "It stands in Oslo.", True)
    assert result.memory == "" and result.chunks > 5
    assert "not in the document" not in answer.messages[-1].content
    engine = ScriptedEngine(list[str]())
    document = text_document(DOCUMENT)
    again, _ = run(engine, document, SETTINGS, tmp_path / "read.jsonl", resume=True, problem=PROBLEM)
    assert again.answer == result.answer, "it was on record"


@pytest.mark.parametrize("window_tokens", [NARROW, HALF_TOO_NARROW])
def test_one_of_more_than_half_the_window_is_read_as_by_notes_without_probabilities(
    window_tokens: int,
) -> None:
    assert read(HALF_TOO_NARROW, workflow="full")[0].answer == "It stands in Oslo.", "it would fit"
    result, conversations = read(window_tokens)
    _, expected = read(window_tokens, workflow="notes")
    assert [(conversation.kind, conversation.memory) for conversation in conversations] == [
        (conversation.kind, conversation.memory) for conversation in expected
    ]
    assert result.answer == "It stands in Oslo." and TOLD in result.memory


def test_a_model_that_was_trained_to_judge_is_asked_for_verdicts() -> None:
    def judge(prompt: str) -> Completion | None:
        if not (text := section(prompt, "text")):
            return None
        odds = 2.0 if "lamp" in text else -2.0
        return Completion("Yes" if odds > 0 else "No", alternatives={"Yes": -1.0 + odds, "No": -1.0})

    engine = FunctionEngine(judge, ScriptedEngine(reply, window_tokens=HALF_TOO_NARROW), judges="trained")
    result, (*updates, answer) = run(engine, text_document(DOCUMENT), SETTINGS, problem=PROBLEM)
    assert all(update.verdict in (2.0, -2.0) for update in updates) and answer.kind == "answer"
    assert result.workflow == "auto" and TOLD in result.memory


@pytest.mark.parametrize("workflow", ["auto", "notes"])
def test_progress_counts_the_chunks_that_were_noted_not_those_handed_out(workflow: str) -> None:
    engine = ScriptedEngine(reply, window_tokens=HALF_TOO_NARROW, calls=4)

    async def collect_counts() -> list[tuple[int | None, int]]:
        settings = SETTINGS.replace(workflow=workflow)
        read = Read(PROBLEM, text_document(DOCUMENT), engine, settings)
        return [
            (conversation.chunk_index, read.progress.chunks)
            async for conversation in read
            if conversation.kind == "update"
        ]

    counts = asyncio.run(collect_counts())
    assert len(counts) > 5 and counts == [(index, index + 1) for index in range(len(counts))]


@pytest.mark.parametrize("wanted", [{"screen": True}, {"workflow": "notes"}])
def test_notes_are_taken_if_they_are_asked_for(wanted: dict[str, object]) -> None:
    result, conversations = read(**wanted)
    assert conversations[0].kind == "update" and TOLD in result.memory


def test_a_window_smaller_than_its_engine_says_is_noticed() -> None:
    def refuse(prompt: str) -> None:
        if len(prompt) > 1000:
            raise ContextOverflowError("too long")

    engine = FunctionEngine(refuse, ScriptedEngine(reply))
    result, conversations = run(engine, text_document(DOCUMENT), SETTINGS, problem=PROBLEM)
    assert conversations[0].kind == "update" and result.answer == "It stands in Oslo."


@pytest.mark.parametrize(
    ("text", "doubtful"), [(DOCUMENT, False), (DOCUMENT.replace(TOLD, "A lamp was red."), True)]
)
def test_the_model_may_decline_only_if_the_document_has_little_of_the_problem(
    text: str, doubtful: bool
) -> None:
    _, (answer,) = read(text=text)
    assert ("not in the document" in answer.messages[-1].content) == doubtful


@pytest.mark.parametrize("helps", [True, False])
def test_a_verdict_tells_other_words_from_what_is_not_there(helps: bool) -> None:
    problem = "Which city holds her jade lantern?"

    def judge(prompt: str) -> Completion | None:
        if not (text := section(prompt, "text")):
            return None
        odds = 2.0 if helps and TOLD in text else -2.0
        return Completion("Yes" if odds > 0 else "No", alternatives={"Yes": -1.0 + odds, "No": -1.0})

    engine = FunctionEngine(judge, ScriptedEngine(reply), judges="trained")
    result, (*updates, answer) = run(engine, text_document(DOCUMENT), SETTINGS, problem=problem)
    assert all(update.verdict is not None for update in updates) and len(updates) > 5
    assert ("not in the document" in answer.messages[-1].content) == result.doubtful == (not helps)
    assert (TOLD in result.memory) == helps
    assert (section(answer.messages[-1].content, "document") == DOCUMENT) == (not helps)


def test_files_are_named(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TOLD)
    _, (answer,) = run(ScriptedEngine(reply), open_document(tmp_path), SETTINGS, problem=PROBLEM)
    document = section(answer.messages[-1].content, "document")
    assert document.index("a.txt") < document.index(TOLD) < document.index("b.txt")
