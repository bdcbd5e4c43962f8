"""Model servers on this machine: which of the usual ones listen, and which of their models can chat.

They are looked for on the loopback interface alone, side by side, within half a second. What answers there
must list models as OpenAI's API does: any other web server is passed over.
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
from memagent.engines.models import window_of
from memagent.engines.refusals import TransientError
from memagent.errors import EngineError, SettingsError
from memagent.settings import EngineSettings

SECONDS = 0.5
"""How long all of the looking takes at most."""

_MOST_BYTES = 2**20
_LOAD_SECONDS = 600.0
_LEAST_WINDOW_TOKENS = 2048  # what Ollama gives a model where it does not tell: it cuts what is longer
_MOST_ASKED = 32

# Models that turn texts into vectors, or sort them: no server says so in OpenAI's list.
_NO_CHAT = re.compile(
    r"embed|rerank|(?:^|[-_/.])(?:bge|gte|e5|minilm|mpnet|sbert|bert|colbert|whisper|tts|clip|siglip)(?:[-_/.:]|$)"
    r"|all-minilm|paraphrase-|nomic-bert",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server of a kind listens by default."""

    name: str
    port: int

    @property
    def base_url(self) -> str:
        """The address of its OpenAI-compatible API."""
        return f"http://127.0.0.1:{self.port}/v1"


PLACES = (
    Place("Ollama", 11434),
    Place("LM Studio", 1234),
    Place("llama.cpp", 8080),
    Place("vLLM", 8000),
)
"""In the order in which they are preferred."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A model server that was found, its models that can chat, and their windows where it tells them."""

    place: Place
    models: tuple[str, ...]
    windows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Search:
    """What was found, and the places where something listens that did not answer in time."""

    servers: tuple[FoundServer, ...] = ()
    silent: tuple[Place, ...] = ()


async def look_around(places: Sequence[Place] | None = None, seconds: float | None = None) -> Search:
    """The model servers on this machine, those at `places` or at the usual ones, in their order."""
    endpoints = [
        (place, _endpoint(place)) for place in places or PLACES
    ]  # what is loaded for them takes a while
    asked = {asyncio.ensure_future(_server_at(place, endpoint)): place for place, endpoint in endpoints}
    done, late = await asyncio.wait(asked, timeout=SECONDS if seconds is None else seconds)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    found = [server for task in asked if task in done and (server := task.result())]
    return Search(tuple(found), tuple(place for task, place in asked.items() if task in late))


async def _server_at(place: Place, endpoint: Endpoint) -> FoundServer | None:
    """The server at a place; None for nothing, and for what is none of ours."""
    try:
        listed = await _json(endpoint, "models")
        entries = listed.get("data") if listed.get("object") == "list" else None
        models = {
            it["id"]: it
            for it in (entries if isinstance(entries, list) else [])
            if isinstance(it, dict)
            and isinstance(it.get("id"), str)
            and it["id"].isprintable()
            and it.get("object") == "model"
            and not it.get("parent")  # vLLM lists adapters too
        }
        chats, windows = await _told(place, endpoint, list(models))
    finally:
        await endpoint.aclose()
    chatting = tuple(name for name in models if chats.get(name, not _NO_CHAT.search(name)))
    windows |= {name: window for name in chatting if (window := window_of(models[name]))}
    return FoundServer(place, chatting, windows) if chatting else None


async def _told(
    place: Place, endpoint: Endpoint, models: list[str]
) -> tuple[dict[str, bool], dict[str, int]]:
    """What the server's own pages tell: of models whether they complete chats, and of some the window."""
    chats: dict[str, bool] = {}
    windows: dict[str, int] = {}
    if place.name == "Ollama":
        names = models[:_MOST_ASKED]
        shown = await asyncio.gather(*(_json(endpoint, "../api/show", {"model": it}) for it in names))
        for name, it in zip(names, shown, strict=True):
            if isinstance(able := it.get("capabilities"), list):
                chats[name] = "completion" in able
    elif place.name == "LM Studio":
        listed = (await _json(endpoint, "../api/v0/models")).get("data")
        for it in listed if isinstance(listed, list) else []:
            if isinstance(it, dict) and isinstance(it.get("type"), str):
                name = str(it.get("id"))
                chats[name] = it["type"] in ("llm", "vlm")
                if window := window_of({"context_length": it.get("loaded_context_length")}):
                    windows[name] = window
    return chats, windows


async def _json(endpoint: Endpoint, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object that a page holds; an empty one for all that is none."""
    try:
        if body is None:
            reply = await endpoint.get(path, _MOST_BYTES, _LOAD_SECONDS)
        else:
            reply = await endpoint.post(path, json.dumps(body).encode(), _MOST_BYTES, _LOAD_SECONDS)
        sent = json.loads(reply.body) if reply.status == 200 else {}
    except (TransientError, EngineError, ValueError, RecursionError):
        return {}
    return sent if isinstance(sent, dict) else {}


def _endpoint(place: Place) -> Endpoint:
    return Endpoint(Connection(place.base_url, direct=True))


def wanted(settings: EngineSettings) -> bool:
    """Whether the settings leave it open which model is meant, so that it is worth looking around.

    A model that is named is looked for by that name, unless it is a file, or hosted: there is an API key.
    """
    if not settings.discover or settings.engine != "auto" or settings.base_url:
        return False
    if (model := settings.model) is None:
        return settings.adapter is None
    local = model.endswith(".gguf") or model.startswith("hf:") or looks_like_path(model)
    return not local and not settings.api_key


def chosen(search: Search, model: str | None) -> tuple[FoundServer, str] | None:
    """The first server that has the model, or any if none is named; and the model's name there."""
    for server in search.servers:
        if model is None:
            return server, server.models[0]
        if name := next((it for it in (model, f"{model}:latest") if it in server.models), None):
            return server, name
    return None


async def settings_for(server: FoundServer, model: str, settings: EngineSettings) -> EngineSettings:
    """The settings to read with a model of a server that was found; the user's key is not sent there.

    Ollama cuts what is longer than its window, and does not say so: it is asked for the window, for which it
    loads the model. Raises `SettingsError` if it does not load it.
    """
    window = settings.window_tokens or server.windows.get(model)
    if window is None and server.place.name == "Ollama":
        window = await _ollama_window(server.place, model)
    return settings.changed(
        engine="openai", base_url=server.place.base_url, model=model, api_key=None, window_tokens=window
    )


async def _ollama_window(place: Place, model: str) -> int:
    """The window that Ollama gives a model; the least that it ever gave where it does not tell."""
    endpoint = _endpoint(place)
    try:
        loaded = await _json(endpoint, "../api/generate", {"model": model, "stream": False})
        if not loaded.get("done"):
            raise SettingsError(
                f"Ollama does not load {model}: try `ollama run {model}`, or name another model with `model`"
            )
        running = (await _json(endpoint, "../api/ps")).get("models")
    finally:
        await endpoint.aclose()
    for it in running if isinstance(running, list) else []:
        if isinstance(it, dict) and model in (it.get("name"), it.get("model")):
            return window_of(it) or _LEAST_WINDOW_TOKENS
    return _LEAST_WINDOW_TOKENS
