"""Find the usual model servers on this machine, and those of their models that can chat.

The search tries their ports on the loopback interface, all at once and within half a second. A server must
list its models as OpenAI's API does; any other web server is ignored.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.engines import looks_like_path
from memagent.engines.endpoint import Connection, Endpoint
from memagent.engines.gguf import catalogue
from memagent.engines.refusals import TransientError
from memagent.engines.replies import window_of
from memagent.errors import EngineError, SettingsError
from memagent.settings import EngineSettings

SECONDS = 0.5
"""The time limit of the whole search."""

_MAX_BYTES = 2**20
_LOAD_SECONDS = 600.0
_MIN_WINDOW_TOKENS = 2048  # assumed where Ollama does not say: it cuts longer prompts
_MAX_ASKED = 32

# Models for embedding, reranking or speech rather than chat: OpenAI's list does not mark them.
_NO_CHAT = re.compile(
    r"embed|rerank|(?:^|[-_/.])(?:bge|gte|e5|minilm|mpnet|sbert|bert|colbert|whisper|tts|clip|siglip)(?:[-_/.:]|$)"
    r"|all-minilm|paraphrase-|nomic-bert",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A kind of server and its default port."""

    name: str
    port: int

    @property
    def base_url(self) -> str:
        """The address of its OpenAI-compatible API."""
        return f"http://127.0.0.1:{self.port}/v1"


SERVER_KINDS = (
    ServerKind("Ollama", 11434),
    ServerKind("LM Studio", 1234),
    ServerKind("llama.cpp", 8080),
    ServerKind("vLLM", 8000),
)
"""In order of preference."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A model server that was found, its models that can chat, and their windows if it reports them."""

    kind: ServerKind
    models: tuple[str, ...]
    windows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Search:
    """The servers found, and the kinds at whose port something listens but did not answer in time."""

    servers: tuple[FoundServer, ...] = ()
    silent: tuple[ServerKind, ...] = ()


async def look_around(kinds: Sequence[ServerKind] | None = None, seconds: float | None = None) -> Search:
    """Find the model servers of these kinds on this machine, by default of `SERVER_KINDS`, in that order."""
    # Created before the clock starts, since they load modules, which takes a while.
    endpoints = [(kind, _endpoint(kind)) for kind in kinds or SERVER_KINDS]
    searches = {asyncio.ensure_future(_server_at(kind, endpoint)): kind for kind, endpoint in endpoints}
    done, late = await asyncio.wait(searches, timeout=SECONDS if seconds is None else seconds)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    servers = [server for task in searches if task in done and (server := task.result())]
    return Search(tuple(servers), tuple(kind for task, kind in searches.items() if task in late))


async def _server_at(kind: ServerKind, endpoint: Endpoint) -> FoundServer | None:
    """The server of a kind; None if there is none, or none with a model that can chat."""
    try:
        listed = await _json(endpoint, "models")
        models = {
            entry["id"]: entry
            for entry in (_dicts(listed, "data") if listed.get("object") == "list" else [])
            if isinstance(entry.get("id"), str)
            and entry["id"].isprintable()
            and entry.get("object") == "model"
            if not entry.get("parent")  # vLLM lists adapters too
        }
        chats, windows = await _ask_server(kind, endpoint, list(models))
    finally:
        await endpoint.aclose()
    chatting = tuple(name for name in models if chats.get(name, not _NO_CHAT.search(name)))
    windows |= {name: window for name in chatting if (window := window_of(models[name]))}
    return FoundServer(kind, chatting, windows) if chatting else None


async def _ask_server(
    kind: ServerKind, endpoint: Endpoint, models: list[str]
) -> tuple[dict[str, bool], dict[str, int]]:
    """Ask the server's own API which models can chat, and how large the windows of some are."""
    chats: dict[str, bool] = {}
    windows: dict[str, int] = {}
    if kind.name == "Ollama":
        names = models[:_MAX_ASKED]
        replies = await asyncio.gather(*(_json(endpoint, "../api/show", {"model": name}) for name in names))
        for name, entry in zip(names, replies, strict=True):
            if isinstance(able := entry.get("capabilities"), list):
                chats[name] = "completion" in able
    elif kind.name == "LM Studio":
        for entry in _dicts(await _json(endpoint, "../api/v0/models"), "data"):
            if isinstance(entry.get("type"), str):
                name = str(entry.get("id"))
                chats[name] = entry["type"] in ("llm", "vlm")
                if window := window_of({"context_length": entry.get("loaded_context_length")}):
                    windows[name] = window
    return chats, windows


async def _json(endpoint: Endpoint, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object at `path`; an empty one for anything else."""
    try:
        if body is None:
            reply = await endpoint.get(path, _MAX_BYTES, _LOAD_SECONDS)
        else:
            reply = await endpoint.post(path, json.dumps(body).encode(), _MAX_BYTES, _LOAD_SECONDS)
        sent = json.loads(reply.body) if reply.status == 200 else {}
    except (TransientError, EngineError, ValueError, RecursionError):
        return {}
    return sent if isinstance(sent, dict) else {}


def _dicts(sent: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a list that was sent under this name."""
    listed = sent.get(name)
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _endpoint(kind: ServerKind) -> Endpoint:
    return Endpoint(Connection(kind.base_url, direct=True))


def should_search(settings: EngineSettings) -> bool:
    """Whether the settings leave the model open, so that a search is worthwhile.

    A named model is looked for by its name, unless it is a file or an API key shows that it is hosted.
    """
    if not settings.discover or settings.engine != "auto" or settings.base_url:
        return False
    if (model := settings.model) is None:
        return settings.adapter is None
    file = model.endswith(".gguf") or model.startswith("hf:") or catalogue.find_cached(model)
    return not (file or looks_like_path(model)) and not settings.api_key


def choose_server(search: Search, model: str | None) -> tuple[FoundServer, str] | None:
    """The first server with the model, or with any if none is named; and the model's name there."""
    for server in search.servers:
        if model is None:
            return server, server.models[0]
        if name := next((alias for alias in (model, f"{model}:latest") if alias in server.models), None):
            return server, name
    return None


async def settings_for(server: FoundServer, model: str, settings: EngineSettings) -> EngineSettings:
    """The settings to read with a model of a server that was found; the user's key is not sent there.

    Ollama silently cuts prompts that exceed its window, so it is asked for the window, which makes it load
    the model. Raises `SettingsError` if it does not load it.
    """
    window = settings.window_tokens or server.windows.get(model)
    if window is None and server.kind.name == "Ollama":
        window = await _ollama_window(server.kind, model)
    return settings.replace(
        engine="openai", base_url=server.kind.base_url, model=model, api_key=None, window_tokens=window
    )


async def _ollama_window(kind: ServerKind, model: str) -> int:
    """The window that Ollama gives a model; its smallest default where it does not say."""
    endpoint = _endpoint(kind)
    try:
        loaded = await _json(endpoint, "../api/generate", {"model": model, "stream": False})
        if not loaded.get("done"):
            raise SettingsError(
                f"Ollama does not load {model}: try `ollama run {model}`, or name another model with `model`"
            )
        running = _dicts(await _json(endpoint, "../api/ps"), "models")
    finally:
        await endpoint.aclose()
    for entry in running:
        if model in (entry.get("name"), entry.get("model")):
            return window_of(entry) or _MIN_WINDOW_TOKENS
    return _MIN_WINDOW_TOKENS
