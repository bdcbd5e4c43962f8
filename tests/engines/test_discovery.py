"""Model servers on this machine are found, within half a second, and nothing else is taken for one."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from memagent.engines import discovery
from memagent.engines.discovery import (
    FoundServer,
    Search,
    ServerKind,
    choose_server,
    look_around,
    settings_for,
    should_search,
)
from memagent.errors import SettingsError
from memagent.settings import EngineSettings
from server import Fault, Server

Serve = Callable[..., Server]
GENEROUS = 20.0  # on a busy machine; what hangs is given less


def model(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", **fields}


def make_kind(server: Server, name: str = "vLLM") -> ServerKind:
    return ServerKind(name, int(server.base_url.rpartition(":")[2].removesuffix("/v1")))


def search(*places: ServerKind, seconds: float = GENEROUS) -> Search:
    return asyncio.run(look_around(places, seconds))


def models(result: Search) -> list[tuple[str, tuple[str, ...]]]:
    return [(server.kind.name, server.models) for server in result.servers]


def ollama(serve: Serve, able: Mapping[str, list[str] | None], context: int | None = 4096) -> Server:
    """A server that answers Ollama's own pages, too: what each model is able to, and what is running."""

    def show(body: dict[str, Any]) -> Fault:
        capabilities = able[body["model"]]
        return Fault(
            body=json.dumps(
                {"details": {}} | ({} if capabilities is None else {"capabilities": capabilities})
            )
        )

    def running(body: dict[str, Any]) -> Fault:
        loaded = [request.body["model"] for request in server.requests if request.path == "/api/generate"]
        fields = {} if context is None else {"context_length": context}
        return Fault(
            body=json.dumps({"models": [{"name": name, "model": name, **fields} for name in loaded]})
        )

    server = serve(
        listed=[model(name) for name in able],
        pages={
            "/api/show": show,
            "/api/generate": lambda body: Fault(body=json.dumps({"done": body["model"] != "broken"})),
            "/api/ps": running,
        },
    )
    return server


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_servers_are_found_in_the_order_of_the_places(serve: Serve) -> None:
    first = serve(listed=[model("reader-7b", max_model_len=8192), model("adapter", parent="reader-7b")])
    second = ollama(serve, {"qwen2.5:7b": ["completion", "tools"]})
    result = search(make_kind(second, "Ollama"), ServerKind("nothing", 9), make_kind(first))
    assert models(result) == [("Ollama", ("qwen2.5:7b",)), ("vLLM", ("reader-7b",))]
    assert result.servers[1].windows == {"reader-7b": 8192} and result.silent == ()


@pytest.mark.parametrize(
    "page",
    [
        Fault(headers={"Content-Type": "text/html"}, body="<html><title>Jenkins</title></html>"),
        Fault(body="[]"),
        Fault(body='"models"'),
        Fault(body='{"data": [{"id": "a", "object": "model"}]}'),
        Fault(body='{"object": "list", "data": {"id": "a"}}'),
        Fault(body='{"object": "list", "data": []}'),
        Fault(body='{"object": "list", "data": [{"id": "a"}, {"id": 1, "object": "model"}, 7]}'),
        Fault(body='{"object": "list", "data": [{"id": "a\\u001b[2J", "object": "model"}]}'),
        Fault(status=401, body='{"object": "list", "data": [{"id": "a", "object": "model"}]}'),
        Fault(status=302, headers={"Location": "https://example.invalid/v1/models"}),
        Fault(status=302, headers={"Location": "/v1/models"}),
        Fault(body="[" * 100_000),
        Fault(body=b"\xff\xfe\x00"),
        Fault(body='{"object": "list", "data": [' + '{"id": "a", "object": "model"}, ' * 50_000 + "]}"),
        Fault(cut="before"),
        Fault(cut="middle", body='{"object": "list", "data": [{"id": "a", "object": "model"}]}'),
    ],
)  # fmt: skip
def test_another_web_server_is_not_an_endpoint(serve: Serve, page: Fault) -> None:
    server = serve()
    server.model_page = page
    assert search(make_kind(server)) == Search()


def test_a_hanging_endpoint_delays_no_other(serve: Serve, listener: socket.socket) -> None:
    hanging = ServerKind("llama.cpp", listener.getsockname()[1])
    server = serve(listed=[model("reader-7b")])
    result = search(hanging, make_kind(server), seconds=1.5)
    assert models(result) == [("vLLM", ("reader-7b",))] and result.silent == (hanging,)
    assert discovery.SECONDS == 0.5


def test_one_that_answers_late_is_not_waited_for(serve: Serve) -> None:
    server = serve()
    server.model_page = Fault(delay_seconds=60.0, body="{}")
    began = time.monotonic()
    assert search(make_kind(server), seconds=0.3).silent == (make_kind(server),)
    assert time.monotonic() - began < 30.0


