"""Models that think: told not to in each server's words, given room for it, and not asked again in vain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from memagent import EngineError, Read, ReadSettings, ScriptedEngine, Trajectory, read, text_document
from memagent.documents.tokens import estimate_tokens
from memagent.engines.openai import Connection, OpenAIEngine
from memagent.types import Completion, Message, Model, Sampling
from server import Fault, Server, complete

Serve = Callable[..., Server]
PROMPT = (Message("user", "Say hello."),)
THOUGHT = "Let me see what they want of me. " * 20
THOUGHT_TOKENS = 9 * 20
OFF = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "none"}


def thinker(*obeyed: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A model that thinks before each reply, unless one of the fields that its server obeys says no."""

    def completion(body: dict[str, Any]) -> dict[str, Any]:
        if any(name in body and body[name] == OFF[name] for name in obeyed):
            return complete(body, "Hello.")
        limit = body["max_tokens"]
        response = complete({**body, "max_tokens": max(1, limit - THOUGHT_TOKENS)}, "Hello.")
        response["usage"]["completion_tokens"] += min(limit, THOUGHT_TOKENS)
        message = response["choices"][0]["message"]
        message["reasoning_content"] = THOUGHT
        if limit <= THOUGHT_TOKENS:
            message["content"], response["choices"][0]["finish_reason"] = "", "length"
        return response

    return completion


def ask(server: Server, *samplings: Sampling, **options: Any) -> list[Completion]:
    """One completion for each of the samplings, from one engine."""

    async def call() -> list[Completion]:
        connection = Connection(base_url=server.base_url, **options)
        engine = OpenAIEngine(Model("test-model", estimate_tokens), connection)
        try:
            return [await engine.complete(PROMPT, sampling) for sampling in samplings]
        finally:
            await engine.aclose()

    return asyncio.run(call())


# What is sent


@pytest.mark.parametrize("obeyed", OFF)
def test_thinking_is_turned_off_in_the_words_of_each_server(obeyed: str, serve: Serve) -> None:
    server = serve(completion=thinker(obeyed))
    (completion,) = ask(server, Sampling(64, thinking=False))
    assert (completion.text, completion.usage.completion_tokens) == ("Hello.", 2)
    assert OFF.items() <= server.asked[0].items()


def test_a_model_is_asked_to_think_but_not_how_hard(serve: Serve) -> None:
    server = serve(completion=thinker(*OFF))
    (completion,) = ask(server, Sampling(THOUGHT_TOKENS + 64, thinking=True))
    assert (completion.text, completion.usage.completion_tokens) == ("Hello.", THOUGHT_TOKENS + 2)
    assert server.asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "reasoning_effort" not in server.asked[0]


# Hosts that refuse what they do not know


def strict(server: Server, status: int, explain: Callable[[list[str]], str], *known: str) -> Server:
    """Make a server refuse the fields about thinking, but those that it knows, in its own words."""

    def plan(digest: str, attempt: int) -> Fault | None:
        body = next(request.body for request in reversed(server.requests) if request.digest == digest)
        unknown = [name for name in OFF if name in body and name not in known]
        return Fault(status, body=explain(unknown)) if unknown else None

    server.faults = plan
    return server


def openai_says(unknown: list[str]) -> str:
    message = f"Unrecognized request argument supplied: {unknown[0]}"
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None}})


def mistral_says(unknown: list[str]) -> str:
    problems = [{"type": "extra_forbidden", "loc": ["body", name], "msg": "no extras"} for name in unknown]
    return json.dumps({"object": "error", "message": {"detail": problems}, "code": None})


def vllm_says(unknown: list[str]) -> str:
    return json.dumps({"error": {"message": "Harmony does not support reasoning_effort='none'", "code": 400}})


def somebody_says(unknown: list[str]) -> str:
    return json.dumps({"error": "bad request"})


@pytest.mark.parametrize(
    ("status", "explain", "known", "requests"),
    [
        (400, openai_says, (), 4),
        (422, mistral_says, (), 3),
        (400, vllm_says, ("chat_template_kwargs",), 3),
        (400, somebody_says, (), 3),
    ],
)
def test_a_field_that_is_refused_is_not_sent_again(
    status: int, explain: Any, known: tuple[str, ...], requests: int, serve: Serve
) -> None:
    server = strict(serve(lambda _: "Hello."), status, explain, *known)
    first, second = ask(server, Sampling(64, thinking=False), Sampling(64, thinking=False))
    assert first.text == second.text == "Hello."
    assert len(server.asked) == requests
    assert [name for name in OFF if name in server.asked[-1]] == list(known)


