"""What one client may take of what all share: memory, the disk, the event loop, files, the engine."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import AfterValidator, BaseModel

from function_engine import FunctionEngine
from memagent.server.bodies import ParsingRoute
from memagent.server.limits import Keys, Limits, read_keys
from memagent.server.routes import reads
from memagent.settings import EngineSettings
from memagent.types import Completion, Engine, Usage
from server import Fault, facts_document
from waiting import wait_for

ONE, OTHER, THIRD = "key-one-0123456789", "key-two-9876543210", "key-three-0123456789"
URL = "/v1/chat/completions"
HELLO = {"model": "memagent", "messages": [{"role": "user", "content": "Hi"}]}
MIB = 2**20


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """The keys of a server."""
    (tmp_path / "keys").write_text(f"{ONE}\n{OTHER}\n{THIRD}\n")
    return read_keys(tmp_path / "keys")


def bearer(key: str) -> dict[str, str]:
    """The header of a key."""
    return {"Authorization": f"Bearer {key}"}


def long_chat(number: int = 0) -> dict[str, Any]:
    """A chat that is read."""
    turns = [
        {"role": "user", "content": facts_document(9, seed=number)},
        {"role": "user", "content": "Which?"},
    ]
    return {"model": "memagent", "messages": turns, "memagent": {}}


def held(behind: Engine, go: threading.Event, **known: Any) -> FunctionEngine:
    """An engine whose calls wait until they may go on."""

    async def hold(_: str) -> None:
        while not go.is_set():  # noqa: ASYNC110 from another thread
            await asyncio.sleep(0.005)

    return FunctionEngine(hold, behind, **known)


# What was cached


CACHED = Usage(1000, 5, 900)


@pytest.mark.parametrize("several", [True, False])
def test_no_key_of_several_hears_what_was_cached(several: bool, serving: Any, facts: Any, keys: Keys) -> None:
    engine = FunctionEngine(lambda prompt: Completion("FACT-1: one", usage=CACHED), facts())
    served = serving(engine, keys=keys if several else Keys(keys.digests[:1]))
    with served.client(headers=bearer(ONE)) as client:
        chats = [client.post(URL, json=body).text for body in (HELLO, long_chat())]
        streams = [client.post(URL, json=body | STREAMED).text for body in (HELLO, long_chat())]
        read = client.post("/v1/reads", json={"problem": "Which?", "document": facts_document(9)}).json()[
            "id"
        ]
        heard = [client.get(f"/v1/reads/{read}/{part}").text for part in ("events", "result", "journal")]
        counted = client.get("/metrics").text
    for text in (*chats, *streams, *heard):
        counts = re.findall(r'"cached_tokens": ?(\d+)', text)
        assert counts and (set(counts) == {"0"}) is several, text
    assert ('memagent_tokens_total{kind="cached"} 0.0' in counted) is several


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def test_no_key_of_several_gets_more_than_openais_fields_of_a_forwarded_reply(
    serve: Any, serving: Any, keys: Keys, tmp_path: Path
) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10,
             "prompt_tokens_details": {"cached_tokens": 8}, "prompt_cache_hit_tokens": 8}  # fmt: skip
    telling = {"usage": usage, "timings": {"cache_n": 8, "prompt_ms": 0.1}}

    def page(body: dict[str, Any]) -> Fault:
        if not body.get("stream"):
            message = {"role": "assistant", "content": "Hello"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return Fault(body=json.dumps({"choices": [choice], **telling}, indent=1))
        choice = {"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}
        events = [{"choices": [choice], "timings": {"cache_n": 8}}, {"choices": [], **telling}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return Fault(headers={"Content-Type": "text/event-stream"}, body=text)

    server = serve(pages={URL: page})
    engine = EngineSettings(base_url=server.base_url, model="test-model", retries=0)
    for several in (True, False):
        known = keys if several else Keys(keys.digests[:1])
        served = serving(engine, keys=known, folder=tmp_path / str(several))
        with served.client(headers=bearer(ONE)) as client:
            replies = [client.post(URL, json=HELLO | options).text for options in ({}, STREAMED)]
        for text in replies:
            assert "Hello" in text and '"completion_tokens": 1' in text
            assert ("cache" not in text and "timings" not in text) is several, text
        assert replies[1].endswith("data: [DONE]\n\n")


# Memory and the disk


@contextmanager
def unfinished(served: Any, key: str, count: int, length: int) -> Iterator[list[socket.socket]]:
    """Requests whose bodies lack their last byte."""
    host, port = served.address.removeprefix("http://").split(":")
    head = (
        f"POST {URL} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    )
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.create_connection((host, int(port)))) for _ in range(count)]
        for connection in sockets:
            connection.settimeout(20)
            connection.sendall(head.encode() + b'"' + b"x" * (length - 2))
        yield sockets


@pytest.mark.slow
def test_unfinished_bodies_are_bounded_per_key_and_in_all(serving: Any, keys: Keys) -> None:
    served, length = serving(keys=keys, limits=Limits(body_bytes=MIB // 4)), MIB // 4
    with served.client() as client, unfinished(served, ONE, 16, length):

        def status(key: str) -> int:
            return int(client.post(URL, json=HELLO, headers=bearer(key)).status_code)

        wait_for(lambda: measured(client, "request_bytes") == 16 * (length - 1))
        assert (status(ONE), status(OTHER), status(THIRD)) == (429, 200, 200)
        with unfinished(served, OTHER, 16, length):
            wait_for(lambda: measured(client, "request_bytes") == 32 * (length - 1))
            assert (status(ONE), status(OTHER), status(THIRD)) == (429, 429, 503)
        wait_for(lambda: status(OTHER) == 200)
        refused = client.post(URL, json=HELLO, headers=bearer(ONE))
        assert refused.json()["error"]["code"] == "too_many_bytes" and refused.headers["retry-after"] == "5"
    with served.client() as client:
        wait_for(lambda: status(ONE) == 200)


def test_a_keys_abandoned_chats_count_as_its_own_and_evict_no_others(
    serving: Any, facts: Any, keys: Keys
) -> None:
    engine = held(facts(), threading.Event())
    served = serving(engine, keys=keys, limits=Limits(stored_bytes=20_000, keep_alive_seconds=0.05))
    served.store.max_reads = 5
    with served.client() as client:

        def abandon(key: str, number: int) -> None:
            with client.stream(
                "POST", URL, json=long_chat(number) | {"stream": True}, headers=bearer(key)
            ) as reply:
                assert reply.status_code == 200
                next(reply.iter_raw())

        abandon(OTHER, 99)
        for number in range(12):
            abandon(ONE, number)
        wait_for(lambda: states(served) == {"cancelled"})
        stored = rows(served, "SELECT owner, count(*), sum(bytes) FROM reads GROUP BY owner")
        by_owner = {owner: (count, size) for owner, count, size in stored}
        assert len(by_owner) == 2, "each key has its own"
        others, mine = (by_owner[keys.owner(key.encode())] for key in (OTHER, ONE))
        assert others[0] == 1 and 1 < mine[0] <= 6 and mine[1] < 25_000
        assert client.get("/v1/reads", headers=bearer(ONE)).json()["data"] == []
        file = {"file": ("a.txt", b"x" * 20_000)}
        assert client.post("/v1/files", files=file, headers=bearer(ONE)).status_code == 200
        full = client.post(URL, json=long_chat(50), headers=bearer(ONE))
        assert (full.status_code, full.json()["error"]["code"]) == (429, "storage_full")
        assert rows(served, "SELECT count(*) FROM reads") == [(1,)], "files stay, chats make room"


def rows(served: Any, query: str) -> list[Any]:
    """What the server's database has."""
    with closing(sqlite3.connect(served.store.folder / "server.sqlite")) as database:
        return database.execute(query).fetchall()