def test_proxies_are_not_asked(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = serve(listed=[model("reader-7b")])
    assert models(search(make_kind(server))) == [("vLLM", ("reader-7b",))]


@pytest.mark.parametrize(
    "name",
    ["nomic-embed-text:latest", "all-minilm:l6-v2", "mxbai-embed-large", "bge-m3:latest", "BAAI/bge-large-en",
     "intfloat/e5-base", "text-embedding-nomic-embed-text-v1.5", "Qwen/Qwen3-Embedding-0.6B",
     "Qwen/Qwen3-Reranker-4B", "whisper-large", "openai/clip-vit"],
)  # fmt: skip
def test_a_model_that_cannot_chat_is_not_taken(serve: Serve, name: str) -> None:
    assert search(make_kind(serve(listed=[model(name)]))) == Search()
    assert search(make_kind(ollama(serve, {name: None}), "Ollama")) == Search()


@pytest.mark.parametrize("name", ["bertha-7b", "gemma3:4b", "clippy:7b", "mistral-small3.2", "gpt-oss:20b"])
def test_a_name_that_only_looks_so_is_taken(serve: Serve, name: str) -> None:
    assert models(search(make_kind(serve(listed=[model(name)])))) == [("vLLM", (name,))]


def test_what_the_server_says_goes_before_the_name(serve: Serve) -> None:
    server = ollama(serve, {"my-notes": ["embedding"], "embedded-chat": ["completion"]})
    assert models(search(make_kind(server, "Ollama"))) == [("Ollama", ("embedded-chat",))]
    listing = {
        "data": [
            {"id": "a", "type": "embeddings"},
            {"id": "b", "type": "vlm", "loaded_context_length": 4096},
            {"type": 3},
            9,
        ]
    }
    studio = serve(
        listed=[model("a"), model("b")],
        pages={"/api/v0/models": lambda body: Fault(body=json.dumps(listing))},
    )
    result = search(make_kind(studio, "LM Studio"))
    assert models(result) == [("LM Studio", ("b",))] and result.servers[0].windows == {"b": 4096}


def settled(server: Server, kind: str, name: str, **fields: Any) -> EngineSettings:
    (found_server,) = search(make_kind(server, kind)).servers
    return asyncio.run(settings_for(found_server, name, EngineSettings(**fields)))


def test_a_key_is_not_sent_to_a_server_that_was_found(serve: Serve) -> None:
    server = serve(listed=[model("reader-7b", max_model_len=8192)])
    settings = settled(server, "vLLM", "reader-7b", api_key="top-secret", retries=2)
    assert (settings.api_key, settings.base_url, settings.model) == (None, server.base_url, "reader-7b")
    assert settings.window_tokens == 8192 and settings.retries == 2
    assert not any("authorization" in request.headers for request in server.requests)


@pytest.mark.parametrize(("context", "window"), [(4096, 4096), (32768, 32768), (None, 2048)])
def test_ollama_is_asked_for_the_window_that_it_cuts_at(
    serve: Serve, context: int | None, window: int
) -> None:
    server = ollama(serve, {"qwen2.5:7b": ["completion"]}, context=context)
    assert settled(server, "Ollama", "qwen2.5:7b").window_tokens == window
    assert settled(server, "Ollama", "qwen2.5:7b", window_tokens=999).window_tokens == 999


def test_a_model_that_ollama_cannot_load_is_reported(serve: Serve) -> None:
    with pytest.raises(SettingsError, match="ollama run broken"):
        settled(ollama(serve, {"broken": ["completion"]}), "Ollama", "broken")


def test_what_is_looked_for() -> None:
    assert should_search(EngineSettings()) and should_search(EngineSettings(model="qwen2.5:7b"))
    for fields in (
        {"discover": False}, {"engine": "llamacpp"}, {"base_url": "http://a/v1"}, {"model": "a.gguf"},
        {"adapter": "a"}, {"model": "./folder"}, {"model": "hf:o/r"}, {"model": "gpt-4o", "api_key": "sk"},
    ):  # fmt: skip
        assert not should_search(EngineSettings(**fields))  # type: ignore[arg-type]


def test_the_first_server_with_the_model_is_chosen() -> None:
    first, second = ServerKind("Ollama", 1), ServerKind("vLLM", 2)
    result = Search(
        (FoundServer(first, ("a:latest", "b:7b"), {}), FoundServer(second, ("c", "b:7b"), {})),
    )
    choices = {name: choose_server(result, name) for name in (None, "a", "b:7b", "c", "d")}
    assert {name: choice and (choice[0].kind.name, choice[1]) for name, choice in choices.items()} == {
        None: ("Ollama", "a:latest"),
        "a": ("Ollama", "a:latest"),
        "b:7b": ("Ollama", "b:7b"),
        "c": ("vLLM", "c"),
        "d": None,
    }
    assert choose_server(Search(), None) is None
