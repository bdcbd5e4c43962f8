"""Who is let in, and with how much."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from function_engine import FunctionEngine
from memagent.errors import SettingsError
from memagent.server.app import listen
from memagent.server.limits import Keys, Limits, check_origins, read_keys
from waiting import wait_for

KEY = "secret-key-0123456789"
URL = "/v1/chat/completions"
CHAT = {"model": "memagent", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """A server's keys, of which KEY is one."""
    (tmp_path / "keys").write_text(f"another-key-9876543210\n{KEY}\n")
    return read_keys(tmp_path / "keys")


def raw(served: Any, data: bytes) -> bytes:
    """What comes back for bytes."""
    host, port = served.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


def test_only_known_keys_are_let_in(serving: Any, keys: Keys) -> None:
    with serving(keys=keys).client() as client:
        for header in ({}, {"Authorization": "Bearer wrong-key-0123456789"}, {"Authorization": KEY},
                       {"Authorization": f"Basic {KEY}"}):  # fmt: skip
            for method, path in (("GET", "/v1/models"), ("POST", URL), ("GET", "/metrics"), ("GET", "/docs"),
                                 ("GET", "/nothing")):  # fmt: skip
                reply = client.request(method, path, headers=header)
                assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert client.get("/health").status_code == 200
        assert client.post(URL, json=CHAT, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


def test_a_server_without_keys_is_for_its_own_machine(serving: Any) -> None:
    with serving().client() as client:
        assert client.get("/v1/models", headers={"Host": "localhost:1"}).status_code == 200
        assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
        for origin in ("http://evil.example", "null"):  # the second is that of a frame in a sandbox
            assert client.get("/v1/models", headers={"Origin": origin}).status_code == 403
        own = client.base_url.netloc.decode()
        assert client.get("/v1/models", headers={"Origin": f"http://{own}"}).status_code == 200
        # What a web page may send without asking is not taken as JSON.
        plain = {"Content-Type": "text/plain"}
        reply = client.post(URL, content=json.dumps(CHAT), headers=plain)
        assert reply.status_code == 400
        assert "the header Content-Type: application/json" in reply.json()["error"]["message"]
    with pytest.raises(SettingsError, match=r"`host` 0\.0\.0\.0 can be reached .* with `keys`"):
        listen("0.0.0.0", 0, Keys())
    with listen("0.0.0.0", 0, Keys((b"x",))) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # else asyncio leaves Nagle's delay on


def test_web_pages_of_other_places_are_let_in_if_they_are_named(
    serving: Any, keys: Keys, tmp_path: Path
) -> None:
    friend, stranger = {"Origin": "http://localhost:3000"}, {"Origin": "http://evil.example"}
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for name, known in (("open", Keys()), ("closed", keys)):
        served = serving(
            keys=known, limits=Limits(origins=("http://localhost:3000",)), folder=tmp_path / name
        )
        with served.client(headers={"Authorization": f"Bearer {KEY}"}) as client:
            response = client.options(URL, headers={**friend, **preflight, "Authorization": ""})
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert "authorization" in response.headers["access-control-allow-headers"].lower()
            reply = client.post(URL, json=CHAT, headers=friend)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (
                200,
                friend["Origin"],
            )
            refused = client.get("/v1/models", headers=stranger)
            assert "access-control-allow-origin" not in refused.headers
            assert refused.status_code == (403 if known == Keys() else 200)
            assert client.options(URL, headers={**stranger, **preflight}).status_code == 400
    with serving(folder=tmp_path / "plain").client() as client:
        assert client.options(URL, headers={**friend, **preflight}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["*", "localhost:3000", "http://a.example/path", "ftp://a.example", "null"]
)
def test_an_invalid_origin_is_refused(origin: str, keys: Keys) -> None:
    with pytest.raises(SettingsError, match="`allow_origin`"):
        check_origins([origin], Keys())
    assert check_origins(["*", "https://a.example:8"], keys) == ("*", "https://a.example:8")


def test_a_body_that_is_too_large_is_refused_whether_or_not_its_length_is_declared(serving: Any) -> None:
    served = serving(limits=Limits(body_bytes=10_000, upload_bytes=20_000))
    with served.client() as client:
        long = json.dumps(CHAT | {"user": "x" * 5_000_000}).encode()
        head = {"Content-Type": "application/json"}
        for content in (long, (long[start : start + 1000] for start in range(0, len(long), 1000))):
            reply = client.post(URL, content=content, headers=head)
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
            assert "upload long documents as files, or start" in reply.json()["error"]["message"]
        assert client.post("/v1/files", files={"file": ("a", b"x" * 19_000)}).status_code == 200
        reply = client.post("/v1/files", files={"file": ("a", b"x" * 200_000)})
        assert reply.status_code == 413 and "bytes: start the server" in reply.json()["error"]["message"]
        assert client.get("/v1/files").json()["data"][0]["bytes"] == 19_000


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_request"),
        (b"{", "invalid_request"),
        (b"[]", "invalid_request"),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b'{"model": "memagent", "messages": []}', "invalid_request"),
        (b'{"model": "memagent", "messages": [{"role": "user", "content": "\\ud800"}]}', "invalid_request"),
        (b'{"model": "memagent", "messages": [{"role": "king", "content": "x"}]}', "invalid_request"),
        (b'{"model": "memagent", "messages": [{"role": "user"}]}', None),
        (b'{"model": "memagent", "max_tokens": 1' + b"0" * 5000 + b"}", None),
    ],
)
def test_malformed_requests_are_refused_in_the_shape_of_openai(
    content: bytes, code: str | None, serving: Any
) -> None:
    with serving().client() as client:
        reply = client.post(URL, content=content, headers={"Content-Type": "application/json"})
        body = reply.json()
    if b'"role": "user"}' in content:  # it fits, and the model may make of it what it likes
        assert reply.status_code == 200
        return
    assert reply.status_code == 400
    assert body["error"]["message"] and set(body["error"]) == {"message", "type", "param", "code"}
    assert code is None or body["error"]["code"] == code


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URL, '{"model": "memagent", "messages": [%s]}'),
        (URL, '{"model": "memagent", "messages": [{"role": "user", "content": [%s]}]}'),
        (URL, '{"model": "memagent", "messages": [{"role": "user", "tool_calls": [%s]}]}'),
        (URL, '{"model": "memagent", "messages": [{"role": "user"}], "tools": [%s]}'),
        (URL, '{"model": "memagent", "messages": [{"role": "user"}], "stop": [%s]}'),
        ("/v1/reads", '{"problem": "What?", "files": [%s]}'),
    ],
)
def test_a_list_with_much_that_is_wrong_is_refused_for_the_first(path: str, body: str, serving: Any) -> None:
    content = body % ", ".join(["1"] * 9_000)
    with serving().client() as client:
        reply = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert ".0" in message and ".1" not in message


