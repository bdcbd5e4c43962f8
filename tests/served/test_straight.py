"""Chats that go straight to the endpoint: a reply that is none, or that breaks off, never passes for one."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import openai
import pytest

from memagent.engines import ScriptedEngine
from memagent.settings import EngineSettings
from server import Fault

URL = "/v1/chat/completions"
SAYS = "All is well."


def chat(text: str = "Hi", **values: Any) -> dict[str, Any]:
    """A chat that fits."""
    return {"model": "memagent", "messages": [{"role": "user", "content": text}], **values}


def whole(finish_reason: str | None = "stop", **message: Any) -> Fault:
    """A reply in one piece."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return Fault(body=json.dumps({"object": "chat.completion", "choices": [choice]}))


def events(*choices: Any, done: bool = True) -> str:
    """The events of a stream: a text, a delta, a finish reason after "!", or None for no choice."""
    lines = []
    for part in ({"role": "assistant", "content": ""}, *choices):
        is_end = isinstance(part, str) and part.startswith("!")
        delta = {} if is_end else {"content": part} if isinstance(part, str) else part
        choice = {"index": 0, "delta": delta, "finish_reason": part[1:] if is_end else None}
        lines.append(json.dumps({"choices": [] if part is None else [choice]}))
    return "".join(f"data: {line}\n\n" for line in lines + ["[DONE]"] * done)


def stream(text: str, **values: Any) -> Fault:
    """A reply that is a stream."""
    return Fault(headers={"Content-Type": "text/event-stream"}, body=text, **values)


def endpoint(server: Any, retries: int = 0) -> EngineSettings:
    """Settings of an engine at the test server."""
    return EngineSettings(base_url=server.base_url, model="test-model", retries=retries)


TOOL = {
    "tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
}

ODD = {
    "null": (whole(content=None), stream(events("!stop"))),
    "empty": (whole(content=""), stream(events("", "!stop"))),
    "blank": (whole(content=" \n\u200b"), stream(events(" \n", "\u200b", "!stop"))),
    "only a thought": (
        whole(content=None, reasoning_content="Hm."),
        stream(events({"reasoning_content": ""}, "!stop")),
    ),
    "filtered": (whole("content_filter", content=None), stream(events("!content_filter"))),
    "error": (whole("error", content="All is"), stream(events("!error"))),
    "cut before a word": (whole("length", content=None), stream(events("!length"))),
    "no choices": (Fault(body='{"choices": []}'), stream("data: [DONE]\n\n")),
    "nothing": (Fault(body=""), stream("")),
    "status 204": (Fault(204), Fault(204)),
    "no completion": (Fault(body='{"choices": [3]}'), stream('data: {"choices": [3]}\n\n')),
    "an empty stream": (Fault(body="{}"), stream(events(None))),
    "no finish": (Fault(body='{"choices": 3}'), stream(events(done=False))),
}
"""What endpoints send instead of replies: whole, and as a stream."""


def test_an_invalid_reply_is_tried_again_and_then_an_error(serve: Any, serving: Any, tmp_path: Path) -> None:
    def page(body: dict[str, Any]) -> Fault:
        streamed, kind = body["stream"], body["messages"][0]["content"]
        if server.asked.count(body) == 1:
            return ODD[kind][streamed]
        return stream(events(SAYS, "!stop")) if streamed else whole(content=SAYS)

    server = serve(pages={URL: page})
    once, again = (serving(endpoint(server, retries), folder=tmp_path / str(retries)) for retries in (0, 6))
    with once.client() as client, again.client() as patient:
        for kind, streamed in product(ODD, (False, True)):
            reply = client.post(URL, json=chat(kind, stream=streamed))
            assert reply.status_code == 502, (kind, streamed, reply.text)
            assert reply.json()["error"]["code"] == "engine_failed"
            reply = patient.post(URL, json=chat(kind, stream=streamed, seed=1))
            assert (reply.status_code, SAYS in reply.text) == (200, True), (kind, streamed, reply.text)
            assert sum(body["messages"][0]["content"] == kind for body in server.asked) == (
                6 if streamed else 3
            )


