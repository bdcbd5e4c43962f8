"""Nobody answers from nothing, and a reply that is no verdict is asked for once more, as a note."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from facts import READING, run, section
from memagent import Conversation, Message, ReadSettings, Result, ScriptedEngine, text_document
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer
from memagent.reading.read import NOT_FOUND
from memagent.reading.workflows import workflows

PROBLEM = "Where is the green lamp?"
TOLD = "The green lamp stands in Oslo."
RAIN = "It rained on the hills. Nobody came by."
SETTINGS = ReadSettings(chunk_tokens=12, memory_tokens=60, answer_tokens=40, early_exit=False)
SILENT = {"overwrite": "(empty)", "notes": "It does not say."}
"""What each workflow's model replies if nothing is to be kept; UNCHANGED for all others."""

KEEPING = [name for name in READING if workflows()[name].keeps_memory and name != "auto"]


def read(
    replies: str | Iterator[str], text: str = RAIN, workflow: str = "gated", trace: Path | None = None
) -> tuple[Result, list[Conversation], ScriptedEngine]:
    def reply(_: tuple[Message, ...]) -> str:
        return replies if isinstance(replies, str) else next(replies)

    engine = ScriptedEngine(reply)
    settings = SETTINGS.replace(workflow=workflow)
    result, conversations = run(engine, text_document(text), settings, trace, problem=PROBLEM)
    return result, conversations, engine


@pytest.mark.parametrize("workflow", KEEPING)
def test_an_empty_memory_is_not_answered_from(workflow: str, tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    text = "\n\n".join([RAIN] * 4)
    result, conversations, _ = read(SILENT.get(workflow, "UNCHANGED"), text, workflow, trace)
    assert (result.found, result.answer, result.memory) == (False, NOT_FOUND, "")
    assert conversations and {conversation.kind for conversation in conversations} == {"update"}
    (line,) = [line for line in read_journal(trace) if isinstance(line, Answer)]
    assert (line.answer, line.found) == (NOT_FOUND, False)


@pytest.mark.parametrize("reply", ["MEMORY", "**MEMORY**", "MEMORY:\n(empty)", "(empty)", "the chunk gives"])
@pytest.mark.parametrize("workflow", ["gated"])
def test_a_reply_without_a_verdict_is_asked_for_again_as_a_note(reply: str, workflow: str) -> None:
    replies = iter([reply, "It stands in Oslo.", "Oslo"])
    settings = SETTINGS.replace(workflow=workflow, rounds=1)
    engine = ScriptedEngine(lambda _: next(replies))
    result, (first, again, answer) = run(engine, TOLD, settings, problem=PROBLEM)
    assert (first.memory, first.ignored) == ("", reply)
    assert "memory" not in again.messages[-1].content and TOLD in section(again.messages[-1].content, "text")
    assert (again.memory.splitlines()[-1:], again.ignored) == (["It stands in Oslo."], "")
    assert again.span == first.span
    assert (result.answer, answer.kind) == ("Oslo", "answer")


@pytest.mark.parametrize(
    "note", ["The text does not say.", "It stands in Rome.", "Where is the green lamp?", "Hills are grey."]
)
def test_a_note_that_is_not_to_the_purpose_is_not_kept(note: str) -> None:
    result, (first, again), _ = read(iter(["MEMORY", note]), RAIN)
    assert (result.found, first.ignored, again.ignored) == (False, "MEMORY", note)


def test_a_note_goes_below_what_is_already_there_if_there_is_room() -> None:
    text = f"{TOLD} It is old, they say.\n\nIts green shade was made in Bergen, for a lamp."
    note = "The green lamp stands in Oslo."
    for more, memory in (("Made in Bergen.", f"{note}\nMade in Bergen."), ("Bergen " * 58, note)):
        result, conversations, _ = read(iter([f"MEMORY\n{note}", "MEMORY", more.strip(), "Oslo"]), text)
        assert result.memory == memory
        assert [conversation.kind for conversation in conversations] == ["update"] * 3 + ["answer"]


def test_overwrite_stays_as_it_was_published() -> None:
    """A reply that is not empty is the new memory, a bare marker too, and nothing is asked again."""
    result, conversations, _ = read(iter(["MEMORY", "Oslo"]), TOLD, "overwrite")
    assert (result.memory, len(conversations)) == ("MEMORY", 2)


def test_unchanged_is_a_verdict() -> None:
    result, conversations, _ = read("UNCHANGED", TOLD)
    assert (len(conversations), result.found, conversations[0].ignored) == (1, False, "")