def test_requests_that_are_not_http_are_refused(serving: Any) -> None:
    assert raw(serving(), b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_requests_of_one_key_are_bounded(serving: Any, keys: Keys) -> None:
    served = serving(keys=keys, limits=Limits(requests=2))
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 9\r\n\r\n"
    host, port = served.address.removeprefix("http://").split(":")
    waiting = [socket.create_connection((host, int(port))) for _ in range(2)]
    for connection in waiting:
        connection.sendall(head.encode())
    with served.client() as client:
        mine, others = ({"Authorization": f"Bearer {key}"} for key in (KEY, "another-key-9876543210"))
        wait_for(lambda: client.get("/v1/models", headers=mine).status_code == 429)
        assert client.get("/v1/models", headers=mine).headers["retry-after"] == "1"
        assert client.get("/v1/models", headers=others).status_code == 200
        assert client.get("/metrics", headers=mine).status_code == 200
        for connection in waiting:
            connection.close()
        wait_for(lambda: client.get("/v1/models", headers=mine).status_code == 200)


def test_logs_have_no_document_and_no_key(serving: Any, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def fail(prompt: str) -> None:
        raise RuntimeError(f"a defect that quotes {prompt}")

    served = serving(FunctionEngine(fail), keys=keys)
    head = {"Authorization": f"Bearer {KEY}"}
    with served.client(headers=head) as client:
        private = {"role": "user", "content": "my private words"}
        assert client.post(URL, json=CHAT | {"messages": [private]}).status_code == 500
        assert client.post(URL, content=b'{"my private words').status_code == 400
        assert client.get("/v1/my-private-words?key=my+private").status_code == 404
        assert client.get("/health", headers={"Authorization": "Bearer wrong-secret"}).status_code == 200
        read = client.post("/v1/reads", json={"problem": "my private?", "document": "my private words"})
        with client.stream("GET", f"/v1/reads/{read.json()['id']}/events") as reply:
            reply.read()
        counted = client.get("/metrics").text
    log = "\n".join(
        str(record.getMessage()) for record in caplog.records if not record.name.startswith("httpc")
    )
    log = "\n".join(line for line in log.splitlines() if not line.startswith("HTTP Request: "))
    assert "a defect in memagent: RuntimeError" in log
    for secret in ("private", KEY, "wrong-secret"):
        assert secret not in log
        assert secret not in counted


def test_keys_that_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for text, message in (("", "has no key"), ("# none\n", "has no key"), ("short", "16 characters"),
                          ("a key with many spaces", "16 characters")):  # fmt: skip
        file.write_text(text)
        with pytest.raises(SettingsError, match=message):
            read_keys(file)
    file.write_bytes(b"caf\xe9")
    with pytest.raises(SettingsError, match="is not text in UTF-8"):
        read_keys(file)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_keys(tmp_path / "none")
