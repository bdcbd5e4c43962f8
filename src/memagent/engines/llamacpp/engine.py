"""Run a GGUF model in this process, on llama.cpp's own server core (xllamacpp).

The server listens on a free port of the loopback interface, for this process alone (its key is
random). The OpenAI engine talks to it, so requests, retries and overflows are handled in one place.
There are no settings for single layers.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import os
import secrets
import struct
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memagent.engines.adapters import find_adapter, find_trained, name_with
from memagent.engines.forwarding import Forwarded
from memagent.engines.gguf import catalogue, hub
from memagent.engines.gguf.files import read_window
from memagent.engines.llamacpp.machine import available_cores, memory_bytes
from memagent.engines.openai import Connection, OpenAIEngine
from memagent.engines.refusals import Refusal, RefusedError
from memagent.errors import EngineError, SettingsError, reason
from memagent.settings import DEFAULT_WINDOW_TOKENS, EngineSettings
from memagent.text import sendable
from memagent.types import Completion, Message, Model, Sampling

# A cancelled call ends with the current batch, which llama.cpp would make four times as long. On a CPU,
# smaller ones read more slowly: see docs/models.md.
_CPU_BATCH_TOKENS = 512
_STORED_SHARE = 16  # the cache of earlier prompts takes one sixteenth of the machine's memory
_ASSUMED_MEMORY_BYTES = 8 * 2**30
_SMALL_MODEL_BYTES = 512 * 2**20

# Sample the model's own distribution, shaped only by temperature and top_p. Every option is
# spelled out because a GGUF may carry its own defaults.
_PLAIN_SAMPLING = {
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
}


class LlamaCppEngine:
    """Completes chats with a model in this process; made by `open_llamacpp`.

    What a prompt shares with earlier ones is not computed again. That changes llama.cpp's rounding,
    so a near tie may be decided differently when a greedy call is repeated.
    """

    def __init__(self, server: Any, engine: OpenAIEngine, loopback: Loopback) -> None:
        self._servers, self._engine, self._loopback = [server], engine, loopback

    @property
    def model(self) -> Model:
        """The model, named after its GGUF file and adapter, with its window and its own tokenizer."""
        return self._engine.model

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Like `OpenAIEngine.complete`, with the same errors, and `EngineError` once the engine is closed."""
        self._check_open()
        return await self._engine.complete(messages, sampling)

    @asynccontextmanager
    async def forward(self, body: Mapping[str, Any]) -> AsyncIterator[Forwarded]:
        """See `Forwards.forward`."""
        self._check_open()
        if others := _parts_beside_text(body):  # llama.cpp reports them as its own error, status 500
            message = f"{self.model.name} completes texts only: leave out parts of type {', '.join(others)}"
            raise RefusedError(Refusal(400, message, "not_supported", "messages"))
        async with self._engine.forward(body) as reply:
            yield reply

    async def aclose(self) -> None:
        """Stop the server and free the model; a call in flight ends with its batch. Safe to repeat."""
        await self._engine.aclose()
        self._loopback.close()
        # Dropping the last reference ends the server's own threads, which can take a moment.
        await asyncio.to_thread(self._servers.clear)

    def _check_open(self) -> None:
        if not self._servers:
            raise EngineError(f"the engine of {self.model.name} is closed: open another")


