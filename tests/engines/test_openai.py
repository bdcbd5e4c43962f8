"""The OpenAI-compatible engine against a real server on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest

from memagent.documents.tokens import estimate_tokens
from memagent.engines.openai import Connection, OpenAIEngine, backoff_seconds, connect
from memagent.errors import ContextOverflowError, EngineError, SettingsError
from memagent.types import Completion, Message, Model, Sampling, Usage
from server import (
    PASSING_FAULTS,
    WORDINGS,
    Fault,
    Server,
    count_tokens,
    lasting_fault,
    no_faults,
    refusal,
    scripted_faults,
)

Serve = Callable[..., Server]
PROMPT = (Message("user", "Say hello."),)
QUICK: dict[str, Any] = {"first_delay_seconds": 0.01}
"""Nobody waits long between two tries."""


def model_named(name: str, calls: int = 16) -> Model:
    return Model(name, estimate_tokens, calls=calls)


def echo(messages: Any) -> str:
    return f"You said: {messages[-1]['content']}"


def engine_at(base_url: str, **options: Any) -> OpenAIEngine:
    return OpenAIEngine(model_named("test-model"), Connection(base_url=base_url, **QUICK | options))


def ask(
    server: Server | str,
    prompt: tuple[Message, ...] = PROMPT,
    sampling: Sampling | None = None,
    **options: Any,
) -> Completion:
    """One completion from a fresh engine for a server or an address."""
    base_url = server if isinstance(server, str) else server.base_url

    async def call() -> Completion:
        async with aclosing(engine_at(base_url, **options)) as engine:
            return await engine.complete(prompt, sampling or Sampling(64))

    return asyncio.run(call())


def ask_twice(server: Server, sampling: Sampling) -> list[Completion]:
    """Two completions of one engine, one after the other."""

    async def calls() -> list[Completion]:
        async with aclosing(engine_at(server.base_url)) as engine:
            return [await engine.complete(PROMPT, sampling) for _ in range(2)]

    return asyncio.run(calls())


def ask_all(server: Server, calls: int, **options: Any) -> list[str]:
    """The replies of one engine to so many calls side by side."""

    async def gather() -> list[str]:
        prompts = [(Message("user", str(number)),) for number in range(calls)]
        async with aclosing(engine_at(server.base_url, **options)) as engine:
            completions = await asyncio.gather(*(engine.complete(prompt, Sampling(64)) for prompt in prompts))
        return [completion.text for completion in completions]

    return asyncio.run(gather())


def opened(server: Server, name: str | None = None, **options: Any) -> Model:
    """The model that `connect` finds."""

    async def call() -> Model:
        engine = await connect(name, Connection(base_url=server.base_url, **QUICK | options))
        await engine.aclose()
        return engine.model

    return asyncio.run(call())


def test_a_completion_has_the_text_the_usage_and_the_reason(serve: Serve) -> None:
    assert ask(serve(echo)) == Completion("You said: Say hello.", "stop", usage=Usage(3, 6))


@pytest.mark.parametrize("usage", [None, {}, {"total_tokens": 0}])
def test_usage_that_is_not_reported_is_estimated_and_said_to_be(
    usage: Any, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(completion: dict[str, Any]) -> None:
        completion["usage"] = usage
        completion["choices"][0]["message"]["reasoning_content"] = "They greet."

    server = serve(echo, lasting_fault(Fault(spoil=silent)))
    reply, thought = "You said: Say hello.", "They greet."
    expected = Usage(estimate_tokens("Say hello."), estimate_tokens(thought + reply), estimated=True)
    assert ask(server).usage == expected
    assert caplog.text.count("reports no token usage") == 1
    caplog.clear()
    ask_all(server, 3)
    assert caplog.text.count("reports no token usage") == 1, "not for each call"


def test_the_request_is_plain(serve: Serve) -> None:
    server = serve(echo)
    ask(server, (Message("system", "Be brief."), *PROMPT), Sampling(64, 0.5, 0.9))
    assert server.asked == [
        {
            "model": "test-model",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Say hello."},
            ],
            "max_tokens": 64,
            "temperature": 0.5,
            "top_p": 0.9,
        }
    ]


def test_key_seed_and_extra_are_sent(serve: Serve) -> None:
    server = serve(echo)
    ask(server, sampling=Sampling(64, seed=7), api_key="secret", extra={"top_k": 5})
    assert (server.asked[0]["seed"], server.asked[0]["top_k"]) == (7, 5)
    assert server.requests[0].headers["authorization"] == "Bearer secret"


def test_a_schema_is_sent_as_openai_wants_it(serve: Serve) -> None:
    server = serve(echo)
    ask(server, sampling=GUIDED)
    schema = {"name": "reply", "strict": True, "schema": {"type": "array"}}
    assert server.asked[0]["response_format"] == {"type": "json_schema", "json_schema": schema}


def test_a_reply_cut_at_its_limit_says_so(serve: Serve) -> None:
    completion = ask(serve(echo), sampling=Sampling(2))
    assert (completion.text, completion.finish_reason) == ("You said", "length")
    assert completion.usage.completion_tokens == 2


def test_ids_and_logprobs_are_asked_for_only_to_record(serve: Serve) -> None:
    server = serve(echo)
    plain, recorded = ask(server), ask(server, record=True)
    assert (plain.prompt_ids, plain.completion_ids, plain.logprobs) == ((), (), ())
    assert recorded.prompt_ids == (0, 1, 2)
    assert recorded.completion_ids == (100, 101, 102, 103, 104, 105)
    assert recorded.logprobs == (-0.25,) * 6
    assert "logprobs" not in server.asked[0]
    assert "return_token_ids" not in server.asked[0]


VERDICT = Sampling(1, verdict=True)
GUIDED = Sampling(64, json_schema='{"type": "array"}')


def tell_alternatives(completion: dict[str, Any]) -> None:
    """As OpenAI, vLLM, SGLang, llama.cpp and Ollama tell the alternatives to a token."""
    alternatives = [
        {"token": word, "logprob": odds, "bytes": []} for word, odds in (("Yes", -0.5), ("No", -1.5))
    ]
    first = {"token": "Yes", "logprob": -0.5, "top_logprobs": alternatives}
    completion["choices"][0]["logprobs"] = {"content": [first]}


def test_a_verdict_comes_with_its_alternatives(serve: Serve) -> None:
    server = serve(echo, lasting_fault(Fault(spoil=tell_alternatives)))
    completion = ask(server, sampling=VERDICT, verdict={"lora": [{"id": 0, "scale": 1.0}]})
    assert completion.alternatives == {"Yes": -0.5, "No": -1.5}
    body = server.asked[0]
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 1)
    assert body["lora"] == [{"id": 0, "scale": 1.0}]
    assert ask(server, verdict={"lora": []}).alternatives == {}
    assert not {"lora", "logprobs", "top_logprobs"} & server.asked[1].keys()


def without(field: str, words: str, server: Server) -> Server:
    """Make a server refuse requests with a field, in these words."""

    def plan(digest: str, attempt: int) -> Fault | None:
        body = next(request.body for request in reversed(server.requests) if request.digest == digest)
        return refusal(400, words) if field in body else None

    server.faults = plan
    return server


@pytest.mark.parametrize(
    ("sampling", "field", "words"),
    [
        (VERDICT, "top_logprobs", "logprobs is not supported here"),
        (VERDICT, "top_logprobs", "Extra inputs are not permitted"),
        (GUIDED, "response_format", "Extra inputs are not permitted"),
    ],
)
def test_a_field_that_the_endpoint_refuses_is_sent_once(
    sampling: Sampling, field: str, words: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = without(field, words, serve(echo))
    assert [completion.alternatives for completion in ask_twice(server, sampling)] == [{}, {}]
    assert [field in body for body in server.asked] == [True, False, False]
    assert caplog.text.count("left out") == words.startswith("Extra"), "select says what it lacks"


def test_a_field_that_was_not_the_cause_of_a_refusal_is_sent_again(serve: Serve) -> None:
    server = without("chat_template_kwargs", "bad request", serve(echo))
    ask_twice(server, replace(VERDICT, thinking=False))
    assert ["top_logprobs" in body for body in server.asked] == [True, False, False, True]


@pytest.mark.parametrize("sampling", [VERDICT, GUIDED, Sampling(64, thinking=False)])
def test_a_refusal_for_another_reason_teaches_nothing(sampling: Sampling, serve: Serve) -> None:
    server = serve(echo, lasting_fault(refusal(400, "the prompt is against our policy")))

    async def calls() -> None:
        async with aclosing(engine_at(server.base_url)) as engine:
            with pytest.raises(EngineError, match="the prompt is against our policy"):
                await engine.complete(PROMPT, sampling)
            server.faults = no_faults
            await engine.complete(PROMPT, sampling)

    asyncio.run(calls())
    assert server.asked[-1] == server.asked[0]


@pytest.mark.parametrize("kind", PASSING_FAULTS)
def test_what_may_pass_is_tried_again(kind: str, serve: Serve) -> None:
    fault = PASSING_FAULTS[kind]
    server = serve(echo, scripted_faults(fault))
    timeout = 0.3 if fault.delay_seconds else 30.0
    assert ask(server, timeout_seconds=timeout).text == "You said: Say hello."
    assert len(server.asked) == 2
    assert server.asked[0] == server.asked[1]


def test_an_error_beside_a_choice_is_an_error(serve: Serve) -> None:
    body = '{"error": {"message": "out of memory"}, "choices": [{"message": {"content": "Par"}}]}'
    with pytest.raises(EngineError, match="out of memory"):
        ask(serve(echo, lasting_fault(Fault(body=body))), retries=0)


@pytest.mark.parametrize(("retries", "times"), [(2, "3 times"), (0, "1 time")])
def test_what_stays_bad_is_an_error_with_its_cause(retries: int, times: str, serve: Serve) -> None:
    server = serve(echo, lasting_fault(refusal(503, "out of order", {"Retry-After": "0"})))
    with pytest.raises(EngineError, match=rf"127\.0\.0\.1.* failed {times}, last: HTTP 503.*out of order"):
        ask(server, retries=retries)
    assert len(server.asked) == retries + 1


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, r"refused the call \(HTTP 400: I do not like it\)"),
        (401, r"wants a key \(HTTP 401: I do not like it\): set `api_key` or MEMAGENT_API_KEY"),
        (403, r"wants a key \(HTTP 403: I do not like it\): set `api_key`"),
        (404, r"HTTP 404: I do not like it\): check `base_url` \(does it end in /v1\?\) and `model`"),
    ],
)
def test_what_cannot_pass_is_never_tried_again(status: int, text: str, serve: Serve) -> None:
    server = serve(echo, lasting_fault(refusal(status, "I do not like it")))
    with pytest.raises(EngineError, match=text) as caught:
        ask(server)
    assert not isinstance(caught.value, ContextOverflowError)
    assert len(server.asked) == 1


def test_a_used_up_quota_is_not_a_rate_limit(serve: Serve) -> None:
    fault = refusal(429, "You exceeded your current quota", code="insufficient_quota")
    server = serve(echo, lasting_fault(fault))
    with pytest.raises(EngineError, match=r"quota is used up: .*You exceeded your current quota"):
        ask(server)
    assert len(server.asked) == 1


# Retry-After


def test_retry_after_in_seconds_is_waited_for(serve: Serve) -> None:
    server = serve(echo, scripted_faults(refusal(429, "slow down", {"Retry-After": "0.4"})))
    started = time.monotonic()
    ask(server)
    assert time.monotonic() - started >= 0.4


@pytest.mark.slow
def test_retry_after_as_a_date_is_waited_for(serve: Serve) -> None:
    date = int(time.time()) + 3
    fault = refusal(503, "later", {"Retry-After": formatdate(date, usegmt=True)})
    ask(serve(echo, scripted_faults(fault)))
    assert time.time() >= date


def test_pauses_double_up_to_a_limit_and_are_jittered() -> None:
    pauses = [[backoff_seconds(attempt, 0.5) for _ in range(200)] for attempt in (0, 1, 2, 20, 1000)]
    for pause, longest in zip(pauses, (0.5, 1, 2, 30, 30), strict=True):
        assert longest / 2 <= min(pause) < max(pause) <= longest


def test_retry_after_is_a_least_pause_within_reason() -> None:
    assert all(7 <= backoff_seconds(0, 0.5, 7.0) <= 7.25 for _ in range(200))
    assert max(backoff_seconds(0, 0.5, 0.0) for _ in range(200)) <= 0.25
    assert backoff_seconds(0, 0.5, 86_400.0) <= 301


# A prompt longer than the window


@pytest.mark.parametrize("wording", WORDINGS)
def test_a_prompt_over_the_window_is_an_overflow(wording: str, serve: Serve) -> None:
    server = serve(echo, window=100, wording=wording)
    with pytest.raises(ContextOverflowError, match="100"):
        ask(server, (Message("user", "x" * 101),))
    assert len(server.asked) == 1
    assert ask(server, (Message("user", "x" * 100),)).text.startswith("You said: x")


@pytest.mark.parametrize(
    ("words", "prompt_tokens", "whole"),
    [(4000, 2048, False), (4000, 3999, True), (4000, 5200, True), (4000, 0, True), (70, 1, True)],
)
def test_a_prompt_that_the_server_silently_cut_is_an_overflow(
    words: int, prompt_tokens: int, whole: bool, serve: Serve
) -> None:
    def cuts(completion: dict[str, Any]) -> None:
        completion["usage"]["prompt_tokens"] = prompt_tokens

    server = serve(echo, lasting_fault(Fault(spoil=cuts)))
    prompt = (Message("user", "Every word counts. " * (words // 3)),)
    if whole:
        usage = ask(server, prompt).usage
        assert usage.estimated if prompt_tokens == 0 else usage.prompt_tokens == prompt_tokens
        return
    with pytest.raises(ContextOverflowError, match="read 2,048 tokens of a prompt that has at least 3,999"):
        ask(server, prompt)
    assert len(server.asked) == 1


def test_a_server_that_cuts_all_long_prompts_to_one_length_is_noticed(serve: Serve) -> None:
    def cuts(completion: dict[str, Any]) -> None:
        completion["usage"]["prompt_tokens"] = min(completion["usage"]["prompt_tokens"], 2048)

    async def ask_all(*lengths: int) -> list[int]:  # in characters; the first 12,288 are not cut
        engine = engine_at(server.base_url)
        prompts = ((Message("user", "Unterlassungsverfuegung " * (length // 24)),) for length in lengths)
        completions = [await engine.complete(prompt, Sampling(9)) for prompt in prompts]
        await engine.aclose()
        return [completion.usage.prompt_tokens for completion in completions]

    server = serve(lambda _: "Yes.", lasting_fault(Fault(spoil=cuts)))
    counts = [2048, 165, 2048, 2048, 2048, 165, 2048]  # two prompts alone may have as many tokens by chance
    assert asyncio.run(ask_all(12_480, 1000, 12_480, 12_600, 12_480, 1000, 12_600)) == counts
    with pytest.raises(EngineError, match=r"2,048 tokens of each of 4 prompts .*num_ctx") as raised:
        asyncio.run(ask_all(14_400, 13_200, 1000, 12_480, 13_920))
    assert raised.value.usage and raised.value.usage.prompt_tokens == 2048
    assert len(set(asyncio.run(ask_all(*range(2400, 12_000, 480))))) == 20  # nothing was cut


def test_prompts_of_one_length_in_the_models_own_tokens_were_read_whole(serve: Serve) -> None:
    """As those of `chunk_ends` exact are, with the model's tokenizer."""
    server = serve(lambda _: "Yes.")

    async def calls() -> None:
        async with aclosing(engine_at(server.base_url)) as engine:
            engine.model = replace(engine.model, count_tokens=count_tokens, tokenizer="the server's")
            for word in (" a", " ab", " abc", " abcd", " abcde"):
                completion = await engine.complete((Message("user", word * 1500),), Sampling(9))
                assert completion.usage.prompt_tokens == 1500

    asyncio.run(calls())