# Thoughts that are too long


@pytest.mark.parametrize(
    ("thinking", "advice"),
    [(False, "set `thinking` to on"), (True, "raise `thinking_tokens`, or set `thinking` to off")],
)
def test_a_greedy_model_that_thought_too_long_is_not_asked_the_same_again(
    thinking: bool, advice: str, serve: Serve
) -> None:
    server = serve(completion=thinker())
    with pytest.raises(EngineError, match=f"thinking when its 64 tokens were used up: {advice}") as caught:
        ask(server, Sampling(64, thinking=thinking))
    assert len(server.asked) == 1
    assert caught.value.usage is not None and caught.value.usage.completion_tokens >= 64, "it was paid for"


def test_one_that_draws_its_tokens_may_think_less_the_next_time(serve: Serve) -> None:
    server = serve(completion=thinker())
    with pytest.raises(EngineError, match="failed 2 times"):
        ask(server, Sampling(64, temperature=0.7, thinking=False), retries=1)
    assert len(server.asked) == 2


# Reads


def read_with(server: Server, **values: Any) -> Trajectory:
    budgets = {"chunk_tokens": 60, "memory_tokens": 64, "answer_tokens": 32}
    document = text_document("The sea was calm that day, and nobody said a word. " * 10)
    model = {"base_url": server.base_url, "model": "test-model", "workflow": "overwrite"}
    return read("What was calm?", document, **{**model, **budgets, **values})


def limits(server: Server) -> set[tuple[bool, int]]:
    """Whether the model was to think and its limit in tokens, of the updates and of the answer."""
    return {(body["chat_template_kwargs"]["enable_thinking"], body["max_tokens"]) for body in server.asked}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {(False, 64), (False, 32)}),
        ({"thinking": "answers"}, {(False, 64), (True, 32 + 4096)}),
        ({"thinking": "on", "thinking_tokens": 200}, {(True, 64 + 200), (True, 32 + 200)}),
    ],
)
def test_a_thought_has_room_of_its_own_where_the_model_is_to_think(
    values: dict[str, Any], expected: Any, serve: Serve
) -> None:
    server = serve(completion=thinker(*OFF))
    trajectory = read_with(server, **values)
    assert limits(server) == expected
    assert (trajectory.answer, trajectory.conversations[0].memory) == ("Hello.", "Hello.")


def test_a_read_with_a_model_that_cannot_stop_thinking_ends_at_once_and_says_what_to_set(
    serve: Serve,
) -> None:
    server = serve(completion=thinker())
    with pytest.raises(EngineError, match="set `thinking` to on"):
        read_with(server)
    assert len(server.asked) == 1
    assert read_with(server, thinking="on", thinking_tokens=THOUGHT_TOKENS).answer == "Hello."


@pytest.mark.parametrize("workflow", ["overwrite", "truncate", "map_reduce"])
@pytest.mark.parametrize("values", [{"thinking": "on"}, {"thinking": "answers", "thinking_tokens": 1500}])
def test_a_prompt_leaves_room_for_the_thought_in_the_window(workflow: str, values: dict[str, Any]) -> None:
    """With an engine that counts words, and fills every reply to its limit."""
    window = 4096
    engine = ScriptedEngine(lambda messages: "word " * 5000, window_tokens=window)
    document = text_document("The quick brown fox jumps over the lazy dog.\n" * 1000)
    reading = Read("What jumps?", document, engine, ReadSettings(workflow=workflow, **values))

    async def conversations() -> list[int]:
        return [conversation.completion.usage.tokens async for conversation in reading]

    assert max(asyncio.run(conversations())) <= window


def test_room_that_was_asked_for_is_kept_and_the_rest_shrinks() -> None:
    engine = ScriptedEngine(lambda messages: "word", window_tokens=4096)

    def budgets(**values: Any) -> dict[str, int]:
        return Read("?", text_document("A."), engine, ReadSettings(**values)).budgets.in_force

    plain, thinking = budgets(), budgets(thinking="on", thinking_tokens=2000)
    assert "update_thought_tokens" not in plain
    assert thinking["update_thought_tokens"] == thinking["answer_thought_tokens"] == 2000
    assert thinking["chunk_tokens"] < plain["chunk_tokens"]
    assert budgets(thinking="answers")["chunk_tokens"] > budgets(thinking="on")["chunk_tokens"]
