"""Chat completions: what fits goes through as it is, what does not is read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from function_engine import FunctionEngine
from memagent.engines import ScriptedEngine
from memagent.engines.forwarding import Forwarded, split_events
from memagent.engines.refusals import TransientError
from memagent.errors import ContextOverflowError
from memagent.reading.read import NOT_FOUND
from memagent.server.limits import Limits
from memagent.server.schemas import ReadOptions
from memagent.settings import EngineSettings, ReadSettings, settings_by_name
from memagent.types import Completion, Message, Usage
from server import Fault, Server, complete, facts_document, lasting_fault, read_facts, refusal
from waiting import wait_for

QUESTION = "What are all the facts?"
URL = "/v1/chat/completions"


def chat(document: str, **values: Any) -> dict[str, Any]:
    """A chat with a document in an earlier turn."""
    turns = [{"role": "user", "content": document}, {"role": "user", "content": QUESTION}]
    return {"model": "memagent", "messages": turns, **values}


WORDS = "one two three"


def events(lines: Iterator[str]) -> list[Any]:
    """The data of a stream of events, which has nothing but data."""
    data_lines = [line for line in lines if line]
    assert all(line.startswith("data: ") for line in data_lines)
    assert data_lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in data_lines[:-1]]


def endpoint(server: Server, **values: Any) -> EngineSettings:
    """Settings of an engine at the test server."""
    return EngineSettings(base_url=server.base_url, model="test-model", retries=0, **values)


def test_what_fits_is_forwarded_unchanged_with_tools_and_all_parameters(serve: Any, serving: Any) -> None:
    server = serve()
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    body = {
        "model": "memagent",
        "messages": [{"role": "user", "content": "Hi", "name": "me"}],
        **{"tools": tools, "tool_choice": "auto", "temperature": 0.3, "presence_penalty": 0.5},
        **{"stop": ["x"], "some_option": {"of": ["the", "server"]}, "n": 1},
    }
    with serving(endpoint(server)).client() as client:
        reply = client.post(URL, json=body)
    assert server.asked == [body | {"model": "test-model"}]
    assert reply.json()["choices"][0]["message"]["content"] == "nothing was found"


class Passing(ScriptedEngine):
    """Passes chats to an endpoint that goes on with its stream once it is let."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__([], window_tokens=2000)
        self.pieces, self.go, self.sent = pieces, threading.Event(), 0

    @asynccontextmanager
    async def forward(self, body: Mapping[str, Any]) -> AsyncGenerator[Forwarded, None]:
        yield Forwarded("text/event-stream", self._pieces())

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        for piece in self.pieces:
            while self.sent and not self.go.is_set():  # noqa: ASYNC110 from another thread
                await asyncio.sleep(0.005)
            self.sent += 1
            yield piece


