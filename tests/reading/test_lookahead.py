"""Chunks that are asked about ahead of their turn: the same memories, sooner, and what that costs."""

from __future__ import annotations

import asyncio
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from facts import run, section
from function_engine import FunctionEngine
from memagent import Completion, Conversation, EngineError, Read, ReadSettings, text_document
from memagent.engines.scripted import count_words
from memagent.reading.journal import read_journal
from memagent.reading.lines import RecordedReply
from memagent.types import Usage

SETTINGS = ReadSettings(chunk_tokens=12, memory_tokens=60, answer_tokens=60, workflow="gated")


def document(pattern: str) -> str:
    """A chunk for each character; at an "x" there is something to note."""
    words = [f"fact{n}" if character == "x" else f"w{n}" for n, character in enumerate(pattern)]
    return "\n\n".join(f"{word} " + " ".join(f"{word}y{n}" for n in range(9)) for word in words)


def note_facts(prompt: str) -> str:
    chunk, memory = section(prompt, "chunk"), section(prompt, "memory")
    if not chunk:
        return memory
    new = [fact for fact in re.findall(r"fact\d+\b", chunk) if fact not in memory]
    if "ADD" in prompt:
        return f'ADD "{new[0]} {new[0]}y0"' if new else "UNCHANGED"
    known = re.findall(r"fact\d+\b", memory)
    return "MEMORY\n" + " ".join(known + new) if new else "UNCHANGED"


def noter(seed: int = 0, calls: int = 8) -> FunctionEngine:
    """Notes the fact of a chunk; replies by the prompt alone, after a pause that varies."""
    source = random.Random(seed)

    async def reply(prompt: str) -> Completion:
        for _ in range(source.randrange(8)):
            await asyncio.sleep(0)
        return Completion(note_facts(prompt), usage=Usage(count_words(prompt), 5))

    return FunctionEngine(reply, calls=calls)


def used(conversations: list[Conversation]) -> list[Conversation]:
    return [conversation for conversation in conversations if not conversation.unused]


@pytest.mark.parametrize("workflow", ["gated", "evidence"])
@given(pattern=st.text("x..", min_size=1, max_size=24), lookahead=st.integers(2, 9), seed=st.integers(0, 9))
@hypothesis_settings(max_examples=10, deadline=None)
def test_ahead_or_in_turn_a_read_comes_to_the_same(
    workflow: str, pattern: str, lookahead: int, seed: int
) -> None:
    settings, text = SETTINGS.replace(workflow=workflow), document(pattern)
    slow, in_turn = run(noter(), text, settings)
    fast, conversations = run(noter(seed), text, settings.replace(lookahead=lookahead))
    assert used(conversations) == in_turn, "prompts, replies and memories"
    assert (fast.answer, fast.memory, fast.chunks) == (slow.answer, slow.memory, slow.chunks)
    assert fast.spent.calls == len(conversations) == slow.spent.calls + fast.unused
    assert fast.spent.prompt_tokens == sum(
        conversation.completion.usage.prompt_tokens for conversation in conversations
    ), "all are paid for"
    memories = ["", *(conversation.memory for conversation in in_turn if conversation.kind == "update")]
    unchanged = sum(one == other for one, other in pairwise(memories))
    assert fast.unused <= unchanged, "no more in vain than leave the memory alone"


def test_chunks_are_read_ahead_as_far_as_the_engine_takes() -> None:
    engine, narrow = noter(), noter(calls=1)
    result, _ = run(engine, document("." * 60 + "x" + "." * 59), SETTINGS.replace(lookahead=8))
    assert (engine.busiest, result.spent.calls, result.unused) == (8, 121 + 7, 7)
    assert result.critical_path <= 60, "half of what one after the other takes, whatever the pauses"
    result, _ = run(narrow, document("..x..x.."), SETTINGS.replace(lookahead=8))
    assert (narrow.busiest, result.unused) == (1, 0)


def fails_at(word: str, times: int) -> FunctionEngine:
    """Fails at a prompt that shows a word, a number of times."""
    failures = iter(range(times))

    def fail(prompt: str) -> None:
        if word in prompt and next(failures, None) is not None:
            raise EngineError("out of order")

    return FunctionEngine(fail, noter())


def test_a_wasted_call_may_fail() -> None:
    """The fourth chunk fails as long as the memory lacks the fact of the third."""
    text, settings = document("..x....."), SETTINGS.replace(lookahead=8)
    result, conversations = run(fails_at("w3y0", times=1), text, settings)
    assert result.answer == "fact2"
    assert used(conversations) == run(noter(), text, SETTINGS)[1]


def test_a_call_that_fails_for_good_fails_the_read_in_its_turn(tmp_path: Path) -> None:
    trace, text, settings = tmp_path / "read.jsonl", document("......"), SETTINGS.replace(lookahead=8)
    with pytest.raises(EngineError, match="out of order"):
        run(fails_at("w4y0", times=9), text, settings, trace)
    lines = [line.chunk_index for line in read_journal(trace) if isinstance(line, Conversation)]
    assert lines == [0, 1, 2, 3]
    engine = noter()
    run(engine, text, settings, trace, resume=True)
    assert not any("w3y0" in prompt for prompt in engine.prompts), "what is on record is not asked again"


@pytest.mark.parametrize("changed", [1, 3])
def test_a_read_can_be_continued_with_another_lookahead(tmp_path: Path, changed: int) -> None:
    trace, text = tmp_path / "read.jsonl", document("..x...x......x")
    with pytest.raises(EngineError):
        run(fails_at("w9y0", times=9), text, SETTINGS.replace(lookahead=8), trace)
    engine = noter()
    result, _ = run(engine, text, SETTINGS.replace(lookahead=changed), trace, resume=True)
    assert result.answer == run(noter(), text, SETTINGS)[0].answer
    assert not any("fact2y0" in prompt for prompt in engine.prompts)
    usages = [reply.completion.usage for reply in read_journal(trace) if isinstance(reply, RecordedReply)]
    assert result.spent.calls == len(usages), "those that are of no more use count as well"
    assert result.spent.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    assert result.spent.completion_tokens == sum(usage.completion_tokens for usage in usages)
    assert result.unused == result.spent.calls - 15
    again, _ = run(noter(), text, SETTINGS, trace, resume=True)
    assert (again.spent.calls, again.spent.prompt_tokens) == (result.spent.calls, result.spent.prompt_tokens)


def test_a_read_that_is_left_leaves_no_call_behind() -> None:
    async def hang(prompt: str) -> None:
        if "w3y0" in prompt:
            await asyncio.sleep(3600)

    async def leave() -> int:
        engine = FunctionEngine(hang, noter())
        read = Read("What?", text_document(document("." * 12)), engine, SETTINGS.replace(lookahead=8))
        conversations = aiter(read)
        for _ in range(3):
            await anext(conversations)
        await conversations.aclose()
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(leave()) == 0


@pytest.mark.parametrize("values", [{"workflow": "overwrite"}, {"screen": True}, {"early_exit": True}])
def test_where_a_reply_decides_what_is_read_next_chunks_are_read_in_turn(values: dict[str, Any]) -> None:
    engine = noter()
    result, _ = run(engine, document("...x...."), SETTINGS.replace(lookahead=4, **values), problem="fact3?")
    assert (engine.busiest, result.unused) == (1, 0)