GOOD = {
    "text": (whole(content=SAYS), events(SAYS, "!stop")),
    "text, and no finish reason": (whole(None, content=SAYS), events(SAYS)),
    "text, and no [DONE]": (whole("eos", content=SAYS), events(SAYS, "!eos", done=False)),
    "a tool": (whole("tool_calls", content=None, **TOOL), events(TOOL, "!tool_calls")),
    "a refusal": (whole(content=None, refusal="No."), events({"refusal": "No."}, "!stop")),
    "cut in a thought": (
        whole("length", content=None, reasoning_content="Hm."),
        events({"reasoning_content": "Hm."}, "!length"),
    ),
    "filtered later": (
        whole("content_filter", content="All is"),
        events("All is", "!content_filter"),
    ),
    "parts": (whole(content=[{"type": "text", "text": SAYS}]), events("\n\n", SAYS, "!stop", None)),
    "text, and no end of a line": (whole(content=SAYS), events(SAYS, "!stop").removesuffix("\n\n")),
    "with pings": (whole(content=SAYS), ': waits\n\ndata: {"type": "ping"}\n\n' + events(SAYS, "!stop")),
}
"""Replies of all kinds: whole, and as a stream."""


def test_a_reply_comes_back_byte_for_byte(serve: Any, serving: Any) -> None:
    def good(kind: str, streamed: bool) -> Fault:
        return stream(GOOD[kind][1]) if streamed else GOOD[kind][0]

    server = serve(pages={URL: lambda body: good(body["messages"][0]["content"], body["stream"])})
    with serving(endpoint(server)).client() as client:
        for kind, streamed in product(GOOD, (False, True)):
            reply = client.post(URL, json=chat(kind, stream=streamed))
            expected = str(good(kind, streamed).body)
            assert (reply.status_code, reply.text.rstrip()) == (200, expected.rstrip()), kind


APART = ":" + "x" * 500_000 + "\n\n"
"""A comment, as long as to have what is on either side of it arrive in different pieces."""
BEGUN = events("All is", done=False) + APART
BROKEN = {
    "the stream ended before the reply was whole": stream(BEGUN),
    "ended before the reply was whole": stream(BEGUN + 'data: {"choices": [{"delta": {"content": "it is dr'),
    "the connection broke": stream(BEGUN + 2 * APART, cut="middle"),
    "finish_reason 'error'": stream(BEGUN + events("!error")),
    "nothing but a thought": stream(
        events({"reasoning_content": "Hm."}, done=False) + APART + events("!stop")
    ),
}
"""Streams that break off, by what is said of them."""


def test_a_stream_that_breaks_off_ends_in_an_error(serve: Any, serving: Any) -> None:
    server = serve(pages={URL: lambda body: BROKEN[body["messages"][0]["content"]]})
    served = serving(endpoint(server, retries=6))
    official = openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0)
    with served.client() as client:
        for message in BROKEN:
            reply = client.post(URL, json=chat(message, stream=True))
            last = [line for line in reply.text.splitlines() if line][-1]
            assert message in json.loads(last.removeprefix("data: "))["error"]["message"]
            with pytest.raises(openai.APIError, match=message):
                list(official.chat.completions.create(**chat(message, stream=True)))
    assert len(server.asked) == 2 * len(BROKEN), "what was sent cannot be taken back"


def test_an_error_in_place_of_a_stream_gets_its_status(serve: Any, serving: Any) -> None:
    def page(body: dict[str, Any]) -> Fault:
        error = {"error": {"message": "no such tool", "code": int(body["messages"][0]["content"])}}
        return stream(f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n")

    server = serve(pages={URL: page})
    with serving(endpoint(server, retries=6)).client() as client:
        for status in (422, 502):
            reply = client.post(URL, json=chat(str(status), stream=True))
            assert (reply.status_code, reply.json()["error"]["message"]) == (status, "no such tool")
    assert len(server.asked) == 2


@pytest.mark.slow
def test_no_small_chat_of_120_is_answered_with_nothing(serve: Any, serving: Any) -> None:
    chance = random.Random(1)

    def page(body: dict[str, Any]) -> Fault:
        streams = bool(body.get("stream"))
        if chance.random() < 0.2:
            return ODD[chance.choice(list(ODD))][streams]
        return stream(events(SAYS, "!stop")) if streams else whole(content=SAYS)

    server = serve(pages={URL: page})
    served = serving(endpoint(server, retries=6))
    client = openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=1)
    for number in range(60):
        completion = client.chat.completions.create(**chat(f"Hi {number}"))
        assert completion.choices[0].message.content == SAYS
        pieces = client.chat.completions.create(**chat(f"Hi {number}", stream=True))
        texts = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
        assert "".join(texts) == SAYS


def test_an_engine_in_this_process_does_not_answer_with_nothing(serving: Any) -> None:
    with serving(ScriptedEngine([" \n", ""], window_tokens=2000)).client() as client:
        for streamed in (False, True):
            reply = client.post(URL, json=chat(stream=streamed))
            assert reply.status_code == 502
            assert "is empty" in reply.json()["error"]["message"]