HELLO = {"model": "memagent", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_event_is_passed_on_when_it_is_whole_however_its_lines_end(end: bytes, serving: Any) -> None:
    engine = Passing([b"data: one" + end, b"data: two" + end])
    with serving(engine).client() as client, client.stream("POST", URL, json=HELLO) as reply:
        pieces = reply.iter_raw()
        first = next(pieces)
        engine.go.set()
        rest = b"".join(pieces)
    assert first == b"data: one" + end
    assert rest == b"data: two" + end


def test_events_are_cut_at_their_ends_wherever_the_pieces_are_cut() -> None:
    events = [b"data: 1\n\n", b"data: 2\r\ndata: 3\r\n\r\n", b"data: 4\r\r", b"data: 5\n\r\n"]
    half = b'data: {"choices": [{"delta": {"content": "it is dr'

    async def cut(size: int) -> list[bytes]:
        async def pieces() -> AsyncGenerator[bytes, None]:
            whole = b"".join([*events, half])
            for start in range(0, len(whole), size):
                yield whole[start : start + size]

        return [event async for event in split_events(pieces())]

    assert asyncio.run(cut(1)) == events
    for size in range(2, 40):
        parts = asyncio.run(cut(size))
        ends = [sum(map(len, events[: number + 1])) for number in range(len(events))]
        assert b"".join(parts) == b"".join(events)
        assert {sum(map(len, parts[: number + 1])) for number in range(len(parts))} <= set(ends)


def test_a_stream_without_events_is_not_held_without_end() -> None:
    number = 0

    async def pieces() -> AsyncGenerator[bytes, None]:
        nonlocal number
        for number in range(100):  # noqa: B007
            yield b"x" * 2**20

    async def take() -> None:
        async for _ in split_events(pieces()):
            pass

    with pytest.raises(TransientError, match="an event of the reply is longer than"):
        asyncio.run(take())
    assert number < 99


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_by_the_endpoint_comes_back_in_its_words(stream: bool, serve: Any, serving: Any) -> None:
    refused = refusal(422, "no such tool", {"Retry-After": "7"}, code="bad_tool", param="tools")
    server = serve(pages={URL: lambda body: refused})
    body = {"model": "memagent", "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
    with serving(endpoint(server)).client() as client:
        reply = client.post(URL, json=body)
    assert reply.status_code == 422
    error = {"message": "no such tool", "type": "invalid_request_error", "param": "tools", "code": "bad_tool"}
    assert reply.json()["error"] == error
    assert reply.headers["retry-after"] == "7"


def test_a_redirect_without_an_address_is_an_error_of_the_endpoint(serve: Any, serving: Any) -> None:
    server = serve(pages={URL: lambda body: Fault(body["seed"])})
    with serving(endpoint(server)).client() as client:
        for status, stream in product((301, 304), (False, True)):
            reply = client.post(URL, json={**HELLO, "stream": stream, "seed": status})
            assert reply.status_code == 502, (status, stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("values", [{}, {"memagent": {"document": "some text"}}])
def test_half_a_surrogate_pair_in_a_refusal_is_shown_as_a_replacement(
    values: dict[str, Any], stream: bool, serve: Any, serving: Any
) -> None:
    refused = refusal(422, "no \ud800", code="c \ud800", param="p \ud800")
    server = serve(pages={URL: lambda body: refused})
    with serving(endpoint(server)).client() as client:
        reply = client.post(URL, json={**HELLO, "stream": stream, **values})
    assert "no \ufffd" in reply.text and '"error"' in reply.text


NO_COMPLETIONS = [
    ("text/html", "<html><body>Please log in</body></html>", "does it end in /v1?"),
    ("text/plain", '{"error": {"message": "quota gone"}}', "quota gone"),
    ("text/plain", "upstream reset", "upstream reset"),
    ("application/json", '{"error": {"message": "quota gone"}}', "quota gone"),
    ("application/json", '["quota gone"]', "quota gone"),
]


def test_a_reply_that_is_not_a_completion_is_not_forwarded_as_one(serve: Any, serving: Any) -> None:
    def page(body: dict[str, Any]) -> Fault:
        kind, text, _ = NO_COMPLETIONS[body["seed"]]
        return Fault(200, {"Content-Type": kind}, text)

    with serving(endpoint(serve(pages={URL: page}))).client() as client:
        for (number, (_, _, message)), stream in product(enumerate(NO_COMPLETIONS), (False, True)):
            reply = client.post(URL, json={**HELLO, "stream": stream, "seed": number})
            assert reply.status_code == 502
            assert message in reply.json()["error"]["message"]


def test_a_key_that_the_endpoint_refuses_is_not_the_clients_fault(serve: Any, serving: Any) -> None:
    server = serve(pages={URL: lambda body: refusal(401, "bad key")})
    with serving(endpoint(server, api_key="sk-secret")).client() as client:
        reply = client.post(URL, json={"model": "memagent", "messages": [{"role": "user", "content": "Hi"}]})
    assert reply.status_code == 502
    assert "sk-secret" not in reply.text


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_endpoint_finds_too_long_is_read(stream: bool, serve: Any, serving: Any) -> None:
    server = serve(window=2500)  # in characters: fewer than its window in tokens lets expect
    document = facts_document(12)
    body = chat(document, stream=stream)
    with serving(endpoint(server, window_tokens=4000)).client() as client:
        reply = client.post(URL, json=body)
        assert reply.status_code == 200, reply.text
    assert all(f"FACT-{number}: " in reply.text for number in range(12) if number % 3)
    assert len(server.asked) > 3


@pytest.mark.parametrize("code", [400, "context_length_exceeded"])
def test_an_overflow_that_a_gateway_sends_with_status_200_is_read(
    code: object, serve: Any, serving: Any
) -> None:
    def plan(body: dict[str, Any]) -> Fault:
        if len(str(body["messages"])) > 2500:
            return replace(
                refusal(400, "This model's maximum context length is 600 tokens", code=code), status=200
            )
        return Fault(body=json.dumps(complete(body, read_facts(body["messages"]))))

    server = serve(pages={URL: plan})
    with serving(endpoint(server, window_tokens=4000)).client() as client:
        reply = client.post(URL, json=chat(facts_document(12)))
    assert reply.status_code == 200, reply.text
    assert "FACT-11: " in reply.json()["choices"][0]["message"]["content"]


def test_a_forwarded_chat_that_the_endpoint_silently_cut_is_read(serve: Any, serving: Any) -> None:
    def cuts(completion: dict[str, Any]) -> None:
        usage = completion["usage"]
        usage["prompt_tokens"] = min(usage["prompt_tokens"], 600)

    server = serve(faults=lasting_fault(Fault(spoil=cuts)))
    settings = ReadSettings(chunk_tokens=100, memory_tokens=200, answer_tokens=200)
    document = facts_document(30)
    with serving(endpoint(server, window_tokens=4000), settings=settings).client() as client:
        reply = client.post(URL, json=chat(document))
    assert reply.status_code == 200, reply.text
    assert document in server.asked[0]["messages"][0]["content"]
    assert len(server.asked) > 3, "it was read in chunks"


def test_what_a_chat_template_leaves_out_was_not_cut(serve: Any, serving: Any) -> None:
    def cuts(completion: dict[str, Any]) -> None:
        completion["usage"]["prompt_tokens"] = 9

    server = serve(faults=lasting_fault(Fault(spoil=cuts)))
    thought = f"<think>{'What did they mean? ' * 400}</think>Hello."
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": thought}]
    with serving(endpoint(server, window_tokens=8000)).client() as client:
        reply = client.post(URL, json={"model": "memagent", "messages": [*turns, *turns[:1]]})
    assert reply.status_code == 200
    assert len(server.asked) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_gets_an_answer_from_200_000_tokens(stream: bool, serving: Any) -> None:
    document = facts_document(60) + "word " * 200_000 + facts_document(3, seed=1)
    settings = ReadSettings(workflow="gated", chunk_tokens=20_000, memory_tokens=2000, answer_tokens=2000)

    def reply(messages: tuple[Message, ...]) -> str:
        facts = read_facts([{"role": message.role, "content": message.content} for message in messages])
        return facts if facts == "UNCHANGED" or "<chunk>" not in messages[-1].content else f"MEMORY:\n{facts}"

    served = serving(ScriptedEngine(reply, window_tokens=50_000), settings=settings)
    client = openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0)
    turns: Any = [{"role": "user", "content": text} for text in (document, QUESTION)]
    if stream:
        thoughts, answer, usage = "", "", None
        options: Any = {"include_usage": True}
        for chunk in client.chat.completions.create(
            model="scripted", messages=turns, stream=True, stream_options=options
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                answer += choice.delta.content or ""
                thoughts += getattr(choice.delta, "reasoning_content", None) or ""
        assert "Read chunk 3 of about" in thoughts
    else:
        completion = client.chat.completions.create(model="scripted", messages=turns)
        answer, usage = completion.choices[0].message.content or "", completion.usage
        assert completion.choices[0].finish_reason == "stop"
    assert "FACT-59" in answer
    assert usage and usage.prompt_tokens > 200_000
    assert usage.prompt_tokens_details and usage.completion_tokens_details


def test_usage_tells_all_tokens_cached_ones_too(serving: Any, facts: Any) -> None:
    def cached(prompt: str) -> Completion:
        return Completion(read_facts([{"role": "user", "content": prompt}]), usage=Usage(100, 10, 60))

    engine = FunctionEngine(cached, facts())
    with serving(engine).client() as client:
        usage = client.post(URL, json=chat(facts_document(12), memagent={})).json()["usage"]
    calls = len(engine.prompts)
    assert calls > 3
    assert usage == {
        "prompt_tokens": 100 * calls,
        "completion_tokens": 10 * calls,
        "total_tokens": 110 * calls,
        "prompt_tokens_details": {"cached_tokens": 60 * calls},
        "completion_tokens_details": {"reasoning_tokens": 10 * (calls - 1)},
    }


def test_problem_document_and_settings_can_be_said(serving: Any, facts: Any) -> None:
    engine = facts()
    options = {
        "problem": "Which facts?",
        "document": facts_document(6),
        "chunk_tokens": 50,
        "workflow": "gated",
    }
    with serving(engine).client() as client:
        reply = client.post(URL, json=chat("not this: FACT-99: x", memagent=options)).json()
    answer = reply["choices"][0]["message"]["content"]
    assert "FACT-1" in answer and "FACT-99" not in answer
    prompts = [messages[-1].content for messages in engine.prompts]
    assert all("Which facts?" in prompt and QUESTION not in prompt for prompt in prompts)
    assert len(prompts) > 4


def test_a_text_is_text_whatever_it_begins_with(serving: Any) -> None:
    text = "%PDF-1.4 {\\rtf \x00 FACT-1: apple"
    with serving().client() as client:
        reply = client.post(URL, json=chat("", memagent={"document": text}))
        read = client.post("/v1/reads", json={"problem": QUESTION, "document": text}).json()["id"]
        assert client.get(f"/v1/reads/{read}/text").text == text
    assert "FACT-1: apple" in reply.json()["choices"][0]["message"]["content"]


def test_top_p_may_be_0_however_long_the_chat_is(serving: Any) -> None:
    with serving().client() as client:
        reply = client.post(URL, json=chat(facts_document(100), top_p=0))
    assert reply.status_code == 200, reply.text


def test_annotations_tell_where_the_answer_stands(serving: Any) -> None:
    def reply(messages: tuple[Message, ...]) -> str:
        return "The captain is called Ahab. He has nine legs."

    text = "word " * 200 + "\n\nThe captain is called Ahab.\n\n" + "word " * 200
    options = {"document": text, "cite": True}
    body = {"model": "memagent", "messages": [{"role": "user", "content": QUESTION}], "memagent": options}
    with serving(ScriptedEngine(reply, window_tokens=2000)).client() as client:
        message = client.post(URL, json=body).json()["choices"][0]["message"]
        lines = client.post(URL, json=body | {"stream": True}).text.splitlines()
    deltas = [event["choices"][0]["delta"] for event in events(iter(lines))]
    extra_fields = {name: message[name] for name in ("annotations", "memagent")}
    assert [delta for delta in deltas if "annotations" in delta] == [extra_fields]
    (annotation,) = extra_fields["annotations"]
    citation = ChatCompletionMessage.model_validate(message).annotations[0].url_citation
    assert annotation == {"type": "url_citation", "url_citation": citation.model_dump()}
    supported, unsupported = extra_fields["memagent"]["statements"]
    cited = supported["source"]
    assert cited["excerpt"] == text[cited["start"] : cited["end"]] == "The captain is called Ahab."
    assert (citation.title, citation.url) == ("document", f"document#char={cited['start']},{cited['end']}")
    assert (citation.start_index, citation.end_index) == (0, 27)
    assert (unsupported["text"], unsupported["source"], unsupported["nearest"]) == (
        "He has nine legs.",
        None,
        [],
    )
    assert (unsupported["start_index"], unsupported["end_index"]) == (28, 45)


def test_the_annotation_of_a_nearest_passage_says_that_it_is_one(serving: Any) -> None:
    answer, passage = "Ahab is the captain of the ship Pequod.", "The Pequod is the ship of captain Ahab."
    text = "word " * 200 + f"\n\n{passage}\n\n" + "word " * 200
    options = {"document": text, "cite": True}
    body = {"model": "memagent", "messages": [{"role": "user", "content": QUESTION}], "memagent": options}
    with serving(ScriptedEngine(lambda _: answer, window_tokens=2000)).client() as client:
        message = client.post(URL, json=body).json()["choices"][0]["message"]
    (statement,) = message["memagent"]["statements"]
    (nearest,) = statement["nearest"]
    assert statement["source"] is None and nearest["excerpt"] == passage
    (annotation,) = ChatCompletionMessage.model_validate(message).annotations
    assert annotation.url_citation.title == "document (nearest passage, other words)"
    assert annotation.url_citation.url == f"document#char={nearest['start']},{nearest['end']}"


@pytest.mark.parametrize("workflow", ["notes", "gated"])
def test_a_missing_answer_is_reported_beside_it(workflow: str, serving: Any) -> None:
    engine = ScriptedEngine(lambda messages: "UNCHANGED", window_tokens=2000)
    body = chat("The lamp is green. " * 60, memagent={"workflow": workflow})
    with serving(engine).client() as client:
        reply = client.post(URL, json=body).json()
        lines = client.post(URL, json=body | {"stream": True}).text.splitlines()
    message = reply["choices"][0]["message"]
    assert (message["content"], message["memagent"]) == (
        NOT_FOUND,
        {"problem": QUESTION, "found": False},
    )
    assert reply["choices"][0]["finish_reason"] == "stop"
    usage = reply["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] > 0
    deltas = [event["choices"][0]["delta"] for event in events(iter(lines))]
    assert [delta["memagent"] for delta in deltas if "memagent" in delta] == [message["memagent"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == NOT_FOUND
    assert all("green" in prompt[-1].content for prompt in engine.prompts), "nobody answers from nothing"


def test_every_setting_but_the_servers_own_can_be_said() -> None:
    own = {"templates", "prompt_price", "cached_price", "completion_price"}
    named = {name for name, (part, _) in settings_by_name().items() if part == "read"}
    assert set(ReadOptions.model_fields) == named - own


def test_screening_is_reported_beside_the_answer(serving: Any, facts: Any, tmp_path: Path) -> None:
    chunks = [f"On day {number} nothing was written in any of the books. " * 12 for number in range(8)]
    chunks[5] = "FACT-5: the zebra is striped. " * 6
    options = {"problem": "What is the zebra?", "document": "\n\n".join(chunks), "screen": True}
    engine = facts()
    with serving(engine).client() as client:
        whole = client.post(URL, json=chat("", memagent=options)).json()["choices"][0]["message"]
        calls = len(engine.prompts)
        streamed = client.post(URL, json=chat("", memagent=options, stream=True)).text
        without = client.post(URL, json=chat("", memagent=options | {"screen": False})).json()
    settings = ReadSettings(workflow="overwrite", chunk_tokens=120, memory_tokens=300, screen=True)
    with serving(facts(), settings=settings, folder=tmp_path / "other").client() as client:
        del options["screen"]
        by_server = client.post(URL, json=chat("", memagent=options)).json()["choices"][0]["message"]
    details = whole["memagent"]
    assert "FACT-5" in whole["content"] and details["passed_over"] > 0
    assert calls == details["chunks"] - details["passed_over"] + 1, "the answer is a call too"
    deltas = [event["choices"][0]["delta"] for event in events(iter(streamed.splitlines()))]
    assert [delta for delta in deltas if "memagent" in delta] == [{"memagent": details}]
    assert any("passed over, " in delta.get("reasoning_content", "") for delta in deltas)
    assert without["choices"][0]["message"]["memagent"] == {
        "problem": "What is the zebra?",
        "found": True,
    }
    assert by_server["memagent"] == details


def test_files_are_read_by_id_and_by_data(serving: Any) -> None:
    with serving().client() as client:
        file = client.post("/v1/files", files={"file": ("a.txt", b"FACT-1: apple")}).json()
        page = "data:text/html;base64,PGI+RkFDVC0yOjwvYj4gPGk+YmVycnk8L2k+"
        parts = [
            {"type": "file", "file": {"file_id": file["id"]}},
            {"type": "file", "file": {"file_data": page, "filename": "../../b.html"}},
            {"type": "text", "text": QUESTION},
        ]
        body = {"model": "memagent", "messages": [{"role": "user", "content": parts}]}
        reply = client.post(URL, json=body)
        answer = reply.json()["choices"][0]["message"]["content"]
        assert "FACT-1: apple" in answer
        parts[0] = {"type": "file", "file": {"file_id": "file-nothing"}}
        assert client.post(URL, json=body).status_code == 404
        for data in ("no base64!", "FACT,FACT", "data:text/plain;base64,no base64!", "data:text/plain"):
            parts[0] = {"type": "file", "file": {"file_data": data}}
            assert client.post(URL, json=body).json()["error"]["code"] == "invalid_file"


def test_a_data_url_is_read_with_and_without_base64(serving: Any) -> None:
    engine = ScriptedEngine(lambda messages: messages[-1].content, window_tokens=2000)
    with serving(engine).client() as client:
        for url in (
            "data:text/plain,FACT-1:apple",
            "data:,FACT-1%3Aapple",
            "DATA:text/plain;charset=utf-8,It%20is%20so,%20FACT-1:apple",
            "data:text/plain;base64,RkFDVC0xOmFwcGxl",
            "data:text/plain;BASE64,RkFDVC0xOmFwcGx%6C",
            "RkFDVC0xOmFwcGxl",
        ):
            file = {"type": "file", "file": {"file_data": url, "filename": "a.txt"}}
            turns = [{"role": "user", "content": [file, {"type": "text", "text": QUESTION}]}]
            assert client.post(URL, json={"model": "memagent", "messages": turns}).status_code == 200
            text = "It is so, FACT-1:apple" if "%20" in url else "FACT-1:apple"
            assert f"\n{text}\n" in engine.prompts[-1][-1].content, url


def test_what_a_read_cannot_give_is_refused(serving: Any) -> None:
    with serving().client() as client:
        for param, value in (
            ("n", 2),
            ("logprobs", True),
            ("response_format", {"type": "json_object"}),
            ("tool_choice", "required"),
        ):
            reply = client.post(URL, json=chat(facts_document(100), **{param: value}))
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_an_unknown_setting_is_reported_with_a_suggestion(serving: Any) -> None:
    with serving().client() as client:
        reply = client.post(URL, json=chat(facts_document(6), memagent={"chunk_token": 50}))
    assert reply.status_code == 400
    assert "unknown, did you mean 'chunk_tokens'?" in reply.json()["error"]["message"]


def test_an_engine_in_this_process_refuses_tools_and_heeds_stop(serving: Any) -> None:
    engine = ScriptedEngine(["one two three"])
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    with serving(engine).client() as client:
        reply = client.post(URL, json=body | {"tools": [{"type": "function"}]})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "tools"
        reply = client.post(URL, json=body | {"stop": "two"}).json()
    assert reply["choices"][0]["message"]["content"] == "one "


@pytest.mark.parametrize(("stop", "text", "ended"), [("two", "one ", "stop"), ("four", WORDS, "length")])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_at_stop_ended_there(
    stop: str, text: str, ended: str, stream: bool, serving: Any
) -> None:
    engine = FunctionEngine(lambda _: Completion(WORDS, "length"), window_tokens=2000)
    with serving(engine).client() as client:
        reply = client.post(URL, json=chat(facts_document(6), memagent={}, stop=stop, stream=stream))
    if stream:
        choices = [event["choices"][0] for event in events(reply.iter_lines())]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == text
        assert choices[-1]["finish_reason"] == ended
    else:
        (choice,) = reply.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, ended)


@pytest.mark.parametrize("stream", [False, True])
def test_a_last_turn_of_the_assistant_is_the_beginning_of_the_answer(stream: bool, serving: Any) -> None:
    beginning = "The captain is called"

    def reply(messages: tuple[Message, ...]) -> str:
        return f"{beginning} Ahab. He limps."

    engine = ScriptedEngine(reply, window_tokens=2000)
    turns = [
        {"role": "user", "content": "word " * 2000 + f"\n\n{beginning} Ahab."},
        {"role": "user", "content": "What is the captain called?"},
        {"role": "assistant", "content": f"{beginning} "},
    ]
    body = {"model": "memagent", "messages": turns, "stream": stream, "memagent": {"cite": True}}
    with serving(engine).client() as client:
        response = client.post(URL, json=body)
    replies = events(iter(response.text.splitlines())) if stream else [response.json()]
    messages = [completion["choices"][0]["delta" if stream else "message"] for completion in replies]
    assert "".join(message.get("content") or "" for message in messages) == " Ahab. He limps."
    (beside,) = [message["memagent"] for message in messages if "memagent" in message]
    assert beside["problem"].endswith(f"What is the captain called?\n\nThe answer begins: {beginning}")
    assert all(beside["problem"] in prompt[-1].content for prompt in engine.prompts), (
        "it is asked for in this way"
    )
    assert [statement["text"] for statement in beside["statements"]] == [" Ahab.", "He limps."]
    assert not any("Assistant:" in prompt[-1].content for prompt in engine.prompts), (
        "it is no part of the document"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_is_asked_for_the_problem_and_gives_it(stream: bool, serving: Any) -> None:
    turns = [{"role": "user", "content": f"{facts_document(100)}\n\n{QUESTION}"}]
    body = {"model": "memagent", "messages": turns, "stream": stream}
    with serving().client() as client:
        reply = client.post(URL, json=body)
        with_problem = client.post(URL, json=body | {"stream": False, "memagent": {"problem": QUESTION}})
        named = client.post(
            URL, json=body | {"stream": False, "memagent": {"problem_at": "end", "problem_tokens": 6}}
        )
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "unclear_problem", "memagent.problem")
    assert '"problem"' in error["message"] and "FACT" not in error["message"]
    assert "FACT-" in with_problem.json()["choices"][0]["message"]["content"]
    assert named.json()["choices"][0]["message"]["memagent"]["problem"] == QUESTION


def test_a_long_beginning_of_the_answer_is_shown_by_its_end(serving: Any) -> None:
    turns = [{"role": "assistant", "content": "It begins. " + "And so on. " * 400 + "The end is"}]
    engine = ScriptedEngine(lambda messages: "near.", window_tokens=2000)
    with serving(engine).client() as client:
        reply = client.post(
            URL, json=chat("word " * 900) | {"messages": chat("word " * 900)["messages"] + turns}
        )
    message = reply.json()["choices"][0]["message"]
    assert message["content"] == "near."
    assert message["memagent"]["problem"].startswith(f"{QUESTION}\n\nThe answer begins: ")
    assert message["memagent"]["problem"].endswith("The end is")


def test_the_models_tell_a_window_for_long_chats(serving: Any) -> None:
    with serving(limits=Limits(context_tokens=123)).client() as client:
        models = client.get("/v1/models").json()["data"]
        assert [client.get(f"/v1/models/{model['id']}").json() for model in models] == models
    assert [(model["context_length"], model["max_model_len"]) for model in models] == [(123, 123)] * 2
    assert Limits().context_tokens > 1_000_000


def test_another_model_is_not_there(serving: Any) -> None:
    with serving().client() as client:
        reply = client.post(URL, json={"model": "gpt-9", "messages": [{"role": "user", "content": "Hi"}]})
        names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert reply.status_code == 404
    assert "'scripted'" in reply.json()["error"]["message"]
    assert names == ["scripted", "memagent"]


class Gated(FunctionEngine):
    """Waits before each call for a permit."""

    def __init__(self, behind: ScriptedEngine) -> None:
        super().__init__(self.wait, behind, calls=1)
        self.permits = threading.Semaphore(0)
        self.cancelled = 0

    async def wait(self, _: str) -> None:
        try:
            while not self.permits.acquire(blocking=False):  # noqa: ASYNC110 from another thread
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_read_and_continues_it_later(
    stream: bool, serving: Any, facts: Any
) -> None:
    behind = facts()
    engine = Gated(behind)
    served, body = serving(engine), chat(facts_document(12), memagent={})
    with served.client() as client:

        def ask_and_leave() -> None:
            with pytest.raises(httpx2.TimeoutException):
                client.post(URL, json=body | {"stream": stream}, timeout=1)

        engine.permits.release(2)
        ask_and_leave()
        wait_for(lambda: engine.cancelled == 1)
        assert len(behind.prompts) == 2
        engine.permits.release(100)
        reply = client.post(URL, json=body).json()
        assert "FACT-11" in reply["choices"][0]["message"]["content"]
        assert len(set(behind.prompts)) == len(behind.prompts) == 6  # none paid twice
        client.post(URL, json=body)
        assert len(behind.prompts) == 12  # a finished chat that is asked again is read anew
        assert "memagent_conversations_total 12.0" in client.get("/metrics").text
    assert not list((served.store.folder / "reads").iterdir())


SIZED = ReadSettings(workflow="overwrite", problem_tokens=60, memory_tokens=300, answer_tokens=300)
LONG = chat(facts_document(60), memagent={})


def cut_off(serving: Any, behind: ScriptedEngine) -> Path:
    """Have a client leave after two calls, and the server end; returns the folder of the read."""
    engine = Gated(behind)
    served = serving(engine, settings=SIZED)
    engine.permits.release(2)
    with served.client() as client, pytest.raises(httpx2.TimeoutException):
        client.post(URL, json=LONG, timeout=1)
    wait_for(lambda: engine.cancelled == 1)
    served.close()
    (folder,) = (served.store.folder / "reads").iterdir()
    return Path(folder)


def calls_of(served: Any, engine: ScriptedEngine) -> int:
    """How many calls the same chat takes at a server that ends behind it."""
    before = len(engine.prompts)
    with served.client() as client:
        reply = client.post(URL, json=LONG)
        assert reply.status_code == 200, reply.text
        assert "FACT-59: " in reply.json()["choices"][0]["message"]["content"]
    served.close()
    return len(engine.prompts) - before


@pytest.mark.parametrize("damage", ["nothing", "window", "header"])
def test_an_interrupted_chat_is_continued_if_its_journal_can_be(
    damage: str, serving: Any, facts: Any
) -> None:
    folder = cut_off(serving, facts(window_tokens=1200))
    if damage == "header":
        journal = folder / "journal.jsonl"
        journal.write_bytes(journal.read_bytes().replace(b"header", b"hander", 1))
    engine = facts(window_tokens=1300 if damage == "window" else 1200)
    calls = calls_of(serving(engine, settings=SIZED), engine)
    whole = calls_of(serving(engine, settings=SIZED), engine)
    assert calls == (whole - 2 if damage == "nothing" else whole)
    assert not folder.exists()


def test_silence_is_filled_with_empty_chunks(serving: Any, facts: Any) -> None:
    engine = Gated(facts())
    served = serving(engine, limits=Limits(keep_alive_seconds=0.1))
    body = chat(facts_document(3), memagent={}, stream=True)
    with served.client() as client, client.stream("POST", URL, json=body) as reply:
        lines = (line for line in reply.iter_lines() if line)
        first = [json.loads(next(lines).removeprefix("data: ")) for _ in range(4)]
        engine.permits.release(100)
        list(lines)
    assert [event["choices"][0]["delta"] for event in first[1:]] == [{}, {}, {}]
    assert all(event["object"] == "chat.completion.chunk" for event in first)


def test_a_failure_in_the_stream_is_reported_there(serving: Any, facts: Any) -> None:
    engine = ScriptedEngine(["one memory"], window_tokens=2000)
    with serving(engine).client() as client:
        reply = client.post(URL, json=chat(facts_document(12), memagent={}, stream=True))
    last = [line for line in reply.text.splitlines() if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failed"


def test_a_chat_that_cannot_be_shortened_by_reading_is_refused_as_too_long(serving: Any) -> None:
    def refuse(_: str) -> None:
        raise ContextOverflowError("too long")

    with serving(FunctionEngine(refuse, window_tokens=2000)).client() as client:
        for stream in (False, True):
            body = {"model": "memagent", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
            reply = client.post(URL, json=body)
            assert reply.status_code == 400
            assert reply.json()["error"]["code"] == "context_length_exceeded"
