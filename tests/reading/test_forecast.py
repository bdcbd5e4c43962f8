"""What a read is said to take at most is not exceeded by any replies, but for questions about them."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from memagent import Message, ReadSettings, ScriptedEngine
from memagent.documents.opening import text_document
from memagent.documents.tokens import estimate_tokens
from memagent.engines.scripted import count_words
from memagent.reading.api import forecast
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.types import ESTIMATE, Completion, Sampling, TokenCounter, Usage

PROBLEM = "Which lamp is green?"
DOCUMENT = " ".join(f"lamp{number} is number {number}." for number in range(200))


def spent(engine: ScriptedEngine, settings: ReadSettings) -> Progress:
    async def taken() -> Progress:
        read = Read(PROBLEM, text_document(DOCUMENT), engine, settings, asks=False)
        async for _ in read:
            pass
        return read.progress

    return asyncio.run(taken())


def foretold(engine: ScriptedEngine, settings: ReadSettings) -> Progress:
    return asyncio.run(forecast(PROBLEM, text_document(DOCUMENT), engine.model, settings))


def assert_within(now: Progress, most: Progress) -> None:
    for name in ("calls", "prompt_tokens", "completion_tokens"):
        assert getattr(now.spent, name) <= getattr(most.spent, name), name


class Counted(ScriptedEngine):
    """Counts by the tokenizer given, and cuts replies by it."""

    def __init__(self, reply: Callable[[], str], count_tokens: TokenCounter, tokenizer: str) -> None:
        super().__init__(lambda _: reply(), calls=4)
        self.model = replace(self.model, count_tokens=count_tokens, tokenizer=tokenizer)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        text, count = (await super().complete(messages, sampling)).text, self.model.count_tokens
        while count(text) > sampling.max_tokens:
            text = text.rpartition(" ")[0]
        prompt_tokens = sum(count(message.content) for message in messages)
        return Completion(text, usage=Usage(prompt_tokens, count(text)))


@pytest.mark.parametrize("tokenizer", [(count_words, "words"), (estimate_tokens, ESTIMATE)])
@pytest.mark.parametrize(("workflow", "chunk_tokens", "rounds"), [("parallel", 35, 2), ("reread", 145, 5)])
def test_no_replies_take_more_than_was_foretold(
    workflow: str, chunk_tokens: int, rounds: int, tokenizer: tuple[TokenCounter, str]
) -> None:
    scale = tokenizer[0](DOCUMENT) / count_words(DOCUMENT)
    settings = ReadSettings(
        workflow=workflow,
        chunk_tokens=round(chunk_tokens * scale),
        memory_tokens=round(20 * scale),
        answer_tokens=round(20 * scale),
        rounds=rounds,
    )
    for seed in range(4):
        rng = random.Random(seed)

        def reply(rng: random.Random = rng, least: int = 1 if seed % 2 else 40) -> str:
            return " ".join(f"w{rng.randrange(9999)}" for _ in range(rng.randrange(least, 50)))

        engine = Counted(reply, *tokenizer)
        assert_within(spent(engine, settings), foretold(engine, settings))


def test_what_a_chat_template_adds_is_foretold_too() -> None:
    class Templated(ScriptedEngine):
        """Counts 30 tokens around the messages."""

        async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
            completion = await super().complete(messages, sampling)
            prompt_tokens = completion.usage.prompt_tokens + 30
            return replace(completion, usage=replace(completion.usage, prompt_tokens=prompt_tokens))

    engine = Templated(lambda _: "none")
    engine.model = replace(engine.model, chat_tokens=64)
    settings = ReadSettings(workflow="full")
    assert_within(spent(engine, settings), foretold(engine, settings))


@pytest.mark.parametrize("workflow", ["notes", "evidence"])
def test_a_memory_of_passages_is_foretold_full_and_with_its_answer(workflow: str) -> None:
    def quote(messages: tuple[Message, ...]) -> str:
        """What is told of the first lamps that are shown."""
        told = re.findall(r"lamp\d+ is number \d+\.", messages[-1].content)[:8]
        return "\n".join(f'ADD "{it}"' for it in told) if workflow == "evidence" else " ".join(told)

    settings = ReadSettings(workflow=workflow, chunk_tokens=80, memory_tokens=60, answer_tokens=40)
    now, most = spent(ScriptedEngine(quote), settings), foretold(ScriptedEngine(quote), settings)
    assert_within(now, most)
    assert now.spent.calls == most.spent.calls == most.chunks + 1, "the answer's is counted"
    assert most.spent.prompt_tokens < 1.3 * now.spent.prompt_tokens, "notes are asked for without the memory"