class Loopback:
    """Other requests to the server, over one connection that threads take turns to use."""

    def __init__(self, address: str, key: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._lock = threading.Lock()
        self._closed = False

    def count(self, text: str) -> int:
        """Count the tokens of a text, taking special tokens in it as plain text. Raises `EngineError`."""
        body = {"content": sendable(text), "add_special": False, "parse_special": False}
        return len(self._post("/tokenize", body)["tokens"])

    def wait_until_ready(self) -> None:
        """Wait until the server's loop has begun, some time after its first replies. Raises `EngineError`."""
        self._post("/completion", {"prompt": "a", "n_predict": 0, "cache_prompt": False})

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed: open another")
            try:
                try:
                    return self._reply(path, json.dumps(body))
                except (http.client.HTTPException, OSError):  # the server closes connections idle for 5 s
                    self._connection.close()
                    return self._reply(path, json.dumps(body))
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                raise EngineError(f"llama.cpp's server in this process does not reply: {error}") from error

    def _reply(self, path: str, body: str) -> Any:
        self._connection.request("POST", path, body, self._headers)
        reply = self._connection.getresponse()
        content = reply.read()
        if reply.status != http.client.OK:
            raise EngineError(f"llama.cpp refused {path} (HTTP {reply.status}): {content[:200]!r}")
        return json.loads(content)


def _parts_beside_text(body: Mapping[str, Any]) -> list[str]:
    """The types of the message parts in a chat that are not text, such as image_url."""
    contents = [message.get("content") for message in body["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sorted({part["type"] for part in parts} - {"text"})


async def open_llamacpp(settings: EngineSettings) -> LlamaCppEngine:
    """Load the GGUF that the settings name, or the default model.

    Raises `SettingsError` for a file that is missing or that llama.cpp cannot load, for an adapter
    that does not fit it, and for a window longer than the one that the model was trained for.
    """
    adapter = await asyncio.to_thread(find_adapter, settings, "llamacpp")
    path = await asyncio.to_thread(find_file, settings.model)
    window = usable_window(path, settings.window_tokens)
    slots = settings.concurrency or 1
    key = secrets.token_hex(16)
    name = name_with(path.stem, adapter)
    threads = settings.threads or available_cores()
    trained = find_trained(path.stem, adapter)
    verdicts = catalogue.find_verdicts(path, adapter)
    start = ServerStart(path, window, slots, threads, key, adapter.path if adapter else None, name, verdicts)
    server = await asyncio.to_thread(_serve, start)
    loopback = Loopback(server.listening_address, key)
    # A server that is stopped before its loop has begun never ends, so wait until it has done something.
    await asyncio.to_thread(loopback.wait_until_ready)
    file = f"{path.name}, {path.stat().st_size} bytes"
    judges = verdicts.name if verdicts else ""
    model = Model(name, loopback.count, file, window, slots, trained, judges=judges)
    connection = Connection(
        base_url=f"{server.listening_address}/v1",
        api_key=key,
        concurrency=slots,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
        extra=_PLAIN_SAMPLING | (_with_adapter(0.0) if verdicts else {}),
        verdict=_with_adapter(1.0) if verdicts else None,
        verbatim=True,
        direct=True,  # the environment's proxies must neither carry nor see loopback traffic
    )
    return LlamaCppEngine(server, OpenAIEngine(model, connection), loopback)


def _with_adapter(scale: float) -> dict[str, Any]:
    """The field that scales the adapter for verdicts.

    A request without it would reuse what the adapter has computed for the same beginning.
    """
    return {"lora": [{"id": 0, "scale": scale}]}


@dataclass(frozen=True, slots=True)
class ServerStart:
    """How to start a server; each of the `slots` has a window of its own.

    Replies call the model by `name`, not by the path of its file. The adapter for `verdicts` is used only by
    requests that ask for it.
    """

    path: Path
    window_tokens: int
    slots: int
    threads: int
    key: str
    adapter: Path | None = None
    name: str = ""
    verdicts: Path | None = None


def _serve(start: ServerStart) -> Any:
    xllamacpp = import_xllamacpp()
    try:
        return xllamacpp.Server(parameters(xllamacpp, start))
    except RuntimeError as error:
        raise SettingsError(f"llama.cpp cannot load {start.path}: {_explain(start)}") from error


def parameters(xllamacpp: Any, start: ServerStart) -> Any:
    """llama.cpp's parameters. Comments give the reasons for those that affect speed."""
    params = xllamacpp.CommonParams()
    params.model.path = str(start.path)
    params.model_alias = {start.name or start.path.stem}
    if start.adapter:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(start.adapter), 1.0)]
    if start.verdicts:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(start.verdicts), 0.0)]
    params.n_ctx = start.window_tokens * start.slots  # llama.cpp wants the total of all slots
    params.n_parallel = start.slots
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [start.key]
    # A small model computes a token before a second thread has woken up.
    small = start.path.stat().st_size < _SMALL_MODEL_BYTES
    params.cpuparams.n_threads = 1 if small else start.threads
    params.cpuparams_batch.n_threads = start.threads
    params.verbosity = -1  # silent
    params.ui = params.endpoint_slots = False
    # A slot keeps its last prompt, and earlier ones are stored: in our prompts the chunk stands first, so the
    # next question about a document need not compute its chunks again.
    params.cache_ram_mib = (memory_bytes() or _ASSUMED_MEMORY_BYTES) // _STORED_SHARE // 2**20
    if not any("GPU" in device["type"].name for device in xllamacpp.get_device_info()):
        params.fit_params = False  # divides layers among devices; takes longer than loading a small model
        params.n_batch = params.n_ubatch = _CPU_BATCH_TOKENS
    return params


def import_xllamacpp() -> Any:
    """Import xllamacpp so that its threads sleep while they wait for each other.

    By default OpenMP makes them spin. Where another process wants the core, that makes two threads
    many times slower than one. The library reads the variable when it is loaded, so it is set only then.
    """
    name = "OMP_WAIT_POLICY"
    given = os.environ.get(name)
    os.environ[name] = given or "passive"
    try:
        return importlib.import_module("xllamacpp")
    finally:
        if given is None:
            del os.environ[name]


def _explain(start: ServerStart) -> str:
    """What llama.cpp may have refused, since it does not say."""
    adapter = (
        f"the adapter {start.adapter} may be damaged, or made for another model; " if start.adapter else ""
    )
    return (
        f"{adapter}the file may be cut short or damaged (download it again), its architecture may be newer "
        "than xllamacpp (update it), or it may need more memory than there is (lower `window_tokens` or "
        "`concurrency`, or use a smaller model)"
    )


def find_file(model: str | None) -> Path:
    """The GGUF file for a model's name. Raises `SettingsError` if there is none."""
    if model is None:
        return catalogue.find_default()
    if model.startswith(hub.PREFIX):
        return hub.fetch(model)
    path = catalogue.find_cached(model) or Path(model).expanduser()
    if not path.is_file():
        raise SettingsError(f"there is no file {path}: name a .gguf file with `model`")
    return path


def usable_window(path: Path, requested: int | None) -> int:
    """The window to use, in tokens. Raises `SettingsError` for a bad file or too long a window."""
    try:
        trained = read_window(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {reason(error)}") from error
    except (ValueError, KeyError, struct.error) as error:
        raise SettingsError(
            f"{path} is not a GGUF file, or is damaged: download it again, or name another with `model`"
        ) from error
    if requested and trained and requested > trained:
        raise SettingsError(
            f"window_tokens is {requested}, but the model in {path} was trained for {trained}: "
            "lower `window_tokens`"
        )
    return requested or min(trained or DEFAULT_WINDOW_TOKENS, DEFAULT_WINDOW_TOKENS)
