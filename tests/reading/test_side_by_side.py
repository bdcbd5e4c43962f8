"""Workflows that read chunks side by side, and gather what they note in one memory."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from facts import run, section
from function_engine import FunctionEngine
from memagent import (
    Conversation,
    EngineError,
    Read,
    ReadSettings,
    ScriptedEngine,
    text_document,
)
from memagent.engines.scripted import count_words

Reply = Callable[[str], str]
OF_ALL = pytest.mark.parametrize("workflow", ["parallel"])
"""What is true of every workflow that gathers notes; the package of more workflows tests its own by it."""

SETTINGS = ReadSettings(chunk_tokens=30, memory_tokens=60, answer_tokens=60)


def document(*facts: str, chunks: int = 9) -> str:
    """Chunks of some 25 words, of which the first few hold a fact each."""
    texts = [f"{fact} " + " ".join(f"w{number}x{n}" for n in range(22)) for number, fact in enumerate(facts)]
    texts += [" ".join(f"v{number}y{n}" for n in range(25)) for number in range(len(facts), chunks)]
    return "\n\n".join(texts)


def facts(prompt: str) -> str:
    """A memory with the facts in a chunk that the memory lacks."""
    memory = section(prompt, "memory")
    new = [fact for fact in re.findall(r"fact\d+", section(prompt, "chunk")) if fact not in memory]
    known = [] if "and the note:" in prompt else re.findall(r"fact\d+", memory)
    return "MEMORY\n" + " ".join(known + new) if new else "UNCHANGED"


def noter(note: Reply = facts, calls: int = 4, seed: int = 0) -> FunctionEngine:
    """Notes what `note` says of a chunk; of notes it makes a memory; it answers from the memory."""
    source = random.Random(seed)

    async def reply(prompt: str) -> str:
        for _ in range(source.randrange(8)):
            await asyncio.sleep(0)
        if "<notes-" in prompt:
            known = re.findall(r"fact\d+", section(prompt, "memory") + section(prompt, "notes"))
            return "MEMORY\n" + " ".join(sorted(set(known)))
        return note(prompt) if "<chunk-" in prompt else section(prompt, "memory")

    return FunctionEngine(reply, calls=calls)


def wordy(prompt: str) -> str:
    """As `facts`, in many words."""
    reply = facts(prompt)
    return f"{reply} {'la ' * (55 - len(reply.split()))}" if reply != "UNCHANGED" else reply


def read(engine: Any, text: str, workflow: str, **settings: Any) -> tuple[str, list[Conversation]]:
    result, conversations = run(engine, text, SETTINGS.replace(workflow=workflow, **settings))
    return result.answer, conversations


def describe(conversations: list[Conversation]) -> list[tuple[str, int | None, str]]:
    return [
        (conversation.kind, conversation.chunk_index, conversation.memory) for conversation in conversations
    ]


@OF_ALL
def test_all_facts_are_in_the_answer_whatever_is_ready_first(workflow: str) -> None:
    text = document(*(f"fact{number}" for number in range(7)))
    runs = [read(engine, text, workflow) for engine in (noter(seed=number) for number in range(6))]
    answer, conversations = runs[0]
    assert sorted(re.findall(r"fact\d+", answer)) == [f"fact{number}" for number in range(7)]
    assert all(
        describe(other) == describe(conversations) and other_answer == answer for other_answer, other in runs
    )


@OF_ALL
def test_calls_are_side_by_side(workflow: str, busy: int = 4) -> None:
    """The first calls end only once as many are under way as there may be."""
    all_there = asyncio.Event()

    async def meet(_: str) -> None:
        if engine.busy == busy:
            all_there.set()
        await asyncio.wait_for(all_there.wait(), 60)

    engine = FunctionEngine(meet, noter())
    assert "fact6" in read(engine, document(*(f"fact{number}" for number in range(7))), workflow)[0]


@OF_ALL
def test_memory_stays_within_its_budget_and_a_person_can_follow_it(workflow: str) -> None:
    engine = noter(wordy)
    answer, conversations = read(
        engine, document(*(f"fact{number}" for number in range(9))), workflow, rounds=1
    )
    assert sorted(set(re.findall(r"fact\d+", answer))) == [f"fact{number}" for number in range(9)]
    merges = [prompt for prompt in engine.prompts if "<notes-" in prompt]
    assert merges and all(count_words(section(merge, "notes")) <= 180 for merge in merges)
    for prompt in engine.prompts:
        assert count_words(section(prompt, "memory")) <= 60
    before: set[str] = set()
    for conversation in conversations:
        now = set(re.findall(r"fact\d+", conversation.memory))
        assert now >= before, "nothing is ever out of sight"
        before = now
    assert {conversation.span for conversation in conversations if conversation.chunk_index is None} == {None}


def test_a_clue_that_is_found_late_sends_the_reader_back() -> None:
    """The bridge stands before the clue: only a second round can note it."""

    def note(prompt: str) -> str:
        chunk, memory = section(prompt, "chunk"), section(prompt, "memory")
        if "fact9 the key is with Ada" in chunk and "Ada" not in memory:
            return "MEMORY\nAda has the key"
        if "fact1 Ada lives in Ghent" in chunk and "Ada has the key" in memory and "Ghent" not in memory:
            return "MEMORY\nAda lives in Ghent"
        return "UNCHANGED"

    text = document("fact1 Ada lives in Ghent", "nothing", "fact9 the key is with Ada")
    engine = noter(note)
    answer, conversations = read(engine, text, "parallel")
    assert answer == "Ada has the key\n\nAda lives in Ghent"
    chunks = sum(conversation.chunk_index is not None for conversation in conversations)
    assert chunks % 3 == 0, "three rounds: the last finds nothing new"
    assert read(noter(note), text, "parallel", rounds=1)[0] == "Ada has the key"
    prefixes = {prompt.partition("<problem")[0] for prompt in engine.prompts if "<chunk" in prompt}
    assert len(prefixes) == chunks // 3, "each round begins with what a prefix cache knows"


def test_rounds_end_once_nothing_is_new() -> None:
    quiet = noter(lambda prompt: "UNCHANGED")
    _, conversations = read(quiet, document("fact1"), "parallel", rounds=9)
    chunks = len({conversation.chunk_index for conversation in conversations} - {None})
    assert len(conversations) == chunks, "nobody answers from nothing"
    stubborn = noter(
        lambda prompt: "MEMORY\nthe same note" if "fact1" in section(prompt, "chunk") else "UNCHANGED"
    )
    answer, conversations = read(stubborn, document("fact1"), "parallel", rounds=9)
    assert len(conversations) == 2 * chunks + 1 and answer == "the same note", (
        "a note that is there is not new"
    )


@OF_ALL
def test_one_chunk_is_read_once(workflow: str) -> None:
    answer, conversations = read(noter(), "Here is fact1.", workflow)
    assert answer == "fact1" and len(conversations) == 2


@OF_ALL
def test_a_memory_to_start_from_is_kept(workflow: str) -> None:
    settings = SETTINGS.replace(workflow=workflow)
    start = Read("What?", text_document(document("fact1")), noter(), settings, memory="fact0 was known")

    async def ended() -> list[str]:
        return [conversation.memory async for conversation in start]

    assert {"fact0", "fact1"} <= set(asyncio.run(ended())[-1].split())


@OF_ALL
@pytest.mark.parametrize("reply", ["", " ", "UNCHANGED", "MEMORY", "<think>hm", "MEMORY\n" + "x " * 500])
def test_odd_replies_to_a_merge_lose_no_memory(workflow: str, reply: str) -> None:
    """What it was to be merged into stays, or the reply takes its place, within its budget."""
    engine = FunctionEngine(lambda prompt: reply if "<notes-" in prompt else None, noter(wordy))
    answer, conversations = read(
        engine, document(*(f"fact{number}" for number in range(6))), workflow, rounds=1
    )
    assert ("fact0" in answer) == ("x x" not in reply)
    assert count_words(conversations[-1].memory) <= 60


@OF_ALL
def test_a_call_that_fails_is_an_error_and_no_answer(workflow: str, tmp_path: Path) -> None:
    def fail(prompt: str) -> None:
        if "fact2" in prompt:
            raise EngineError("out of order")

    text = document(*(f"fact{number}" for number in range(5)))
    trace = tmp_path / "read.jsonl"
    settings = SETTINGS.replace(workflow=workflow)
    with pytest.raises(EngineError, match="out of order"):
        run(FunctionEngine(fail, noter()), text, settings, trace)
    result, _ = run(noter(), text, settings, trace, resume=True)
    assert result.answer == read(noter(), text, workflow)[0]


@OF_ALL
def test_the_calls_do_not_hold_the_document(workflow: str) -> None:
    """No more prompts are held than are being read, and a few that wait for their turn."""
    engine = noter(lambda prompt: "UNCHANGED")
    whole = Read("What?", text_document(document(chunks=200)), engine, SETTINGS.replace(workflow=workflow))

    async def most_ahead() -> int:
        most = yielded = 0
        async for _ in whole:
            yielded += 1
            most = max(most, len(engine.prompts) - yielded)
        return most

    assert asyncio.run(most_ahead()) <= 4 * engine.model.calls


@OF_ALL
def test_a_scripted_engine_plays_it_to_the_end(workflow: str) -> None:
    engine = ScriptedEngine(lambda messages: "word " * 500)
    for conversation in read(engine, document("fact1"), workflow)[1]:
        assert count_words(conversation.memory) <= 60 * 4
