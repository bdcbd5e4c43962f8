"""A GGUF model in this process, on llama.cpp's own server core (xllamacpp).

The server listens on a free port of the loopback interface, for this process alone (its key is
drawn at random), and the OpenAI engine talks to it: requests, retries and overflows are handled
there and nowhere else.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memagent.config import Settings
from memagent.engines import embedded
from memagent.engines.openai import Connection, OpenAIEngine
from memagent.errors import SettingsError
from memagent.types import Completion, Message, Model, Sampling

_MOST_WINDOW_TOKENS = 8192  # the paper's; memory for keys and values grows with the window
# The model's own distribution: nothing cut off or penalised but by temperature and top_p. A prompt
# whose beginning comes from the cache is computed in other batches, which rounds otherwise and can
# change a greedy reply: without the cache the same prompt always gets the same reply.
_PLAIN_SAMPLING = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "cache_prompt": False}


class LlamaCppEngine:
    """Completes chats with an embedded model; made by `open_engine`."""

    def __init__(self, server: Any, engine: OpenAIEngine) -> None:
        self._server = server
        self._engine = engine

    @property
    def model(self) -> Model:
        """The GGUF file's name, its window and its tokenizer."""
        return self._engine.model

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """As `OpenAIEngine.complete`; raises the same errors."""
        return await self._engine.complete(messages, sampling)

    async def aclose(self) -> None:
        """Stop the server and free the model."""
        await self._engine.aclose()
        server, self._server = self._server, None
        await asyncio.to_thread(_free, server)


async def open_engine(settings: Settings) -> LlamaCppEngine:
    """Load the GGUF that the settings name, or the embedded model.

    Raises `SettingsError` for a file that is missing or that llama.cpp cannot load.
    """
    path = Path(settings.model) if settings.model else await asyncio.to_thread(embedded.default_model)
    slots = settings.concurrency or 1
    key = secrets.token_hex(16)
    window = settings.window_tokens or min(
        await asyncio.to_thread(_trained_window, path), _MOST_WINDOW_TOKENS
    )
    server = await asyncio.to_thread(_start, path, window * slots, slots, settings.threads, key)
    counter = _Tokenizer(server.listening_address, key)
    model = Model(path.stem, window, counter.count, f"{path.name}, {path.stat().st_size} bytes")
    connection = Connection(
        base_url=f"{server.listening_address}/v1",
        api_key=key,
        concurrency=slots,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
        extra=_PLAIN_SAMPLING,
    )
    return LlamaCppEngine(server, OpenAIEngine(model, connection))


def _start(path: Path, context_tokens: int, slots: int, threads: int | None, key: str) -> Any:
    import xllamacpp  # type: ignore[import-untyped]

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context_tokens
    params.n_parallel = slots
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
    # Writing a token is a chain of tiny steps, at each of which threads that outnumber the free cores
    # wait for one another, to a standstill on a busy machine. Reading a prompt is not so fragile.
    params.cpuparams.n_threads = threads or max(1, _cores() // 2)
    params.cpuparams_batch.n_threads = threads or _cores()
    params.verbosity = -1
    try:
        return xllamacpp.Server(params)
    except Exception as error:  # whatever the native code makes of a bad file
        raise SettingsError(f"llama.cpp cannot load {path}: {error}") from error


def _trained_window(path: Path) -> int:
    """The context length that a GGUF says its model was trained for."""
    import gguf

    try:
        fields = gguf.GGUFReader(path).fields
        architecture = str(fields["general.architecture"].contents())
        return int(fields[f"{architecture}.context_length"].contents())
    except OSError as error:
        raise SettingsError(f"the model {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the reader raises whatever a broken file leads it to
        raise SettingsError(f"{path} is no complete GGUF file: {error or type(error).__name__}") from error


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free(server: Any) -> None:
    """Drop the last reference, in a thread: the native server ends its own threads first."""
    del server


class _Tokenizer:
    """Counts tokens with the server's own tokenizer, over one connection."""

    def __init__(self, address: str, key: str) -> None:
        self._host = urlsplit(address).netloc
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(self._host)
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        """Tokens of a text, without special ones."""
        body = json.dumps({"content": text.encode("utf-8", "replace").decode(), "add_special": False})
        with self._lock:
            self._connection.request("POST", "/tokenize", body, self._headers)
            return len(json.loads(self._connection.getresponse().read())["tokens"])