def states(served: Any) -> set[str]:
    """The states of all reads."""
    return {state for (state,) in rows(served, "SELECT state FROM reads")}


# The database


def test_another_programs_lock_on_the_database_holds_nothing_up(serving: Any, facts: Any) -> None:
    go = threading.Event()
    engine = held(facts(), go)
    served = serving(engine)
    with served.client() as client:
        file = client.post("/v1/files", files={"file": ("a.txt", b"FACT-1: one")}).json()["id"]
        background = client.post("/v1/reads", json={"problem": "Which?", "files": [file]}).json()["id"]
        answers: list[Any] = []
        chatting = threading.Thread(
            target=lambda: answers.append(served.client().post(URL, json=long_chat()))
        )
        chatting.start()
        wait_for(lambda: engine.busy == 2)
        with closing(sqlite3.connect(served.store.folder / "server.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            go.set()
            started = time.monotonic()
            chatting.join(20)
            assert answers[0].status_code == 200, "an answer that was paid for is told"
            refused = client.post("/v1/reads", json={"problem": "Which?", "files": [file]})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
            assert "another program is writing" in refused.json()["error"]["message"]
            assert client.post(URL, json=long_chat(1)).status_code == 503
            for path in ("/health", "/v1/files", f"/v1/files/{file}/content", f"/v1/reads/{background}"):
                assert client.get(path).status_code == 200, path
            assert client.post(URL, json=HELLO).status_code == 200
            assert time.monotonic() - started < 4
            other.execute("ROLLBACK")
        wait_for(lambda: client.get(f"/v1/reads/{background}").json()["state"] == "done")
        wait_for(lambda: rows(served, "SELECT count(*) FROM reads WHERE key IS NOT NULL") == [(0,)])


# The event loop


CROWDED = {
    "turns": b'{"role":"user","content":"a"},',
    "parts": b'{"type":"text","text":"a"},',
    "lists": b"[],",
    "numbers": b"1,",
    "strings, some with quotes": b'"\\"","a",',
}


def crowded(kind: str) -> bytes:
    """A request of 16 MB full of small values."""
    items = CROWDED[kind] * (16_000_000 // len(CROWDED[kind])) + CROWDED[kind].rstrip(b",")
    if kind == "turns":
        return b'{"model":"memagent","messages":[' + items + b"]}"
    if kind == "parts":
        return b'{"model":"memagent","messages":[{"role":"user","content":[' + items + b"]}]}"
    return b'{"model":"memagent","messages":[{"role":"user","content":"Hi"}],"x":[' + items + b"]}"


@pytest.mark.parametrize(
    "kind", ["turns", *(pytest.param(kind, marks=pytest.mark.slow) for kind in CROWDED if kind != "turns")]
)
def test_a_large_body_of_small_values_is_refused_as_it_comes(kind: str, serving: Any) -> None:
    body, json_head = crowded(kind), {"Content-Type": "application/json"}
    with serving().client() as client:
        reply = client.post(URL, content=body, headers=json_head)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "too_many_values")
        pieces = (body[start : start + 997] for start in range(0, len(body) // 16, 997))  # cut anywhere
        assert (
            client.post(URL, content=pieces, headers=json_head).json()["error"]["code"] == "too_many_values"
        )


def test_what_a_text_has_is_not_counted(serving: Any) -> None:
    text = 'It says: {"a": [1, 2, "\\"]} \\ ' * 30_000
    body = {"problem": "What?", "document": text}
    with serving().client() as client:
        for content in (json.dumps(body), json.dumps(body, ensure_ascii=False)):
            for size in (10_000_000, 999):
                pieces = (content[start : start + size].encode() for start in range(0, len(content), size))
                reply = client.post("/v1/reads", content=pieces, headers={"Content-Type": "application/json"})
                assert reply.status_code == 201, reply.text
                read = reply.json()["id"]
                assert client.get(f"/v1/reads/{read}/text").text == text
                client.delete(f"/v1/reads/{read}")


NOTED: list[int] = []


def note(text: str) -> str:
    """Note the thread that parses."""
    NOTED.append(threading.get_ident())
    return text


class Noted(BaseModel):
    """A body that tells where it was parsed."""

    text: Annotated[str, AfterValidator(note)]


def test_bodies_are_parsed_beside_the_event_loop(serving: Any) -> None:
    app = FastAPI()
    app.router.route_class = ParsingRoute

    @app.post("/")
    async def handle(body: Noted) -> int:
        return threading.get_ident()

    async def post() -> int:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as client:
            loop: int = (await client.post("http://x/", json={"text": "Hi"})).json()
            return loop

    assert [asyncio.run(post())] != NOTED and len(NOTED) == 1
    routes = [*serving().app.routes, *reads.routes]
    taking = [route for route in routes if getattr(route, "body_field", None)]
    assert {route.path for route in taking} == {URL, "/v1/reads"}
    assert all(isinstance(route, ParsingRoute) for route in taking)


@pytest.mark.slow
def test_a_thousand_files_of_one_name_are_read_and_no_more(serving: Any) -> None:
    with serving().client() as client:
        file = client.post("/v1/files", files={"file": ("a.txt", b"FACT-1: one. ")}).json()["id"]
        parts = [{"type": "file", "file": {"file_id": file}}] * 1001
        reply = client.post(URL, json={"model": "memagent", "messages": [{"role": "user", "content": parts}]})
        assert (reply.status_code, "more than 1,000 files" in reply.text) == (400, True)
        assert client.post("/v1/reads", json={"problem": "Which?", "files": [file] * 1001}).status_code == 400
        reply = client.post("/v1/reads", json={"problem": "Which?", "files": [file] * 1000})
        read = reply.json()["id"]
        assert client.get(f"/v1/reads/{read}/text").text.count("FACT-1") == 1000


# Connections


@pytest.mark.slow
def test_idle_connections_and_many_reads_do_not_use_up_the_files(serve: Any, tmp_path: Path) -> None:
    """Under `ulimit -n 256`: idle connections give way, reads take turns, and the log stays short."""
    engine = serve()
    command = [
        *(sys.executable, "-m", "memagent", "serve", "--port", "0", "--data", str(tmp_path / "data")),
        *(
            "--base-url",
            engine.base_url,
            "--model",
            "test-model",
            "--retries",
            "0",
            "--workflow",
            "overwrite",
        ),
        *("--chunk-tokens", "120", "--memory-tokens", "500", "--answer-tokens", "500"),
        *("--problem-tokens", "100"),
    ]
    log = tmp_path / "log"
    limited = ["bash", "-c", 'ulimit -n 256 && exec "$@"', "bash", *command]
    with log.open("w") as log_file, ExitStack() as open_ones:
        process = subprocess.Popen(limited, stdout=subprocess.DEVNULL, stderr=log_file)
        open_ones.callback(process.wait)
        open_ones.callback(process.kill)
        wait_for(lambda: " at http://" in log.read_text(), process)
        address = log.read_text().split(" at ")[1].split("/v1")[0]
        host, port = address.removeprefix("http://").split(":")

        def idle(data: bytes) -> None:
            connection = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=20))
            connection.sendall(data)

        for data in (b"", b"POST /v1/chat/completions HTT"):
            for _ in range(130):
                idle(data)
        with ThreadPoolExecutor(50) as clients:
            replies = list(clients.map(lambda number: ask(address, number), range(40)))
        for _ in range(130):
            idle(b"")
        assert httpx2.get(f"{address}/health", trust_env=False).status_code == 200
    assert {status for status, _ in replies} == {200}, replies
    assert all("FACT-8" in text for _, text in replies)
    assert len(log.read_text().splitlines()) < 5, log.read_text()


def ask(address: str, number: int) -> tuple[int, str]:
    """Ask a long chat."""
    reply = httpx2.post(address + URL, json=long_chat(number), timeout=120, trust_env=False)
    return reply.status_code, reply.text


# The engine


@pytest.mark.slow
def test_the_keys_take_turns_at_the_engine(serving: Any, facts: Any, keys: Keys) -> None:
    go = threading.Event()
    engine = held(facts(), go, calls=1)
    served = serving(engine, keys=keys)

    def chat(key: str, text: str, clients: ThreadPoolExecutor) -> Future[httpx2.Response]:
        body = {"model": "memagent", "messages": [{"role": "user", "content": text}]}
        client = served.client(headers=bearer(key))
        return clients.submit(client.post, URL, json=body)

    with ThreadPoolExecutor(40) as clients, served.client(headers=bearer(OTHER)) as client:
        read = {"problem": "Which?", "document": facts_document(9)}
        for key in (ONE, ONE, ONE, OTHER):
            assert client.post("/v1/reads", json=read, headers=bearer(key)).status_code == 201
        wait_for(lambda: running(served) == 2)  # one of each, though the engine takes one call at a time
        busy = [chat(ONE, f"busy {number}", clients) for number in range(30)]
        wait_for(lambda: measured(client, "requests_in_flight") > 30)
        other = chat(OTHER, "other", clients)
        wait_for(lambda: measured(client, "requests_in_flight") > 31)
        go.set()
        assert {future.result().status_code for future in (*busy, other)} == {200}
    assert engine.busiest == 1
    before = engine.prompts[: engine.prompts.index("other")]
    assert sum(prompt.startswith("busy") for prompt in before) < 5


def running(served: Any) -> int:
    """How many reads have begun."""
    ((count,),) = rows(served, "SELECT count(*) FROM reads WHERE state = 'running'")
    return int(count)


def measured(client: httpx2.Client, name: str) -> float:
    """What one of the server's gauges says."""
    text = client.get("/metrics", headers=bearer(THIRD)).text
    match = re.search(rf"^memagent_{name} (\S+)$", text, re.MULTILINE)
    assert match
    return float(match[1])


def deep(levels: int) -> dict[str, Any]:
    """A schema of so many levels."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return {"type": "json_schema", "json_schema": {"name": "deep", "schema": schema}}


BUSY = [
    ({"n_probs": 40_000}, "n_probs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"prompt_logprobs": 100}, "prompt_logprobs"),
    ({"ignore_eos": True}, "ignore_eos"),
    ({"response_format": deep(60)}, "response_format has more than 32 levels"),
    ({"json_schema": deep(60)}, "json_schema has more than 32 levels"),
    ({"guided_json": [deep(60)]}, "guided_json has more than 32 levels"),
    ({"grammar": "x" * 300_000}, "grammar has more than 200,000 characters"),
    ({"logit_bias": {str(number): 1 for number in range(50_000)}}, "logit_bias has more than 200,000"),
]


def test_parameters_that_keep_the_engine_busy_are_refused(serve: Any, serving: Any) -> None:
    server = serve()
    engine = EngineSettings(base_url=server.base_url, model="test-model", retries=0)
    harmless = {"n_probs": 5, "ignore_eos": False, "response_format": deep(10), "top_k": 3}
    with serving(engine).client() as client:
        for values, message in BUSY:
            reply = client.post(URL, json=HELLO | values)
            assert (reply.status_code, message in reply.json()["error"]["message"]) == (400, True), message
        assert not server.asked
        assert client.post(URL, json=HELLO | harmless).status_code == 200
    assert server.asked == [HELLO | harmless | {"model": "test-model"}]