OVERFLOWS = {
    "vllm 0.15": "This model's maximum context length is 2048 tokens. However, your request has 9000 input "
    "tokens. Please reduce the length of the input messages. (parameter=input_tokens, value=9000)",
    "llama.cpp before 2025-09": "the request exceeds the available context size. try increasing the context "
    "size or enable context shift",
    "llama-cpp-python": "Requested tokens (2285) exceed context window of 2048",
    "sglang": "The input (9000 tokens) is longer than the model's context length (2048 tokens).",
    "tgi": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` "
    "tokens and 1024 `max_new_tokens`",
    "tgi, the prompt alone": "Input validation error: `inputs` must have less than 4095 tokens. Given: 6000",
    "moonshot": "Invalid request: Your request exceeded model token limit: 8192",
    "dashscope": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
    "zhipu": "Prompt exceeds max length",
    "baidu": "the max input characters is 20000",
    "minimax": "invalid params, context window exceeds limit (2013)",
    "tensorrt-llm": "The sum of prompt length (5000.0), query length (0) and max_tokens (100) should not "
    "exceed max_num_tokens (4096)",
    "openrouter": "This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 "
    "tokens (8000 of text input, 1000 in the output).",
    "anthropic": "prompt is too long: 214850 tokens > 200000 maximum",
    "anthropic, with the reply": "input length and `max_tokens` exceed context limit: 190000 + 20000 > "
    "200000, decrease input length or `max_tokens` and try again",
    "bedrock": "Input is too long for requested model.",
    "gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
    "context length",
    "xai": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "lm studio": "Trying to keep the first 9000 tokens when context the overflows. However, the model is "
    "loaded with context length of only 4096 tokens, which is not enough.",
    "openai responses": "Your input exceeds the context window of this model. Please adjust your input and "
    "try again.",
}


@pytest.mark.parametrize("server_name", OVERFLOWS)
def test_the_overflow_messages_of_known_servers(server_name: str, serve: Serve) -> None:
    server = serve(echo, lasting_fault(refusal(400, OVERFLOWS[server_name], type="invalid_request_error")))
    with pytest.raises(ContextOverflowError):
        ask(server)
    assert len(server.asked) == 1


def test_the_code_alone_tells_an_overflow(serve: Serve) -> None:
    fault = refusal(400, "Please shorten it.", code="context_length_exceeded")
    with pytest.raises(ContextOverflowError):
        ask(serve(echo, lasting_fault(fault)))


def test_an_overflow_reported_as_an_internal_error(serve: Serve) -> None:
    server = serve(echo, lasting_fault(refusal(500, "the request exceeds the available context size")))
    with pytest.raises(ContextOverflowError):
        ask(server)
    assert len(server.asked) == 1


NO_OVERFLOWS = {
    "openai, completion too long": "max_tokens is too large: 100000. This model supports at most 16384 "
    "completion tokens, whereas you provided 100000.",
    "completion over the limit": "Invalid request: max_tokens exceeds the limit of 4096 output tokens",
    "budget": "The request exceeds your monthly budget",
    "quota": "Your request exceeds the quota of this project: 100,000 tokens a day",
    "credits": "This request exceeds the credits that are left",
    "time": "The request exceeds the time limit",
    "deadline": 'Post "http://10.0.0.1/v1": request canceled: context deadline exceeded',
    "temperature": "temperature must be at most 1",
    "unknown model": "The model `gpt-9` does not exist",
    "logprobs": "Too many top_logprobs were asked for",
}


@pytest.mark.parametrize("case", NO_OVERFLOWS)
def test_other_refusals_are_no_overflow(case: str, serve: Serve) -> None:
    fault = refusal(400, NO_OVERFLOWS[case], type="invalid_request_error", code="invalid_value")
    with pytest.raises(EngineError) as caught:
        ask(serve(echo, lasting_fault(fault)))
    assert not isinstance(caught.value, ContextOverflowError)


# Endpoints that want other words


def picky(server: Server) -> Server:
    """Make a server take `max_completion_tokens` and no temperature, as newer hosted models do."""

    def plan(digest: str, attempt: int) -> Fault | None:
        body = next(request.body for request in reversed(server.requests) if request.digest == digest)
        if "max_tokens" in body:
            return refusal(
                400,
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            )
        if "temperature" in body:
            return refusal(
                400,
                "Unsupported value: 'temperature' does not support 0 with this model.",
                param="temperature",
                code="unsupported_value",
            )
        return None

    server.faults = plan
    return server


def test_the_request_is_put_in_the_endpoints_words_once(serve: Serve) -> None:
    server = picky(serve(echo))

    async def two_calls() -> None:
        engine = engine_at(server.base_url)
        await engine.complete(PROMPT, Sampling(64))
        await engine.complete(PROMPT, Sampling(64))
        await engine.aclose()

    asyncio.run(two_calls())
    last = server.asked[-1]
    assert len(server.asked) == 4
    assert last["max_completion_tokens"] == 64
    assert "max_tokens" not in last
    assert "temperature" not in last


def test_calls_that_are_refused_side_by_side_are_all_put_right(serve: Serve) -> None:
    server = picky(serve(echo))
    together = threading.Barrier(4)
    plan = server.faults

    def all_at_once(digest: str, attempt: int) -> Fault | None:
        if attempt == 0:
            together.wait(10)
        return plan(digest, attempt)

    server.faults = all_at_once
    assert ask_all(server, 4) == [f"You said: {number}" for number in range(4)]


def test_an_endpoint_that_takes_neither_word_is_an_error(serve: Serve) -> None:
    fault = refusal(400, "Use 'max_completion_tokens' instead.", param="max_tokens")
    server = serve(echo, lasting_fault(fault))
    with pytest.raises(EngineError, match="refused the call"):
        ask(server)
    assert len(server.asked) == 2


# Several calls at once


def test_at_most_so_many_calls_are_in_flight(serve: Serve) -> None:
    server = serve(echo, latency_seconds=0.05)
    assert ask_all(server, 12, concurrency=3) == [f"You said: {number}" for number in range(12)]
    assert 1 < server.most_in_flight <= 3


# connect()


def test_the_only_model_is_taken(serve: Serve) -> None:
    assert opened(serve()) == model_named("test-model")


def test_several_models_are_listed_to_choose_from(serve: Serve) -> None:
    server = serve(listed=[{"id": "zeta"}, {"id": "alpha"}])
    with pytest.raises(EngineError, match="name a model with `model`: alpha, zeta"):
        opened(server)
    assert opened(server, "zeta").name == "zeta"


def test_no_model_is_served(serve: Serve) -> None:
    with pytest.raises(EngineError, match="lists none"):
        opened(serve(listed=[]))


@pytest.mark.parametrize("name", ["nosuch.gguf", "./models/typo", "~/typo", "/models/typo"])
@pytest.mark.parametrize("models", [({"id": "one"},), None])
def test_a_missing_path_is_not_the_name_of_a_model(name: str, models: Any, serve: Serve) -> None:
    server = serve(echo, listed=models)
    with pytest.raises(SettingsError, match=f"there is no model at {name}, and .* does not list it"):
        asyncio.run(connect(name, Connection(server.base_url)))
    served = serve(echo, listed=({"id": name},))  # as llama.cpp and vLLM do
    assert asyncio.run(connect(name, Connection(served.base_url))).model.name == name


def test_an_endpoint_without_a_list_needs_a_name(serve: Serve) -> None:
    server = serve(listed=None)
    assert opened(server, "mine") == model_named("mine")
    with pytest.raises(EngineError, match=r"name a model with `model`: http.* lists none"):
        opened(server)


def test_a_model_that_is_not_listed_may_be_named(serve: Serve) -> None:
    assert opened(serve(), "other") == model_named("other")


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"max_model_len": 8192}, 8192),
        ({"context_length": 4096}, 4096),
        ({"meta": {"n_ctx": 2048}}, 2048),
    ],
)
def test_the_window_is_taken_from_the_list(entry: dict[str, Any], window: int | None, serve: Serve) -> None:
    server = serve(listed=[{"id": "test-model", **entry}])
    assert opened(server).window_tokens == window
    assert opened(server, "test-model").window_tokens == window


def test_a_list_of_models_may_stand_alone(serve: Serve) -> None:
    server = serve()
    server.model_page = Fault(body='[{"id": "only", "context_length": 4096}]')
    assert opened(server) == opened(server, "only")
    assert opened(server).name == "only" and opened(server).window_tokens == 4096


def test_a_list_that_comes_late_still_tells_the_window(serve: Serve) -> None:
    server = serve(listed=[{"id": "test-model", "max_model_len": 8192}], list_failures=1)
    assert opened(server, "test-model").window_tokens == 8192


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


@pytest.mark.parametrize("name", [None, "mine"])
def test_a_server_that_is_down_is_reported_at_once_with_what_to_do(name: str | None) -> None:
    address, started = unused_address(), time.monotonic()
    with pytest.raises(EngineError, match=rf"nothing listens at {address}: is the server running\?"):
        asyncio.run(connect(name, Connection(base_url=address)))
    assert time.monotonic() - started < 3


def test_a_call_to_a_server_that_is_down_names_it() -> None:
    address = unused_address()
    with pytest.raises(EngineError, match=rf"nothing listens at {address}: .* \(tried 2 times\)"):
        ask(address, retries=1)
