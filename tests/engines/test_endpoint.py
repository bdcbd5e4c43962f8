"""HTTP to an endpoint: bounds of time and bytes, addresses, certificates, redirects, secrets, messages."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import shutil
import socket
import ssl
import subprocess
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memagent.documents.tokens import estimate_tokens
from memagent.engines import ScriptedEngine, choose
from memagent.engines.endpoint import hide
from memagent.engines.openai import Connection, OpenAIEngine, connect
from memagent.engines.refusals import HttpReply, read_refusal, seconds_to_wait
from memagent.engines.wrappers import CallLimit
from memagent.errors import CallLimitError, EngineError, SettingsError, without_secrets
from memagent.settings import EngineSettings, load_settings
from memagent.types import Completion, Message, Model, Sampling
from server import Fault, Server, lasting_fault, refusal, scripted_faults

Serve = Callable[..., Server]
PROMPT = (Message("user", "Say hello."),)
MEGABYTE = 2**20


def ask(base_url: str, **options: Any) -> Completion:
    """One completion from a fresh engine; it is not tried again unless the options say so."""

    async def call() -> Completion:
        connection = Connection(base_url=base_url, **{"retries": 0, "first_delay_seconds": 0.01} | options)
        engine = OpenAIEngine(Model("test-model", estimate_tokens), connection)
        try:
            return await engine.complete(PROMPT, Sampling(64))
        finally:
            await engine.aclose()

    return asyncio.run(call())


def failed(base_url: str, **options: Any) -> str:
    """The message of the error that a call must end in."""
    with pytest.raises(EngineError) as caught:
        ask(base_url, **options)
    return str(caught.value)


def opened(base_url: str, name: str | None = None, **options: Any) -> Model:
    """What `connect` learns of the model."""

    async def call() -> Model:
        engine = await connect(name, Connection(base_url=base_url, **options))
        await engine.aclose()
        return engine.model

    return asyncio.run(call())


def hello(_: Any) -> str:
    return "Hello."


# Sizes


def test_a_compressed_bomb_is_given_up_before_it_is_unpacked(serve: Serve) -> None:
    bomb = gzip.compress(b" " * (256 * MEGABYTE), 1)
    server = serve(hello, lasting_fault(Fault(headers={"Content-Encoding": "gzip"}, body=bomb)))
    tracemalloc.start()
    try:
        assert "the reply is longer than 278,528 bytes" in failed(server.base_url)
        assert tracemalloc.get_traced_memory()[1] < 16 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_a_long_reply_that_claims_few_tokens_is_not_an_answer(serve: Serve) -> None:
    def huge(body: dict[str, Any]) -> dict[str, Any]:
        choice = {"message": {"content": "word " * 2 * MEGABYTE}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 5}}

    assert "the reply is longer than" in failed(serve(completion=huge).base_url)


def test_a_compressed_reply_is_read(serve: Serve) -> None:
    def compress(body: dict[str, Any]) -> Fault:
        content = json.dumps({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]})
        return Fault(headers={"Content-Encoding": "gzip"}, body=gzip.compress(content.encode()))

    server = serve(pages={"/v1/chat/completions": compress})
    assert ask(server.base_url).text == "Hello."


def test_a_list_of_models_without_end_is_given_up(serve: Serve) -> None:
    server = serve(listed=["x" * 17 * MEGABYTE])
    with pytest.raises(EngineError, match=r"did not list|longer than"):
        opened(server.base_url, retries=0)


# Connections


def test_connecting_has_its_own_timeout() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        started = time.monotonic()
        address = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        assert f"could not connect to {address} within 0.3 s" in failed(address, connect_seconds=0.3)
        assert time.monotonic() - started < 5
        for client in waiting:
            client.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A TLS server that nobody has a reason to trust, and its certificate."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    process = subprocess.run(
        ["openssl", *command.split(), "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder,
        capture_output=True,
    )
    assert process.returncode == 0, process.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with Server(hello, context=context) as server:
        yield server.base_url.replace("http://", "https://"), folder / "cert.pem"


def test_an_untrusted_certificate_is_reported_at_once(tls: tuple[str, Path]) -> None:
    started = time.monotonic()
    message = failed(tls[0], retries=6)
    assert time.monotonic() - started < 3
    assert f"the certificate of {tls[0]} is not trusted" in message and "SSL_CERT_FILE" in message


def test_a_certificate_that_is_named_is_trusted(
    tls: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))
    assert ask(tls[0]).text == "Hello."


def test_https_to_a_server_without_it_is_reported_at_once(serve: Serve) -> None:
    address = serve(hello).base_url.replace("http://", "https://")
    started = time.monotonic()
    assert "does it speak https, or is it http://?" in failed(address, retries=6)
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_host_gets_neither_key_nor_document(status: int, serve: Serve) -> None:
    other = serve(hello)
    moved = Fault(status, {"Location": f"{other.base_url}/chat/completions"})
    server = serve(hello, lasting_fault(moved))
    message = failed(server.base_url, api_key="secret", retries=6)
    assert f"{server.base_url} redirects to {other.base_url}" in message and "`base_url`" in message
    assert (len(server.asked), other.requests) == (1, [])


def test_a_redirect_on_the_same_host_is_named_and_not_followed(serve: Serve) -> None:
    server = serve(hello, lasting_fault(Fault(308, {"Location": "/llm/v1/chat/completions"})))
    host = server.base_url.removesuffix("/v1")
    assert f"redirects to {host}/llm/v1/chat/completions" in failed(server.base_url, retries=6)
    assert len(server.asked) == 1


def test_one_warning_says_what_is_waited_for(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "memagent")
    fault = refusal(503, "out of order", {"Retry-After": "0"})
    server = serve(hello, scripted_faults(fault, fault, fault))
    ask(server.base_url, retries=6)
    levels = [record.levelname for record in caplog.records if record.name == "memagent"]
    assert levels == ["WARNING", "INFO", "INFO"]
    assert "trying again in" in caplog.text and "(try 2 of 7, at" in caplog.text
    assert caplog.messages[0].endswith("HTTP 503: out of order")


# Addresses and the environment


@pytest.mark.parametrize(
    "address",
    [
        "http://[::1", "http://127.0.0.1:99999/v1", "http://localhost:70000/v1", "http://localhost:0/v1",
        "http://localhost:port/v1", "http://", "http:///v1", "http://a\nb/v1", "ftp://localhost/v1",
        "http://" + "a" * 70_000, "http://\u2603.example/v1",
    ],
)  # fmt: skip
def test_an_invalid_address_is_a_settings_error(address: str) -> None:
    with pytest.raises(SettingsError, match="write it as http://localhost:8000/v1") as caught:
        ask(address)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ALL_PROXY", "socks5://user:PASS@127.0.0.1:1080", r"pip install 'httpx2\[socks\]'"),
        ("ALL_PROXY", "gopher://user:PASS@127.0.0.1", "check ALL_PROXY"),
        ("HTTPS_PROXY", "http://user:PASS@[::1", "check ALL_PROXY"),
        ("SSL_CERT_FILE", "/missing.pem", r"'/missing\.pem' cannot be read"),
        ("SSL_CERT_FILE", __file__, "check SSL_CERT_FILE"),
    ],
)
def test_an_environment_that_cannot_be_used_is_a_settings_error(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=message) as caught:
        ask("https://localhost:8000/v1")
    assert "PASS" not in str(caught.value)


def test_a_direct_connection_sees_no_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    server = serve(hello)
    assert ask(server.base_url, direct=True).text == "Hello."
    assert "127.0.0.1:1" not in failed(server.base_url, connect_seconds=1.0).replace(server.base_url, "")


@pytest.mark.parametrize(
    "value",
    ["nan", "inf", "-inf", "1e400", "9" * 400, "", "soon", "Wed, 21 Oct 99999 07:28:00 GMT", "\u0664x"],
)
def test_an_invalid_retry_time_is_ignored(value: str) -> None:
    assert seconds_to_wait(value) is None


def test_a_time_to_wait_is_never_negative() -> None:
    assert seconds_to_wait("-5") == seconds_to_wait("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert seconds_to_wait("1.5") == 1.5


@pytest.mark.parametrize(
    "body",
    [
        *("[" * 100_000, '{"a":' * 100_000, "1e999", "9" * 5000, '{"choices": 1e999}', "\x00", ""),
        *("[]", "null", '"ok"', '{"choices": [{"message": {"content": 3}}]}'),
    ],
)
def test_odd_json_is_a_failure_and_no_defect(body: str, serve: Serve) -> None:
    server = serve(hello, scripted_faults(Fault(body=body or " ")))
    assert ask(server.base_url, retries=1).text == "Hello."


@pytest.mark.parametrize(
    "entry",
    [
        {"meta": [1]}, {"meta": "x"}, {"meta": {"n_ctx": "many"}}, {"max_model_len": -1},
        {"max_model_len": True}, {"max_model_len": 1e999}, {"context_length": 10**12}, {"parent": 0},
    ],
)  # fmt: skip
def test_an_invalid_window_is_unknown(entry: dict[str, Any], serve: Serve) -> None:
    server = serve(listed=[{"id": "test-model", **entry}, {"id": 7}, None, "x"])
    assert opened(server.base_url).window_tokens is None


@pytest.mark.parametrize("data", [{"a": 1}, "abc", 7, None, [[]], [{"id": 3}], ["test-model"]])
def test_a_list_of_the_wrong_kind_is_an_error_only_without_a_name(data: Any, serve: Serve) -> None:
    server = serve()
    server.model_page = Fault(body=json.dumps({"data": data}))
    assert opened(server.base_url, "mine").name == "mine"
    with pytest.raises(EngineError, match=r"did not list its models .*`model`"):
        opened(server.base_url)


def test_an_error_inside_a_reply_is_what_it_says(serve: Serve) -> None:
    body = json.dumps({"error": {"code": 429, "message": "the provider is busy"}})
    assert ask(serve(hello, scripted_faults(Fault(body=body))).base_url, retries=1).text == "Hello."
    body = json.dumps({"error": {"code": 403, "message": "moderated"}})
    server = serve(hello, lasting_fault(Fault(body=body)))
    assert "moderated" in failed(server.base_url, retries=6)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "a"}', "a"),
        (b'{"message": "a", "code": 400}', "a"),
        (b'{"detail": [{"msg": "a"}]}', "[{'msg': 'a'}]"),
        (b'{"error": true, "detail": "a"}', "a"),
        (b"plain words", "plain words"),
        (b"[1, 2]", "[1, 2]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error": {"message": "a \\ud800"}}', "a \ufffd"),
        (b"<!DOCTYPE html><title>Bad gateway</title>", "an HTML page, 'Bad gateway'"),
        (b"", ""),
    ],
)
def test_a_refusal_is_read_in_any_shape(body: bytes, message: str) -> None:
    assert read_refusal(HttpReply(502, body)).message == message


# What a new user meets


def test_a_refused_key_is_reported_as_such(serve: Serve) -> None:
    server = serve(hello, lasting_fault(refusal(401, "Incorrect API key provided")))
    message = failed(server.base_url, api_key="wrong", retries=6)
    assert "refused the key (HTTP 401: Incorrect API key provided)" in message
    assert "`api_key`" in message and "OPENAI_API_KEY" in message
    server.model_page = refusal(401, "Incorrect API key provided")
    with pytest.raises(EngineError, match="refused the key"):
        opened(server.base_url, api_key="wrong")
    with pytest.raises(EngineError, match=r"wants a key .* MEMAGENT_API_KEY .*sent only to OpenAI"):
        opened(server.base_url)


@pytest.mark.parametrize("name", [None, "mine"])
def test_a_web_page_is_not_an_endpoint(name: str | None, serve: Serve) -> None:
    server = serve()
    server.model_page = Fault(headers={"Content-Type": "text/html"}, body="<!doctype html><html>Hi</html>")
    pattern = r"is not an OpenAI-compatible endpoint \(it sent an HTML page\): does it end in /v1\?"
    with pytest.raises(EngineError, match=pattern):
        opened(server.base_url, name)


def test_an_address_without_its_v1_says_so(serve: Serve) -> None:
    server = serve()
    with pytest.raises(EngineError, match=r"lists none \(does it end in /v1\?\)"):
        opened(server.base_url.removesuffix("/v1"))
    assert "does it end in /v1?" in failed(server.base_url.removesuffix("/v1"))


def test_a_missing_model_is_reported_as_such(serve: Serve) -> None:
    server = serve(
        hello, lasting_fault(refusal(404, "The model `x` does not exist.", code="model_not_found"))
    )
    assert failed(server.base_url).endswith("check `model`")


# Secrets


def test_a_password_and_a_query_are_sent_and_never_shown(serve: Serve) -> None:
    server = serve(hello)
    address = server.base_url.replace("http://", "http://user:PASS@") + "?api_key=SECRET"
    assert ask(address).text == "Hello."
    request = server.requests[-1]
    assert request.path == "/v1/chat/completions?api_key=SECRET"
    assert request.headers["authorization"] == "Basic dXNlcjpQQVNT"
    messages = []
    for fault in (
        refusal(500, "a"),
        refusal(401, "b"),
        refusal(404, "c"),
        Fault(302, {"Location": "/?k=SECRET"}),
    ):
        server.faults = lasting_fault(fault)
        messages.append(failed(address))
    server.listed = []
    with pytest.raises(EngineError) as caught:
        opened(address)
    server.close()
    messages += [str(caught.value), failed(address)]
    assert all(server.base_url in message for message in messages)
    assert not any(secret in message for message in messages for secret in ("PASS", "SECRET", "user"))


def test_a_setting_that_is_refused_shows_no_password() -> None:
    with pytest.raises(SettingsError, match="base_url is 'ftp://host/v1'"):
        EngineSettings(base_url="ftp://user:PASS@host/v1")


def test_one_call_that_is_used_up_is_one_call() -> None:
    async def run() -> None:
        engine = CallLimit(ScriptedEngine(["a", "b"]), 1)
        await engine.complete(PROMPT, Sampling(9))
        await engine.complete(PROMPT, Sampling(9))

    with pytest.raises(CallLimitError, match=r"^the one call of `max_calls` is used up$"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://user:PASS@host:8000/v1", "http://host:8000/v1"),
        ("at http://user@host/v1?key=a&b=c#d now", "at http://host/v1?...#d now"),
        ("https://user:p@ss@host/", "https://host/"),
        ("http://user:pa/ss@host/v1", "http://host/v1"),
        ("socks5://u:p@h:1 and 'http://u:p@h'", "socks5://h:1 and 'http://h'"),
        ("http://host:80/@name", "http://host:80/@name"),
        ("mail me@home: what? yes", "mail me@home: what? yes"),
    ],
)
def test_what_an_address_shows(text: str, expected: str) -> None:
    assert without_secrets(text) == expected


@pytest.mark.parametrize("model", ["./models/typo", "~/typo", "models/typo.gguf", "../typo", "/typo"])
def test_a_mistyped_path_is_sent_nowhere(model: str) -> None:
    settings = EngineSettings(model=model, api_key="sk")
    try:
        assert choose(settings).engine == "llamacpp"  # which says that there is no such file
    except SettingsError as error:
        assert f"there is no model at {model}" in str(error)


def test_a_hosted_model_without_a_key_says_what_it_needs() -> None:
    with pytest.raises(SettingsError, match=r"OPENAI_API_KEY.*`base_url`"):
        choose(EngineSettings(model="gpt-4o"))


def test_a_local_engine_asks_no_endpoint() -> None:
    def engine(flags: dict[str, str], **environment: str) -> str:
        return choose(load_settings(flags, environment=environment).engine).engine

    local = {"engine": "llamacpp"}
    assert engine(local, OPENAI_BASE_URL="http://proxy/v1") == "llamacpp"
    with pytest.raises(SettingsError, match="drop one"):
        engine(local | {"base_url": "http://localhost:8000/v1"})
    from_hub = {"model": "hf:org/repo"}
    assert engine(from_hub, OPENAI_BASE_URL="http://proxy/v1") == "llamacpp"
    assert engine(from_hub | {"engine": "openai"}, OPENAI_BASE_URL="http://proxy/v1") == "openai"
    with pytest.raises(SettingsError, match="`model` is hf:org/repo, which needs none: drop one"):
        engine(from_hub | {"base_url": "http://localhost:8000/v1"})


KEY = "sk-SECRETKEY0123456789"


@pytest.mark.parametrize(
    "reply",
    [
        refusal(401, f"Incorrect API key provided: Bearer {KEY}"),
        refusal(400, f"{'x' * 280} {KEY} {KEY}"),
        refusal(500, f"upstream said: {KEY}"),
        refusal(200, f"{KEY} has no credit"),
        Fault(200, {}, json.dumps({"headers": {"Authorization": f"Bearer {KEY}"}})),
        Fault(200, {}, f"not JSON: {KEY}"),
        Fault(307, {"Location": f"/v1/elsewhere/{KEY}"}),
    ],
    ids=["refused", "at the cut", "failed", "no refusal", "echo", "not JSON", "redirect"],
)
def test_the_key_stands_in_no_error(reply: Fault, serve: Serve) -> None:
    server = serve(faults=lasting_fault(reply))
    message = failed(server.base_url, api_key=KEY, retries=0)
    assert "SECRET" not in message
    assert len(message) > 300 or "[key]" in message


def test_a_key_that_arrives_in_pieces_is_hidden_and_all_else_is_unharmed() -> None:
    text = b"s sk sk-sk-SECRET sk-SECRETKEY0123456789 sk-SECRETKEY012345678"

    async def cut(size: int) -> bytes:
        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(text), size):
                yield text[start : start + size]

        return b"".join([piece async for piece in hide(KEY.encode(), pieces())])

    for size in range(1, len(text) + 1):
        assert asyncio.run(cut(size)) == text.replace(KEY.encode(), b"[key]")


def test_a_dummy_key_is_a_word_that_a_reply_may_contain(serve: Serve) -> None:
    server = serve(lambda messages: "none of them")
    assert ask(server.base_url, api_key="none").text == "none of them"
