"""What a read is said to take at most is not exceeded by any replies, but for questions about them."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable

import pytest

from function_engine import FunctionEngine
from memagent import Engine, Message, ReadSettings, ScriptedEngine
from memagent.concurrency import drain
from memagent.documents.opening import text_document
from memagent.documents.tokens import estimate_tokens
from memagent.engines.scripted import count_words
from memagent.reading.api import forecast
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.types import ESTIMATE, Completion, TokenCounter, Usage

PROBLEM = "Which lamp is green?"
DOCUMENT = " ".join(f"lamp{number} is number {number}." for number in range(200))


def spent(engine: Engine, settings: ReadSettings) -> Progress:
    async def read_to_end() -> Progress:
        read = Read(PROBLEM, text_document(DOCUMENT), engine, settings, purpose="forecast")
        await drain(aiter(read))
        return read.progress

    return asyncio.run(read_to_end())


def foretold(engine: Engine, settings: ReadSettings) -> Progress:
    return asyncio.run(forecast(PROBLEM, text_document(DOCUMENT), engine.model, settings))


def assert_within(now: Progress, most: Progress) -> None:
    for name in ("calls", "prompt_tokens", "completion_tokens"):
        assert getattr(now.spent, name) <= getattr(most.spent, name), name


def counted(reply: Callable[[], str], count: TokenCounter, tokenizer: str) -> FunctionEngine:
    """Counts by the tokenizer given, and cuts replies by it."""

    def complete(prompt: str) -> Completion:
        text = reply()
        while count(text) > engine.samplings[-1].max_tokens:
            text = text.rpartition(" ")[0]
        return Completion(text, usage=Usage(count(prompt), count(text)))

    engine = FunctionEngine(complete, count_tokens=count, tokenizer=tokenizer, calls=4, chat_tokens=0)
    return engine


@pytest.mark.parametrize("tokenizer", [(count_words, "words"), (estimate_tokens, ESTIMATE)])
@pytest.mark.parametrize(("workflow", "chunk_tokens", "rounds"), [("parallel", 35, 2)])
def test_no_replies_take_more_than_was_forecast(
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

        engine = counted(reply, *tokenizer)
        assert_within(spent(engine, settings), foretold(engine, settings))


def test_a_forecast_includes_what_a_chat_template_adds() -> None:
    def reply(prompt: str) -> Completion:
        return Completion("none", usage=Usage(count_words(prompt) + 30, 1))

    engine = FunctionEngine(reply, chat_tokens=64)
    settings = ReadSettings(workflow="full")
    assert_within(spent(engine, settings), foretold(engine, settings))


@pytest.mark.parametrize("workflow", ["notes", "evidence"])
def test_a_forecast_assumes_a_full_memory_of_passages_and_its_answer(workflow: str) -> None:
    def quote(messages: tuple[Message, ...]) -> str:
        """What is told of the first lamps that are shown."""
        sentences = re.findall(r"lamp\d+ is number \d+\.", messages[-1].content)[:8]
        return (
            "\n".join(f'ADD "{sentence}"' for sentence in sentences)
            if workflow == "evidence"
            else " ".join(sentences)
        )

    settings = ReadSettings(workflow=workflow, chunk_tokens=80, memory_tokens=60, answer_tokens=40)
    now, most = spent(ScriptedEngine(quote), settings), foretold(ScriptedEngine(quote), settings)
    assert_within(now, most)
    assert now.spent.calls == most.spent.calls == most.chunks + 1, "the answer's is counted"
    assert most.spent.prompt_tokens < 1.3 * now.spent.prompt_tokens, "notes are asked for without the memory"
