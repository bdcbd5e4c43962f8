"""A GGUF model in this process, on llama.cpp's own server core (xllamacpp).

The server listens on a free port of the loopback interface, for this process alone (its key is
drawn at random), and the OpenAI engine talks to it: requests, retries and overflows are handled
there and nowhere else. Settings of single layers are left out.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.engines.adapters import adapter_of, misfit, name_with, trained_with
from memagent.engines.forwarding import Forwarded, RefusedError
from memagent.engines.gguf_header import trained_window
from memagent.engines.llamacpp import embedded, hub
from memagent.engines.llamacpp.loopback import Loopback
from memagent.engines.openai import Connection, OpenAIEngine
from memagent.engines.refusals import Refusal
from memagent.errors import EngineError, SettingsError
from memagent.settings import DEFAULT_WINDOW_TOKENS, EngineSettings
from memagent.types import Completion, Message, Model, Sampling

# A cancelled call ends with the batch in work. On a CPU this size is as fast as llama.cpp's 2048,
# which takes half a minute for a long prompt when the machine is busy.
_CPU_BATCH_TOKENS = 128

_SMALL_MODEL_BYTES = 512 * 2**20

# The model's own distribution: nothing cut off or penalised but by temperature and top_p. All is
# spelled out because a GGUF may bring its own defaults along.
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

    With one call in flight (the default), greedy completions are repeatable to the bit. Calls side
    by side share batches, and llama.cpp rounds by the batch: a near tie may then fall otherwise.
    """

    def __init__(self, server: Any, engine: OpenAIEngine, loopback: Loopback) -> None:
        self._servers = [server]
        self._engine = engine
        self._loopback = loopback

    @property
    def model(self) -> Model:
        """The GGUF file's stem with its adapter, its window and its own tokenizer."""
        return self._engine.model

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """As `OpenAIEngine.complete`; raises the same errors, and `EngineError` once it is closed."""
        if not self._servers:
            raise EngineError(f"the engine of {self.model.name} is closed: open another")
        return await self._engine.complete(messages, sampling)

    @asynccontextmanager
    async def forward(self, body: Mapping[str, Any]) -> AsyncIterator[Forwarded]:
        """See `Forwards.forward`."""
        if not self._servers:
            raise EngineError(f"the engine of {self.model.name} is closed: open another")
        if others := _parts_beside_text(body):  # llama.cpp tells them as a fault of its own, status 500
            said = f"{self.model.name} completes texts only: leave out parts of type {', '.join(others)}"
            raise RefusedError(Refusal(400, said, "not_supported", "messages"))
        try:
            async with self._engine.forward(body) as reply:
                yield reply
        finally:
            self._loopback.forget()  # a read's next prompt must not build on what the chat left

    async def aclose(self) -> None:
        """Stop the server and free the model; a call in flight ends with its batch. May be repeated."""
        await self._engine.aclose()
        self._loopback.close()
        # Dropping the last reference ends the server's own threads, which can take a moment.
        await asyncio.to_thread(self._servers.clear)


def _parts_beside_text(body: Mapping[str, Any]) -> list[str]:
    """What the messages of a chat have beside texts: the types of their other parts, such as image_url."""
    contents = [message.get("content") for message in body["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sorted({part["type"] for part in parts} - {"text"})


async def open_llamacpp(settings: EngineSettings) -> LlamaCppEngine:
    """Load the GGUF that the settings name, or the embedded model.

    Raises `SettingsError` for a file that is missing or that llama.cpp cannot load, for an adapter
    that does not fit it, and for a window longer than the one that the model was trained for.
    """
    adapter = adapter_of(settings, "llamacpp")
    path = await asyncio.to_thread(_file, settings.model)
    window = _window(path, settings.window_tokens)
    slots = settings.concurrency or 1
    key = secrets.token_hex(16)
    name = await asyncio.to_thread(name_with, path.stem, adapter)
    threads = settings.threads or available_cores()
    start = ServerStart(path, window, slots, threads, key, adapter, name)
    server = await asyncio.to_thread(_serve, start)
    loopback = Loopback(server.listening_address, key)
    # A server that is stopped before it has begun to work never ends: wait until it has done something.
    await asyncio.to_thread(loopback.wait_until_it_works)
    file = f"{path.name}, {path.stat().st_size} bytes"
    model = Model(name, loopback.count, file, window, slots, trained_with(adapter))
    # The embedded model reads short chunks, so that the instructions are a third of each prompt.
    keeps = settings.model is None and slots == 1 and not _has_gpu(import_xllamacpp())
    connection = Connection(
        base_url=f"{server.listening_address}/v1",
        api_key=key,
        concurrency=slots,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
        extra=_PLAIN_SAMPLING | {"cache_prompt": keeps},
        verbatim=True,
        direct=True,  # a proxy set in the environment is not for the loopback interface, nor for the text
    )

    async def keep_beginning(messages: tuple[Message, ...]) -> None:
        await asyncio.to_thread(loopback.keep_beginning, messages, _CPU_BATCH_TOKENS)

    engine = OpenAIEngine(model, connection, keep_beginning if keeps else None)
    return LlamaCppEngine(server, engine, loopback)


@dataclass(frozen=True, slots=True)
class ServerStart:
    """What a server is started with; each of the `slots` has a window of its own.

    Its replies call the model by `name`, not by the path of its file.
    """

    path: Path
    window_tokens: int
    slots: int
    threads: int
    key: str
    adapter: Path | None = None
    name: str = ""


def _serve(start: ServerStart) -> Any:
    """A running server. Raises `SettingsError` if llama.cpp cannot load the model or its adapter."""
    xllamacpp = import_xllamacpp()
    try:
        return xllamacpp.Server(parameters(xllamacpp, start))
    except RuntimeError as error:
        raise SettingsError(f"llama.cpp cannot load {_reason(start)}") from error


def parameters(xllamacpp: Any, start: ServerStart) -> Any:
    """llama.cpp's parameters, those that decide on speed and repeatability with the reason."""
    params = xllamacpp.CommonParams()
    params.model.path = str(start.path)
    params.model_alias = {start.name or start.path.stem}
    if start.adapter:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(start.adapter), 1.0)]
    params.n_ctx = start.window_tokens * start.slots  # llama.cpp counts that of all slots together
    params.n_parallel = start.slots
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [start.key]
    # A token of a small model is done before a second thread has woken up.
    small = start.path.stat().st_size < _SMALL_MODEL_BYTES
    params.cpuparams.n_threads = 1 if small else start.threads
    params.cpuparams_batch.n_threads = start.threads
    params.verbosity = -1  # silent
    params.ui = params.endpoint_slots = False
    # Any reused prefix changes the batches, and so the rounding: a resumed read, whose server is new, could
    # end otherwise than one that went through. `Loopback.keep_beginning` keeps one that does not. The
    # store of old prompts would take up to 8 GiB.
    params.cache_prompt = params.cache_idle_slots = False
    params.cache_ram_mib = 0
    if not _has_gpu(xllamacpp):
        params.fit_params = False  # divides layers among devices; takes longer than loading a small model
        params.n_batch = params.n_ubatch = _CPU_BATCH_TOKENS
        # On a CPU flash attention reads a quarter faster and writes at half the speed.
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params


def import_xllamacpp() -> Any:
    """The module, loaded such that its threads sleep while they wait for each other.

    OpenMP lets them spin by default. Where another process wants the core, that makes two threads
    many times slower than one. The variable is read when the library is loaded, and by it alone.
    """
    name = "OMP_WAIT_POLICY"
    given = os.environ.get(name)
    os.environ[name] = given or "passive"
    try:
        return importlib.import_module("xllamacpp")
    finally:
        if given is None:
            del os.environ[name]


def _has_gpu(xllamacpp: Any) -> bool:
    return any("GPU" in device["type"].name for device in xllamacpp.get_device_info())


def _reason(start: ServerStart) -> str:
    """What llama.cpp may have refused, and why: it keeps the reason to itself."""
    import gguf

    try:
        gguf.GGUFReader(start.path)
    except Exception:  # noqa: BLE001 - the reader raises whatever a broken file leads it to
        return f"{start.path}: the file is cut short or damaged: download it again"
    if start.adapter and (reason := misfit(start.adapter, start.path)):
        return f"the adapter {start.adapter} with {start.path}: {reason}"
    return (
        f"{start.path}: it may be of an architecture that is newer than xllamacpp (update it), or need more "
        "memory than there is (lower `window_tokens` or `concurrency`, or take a smaller model)"
    )


def available_cores() -> int:
    """The physical cores that this process may use: its affinity and its container's share count."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {
        _text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", str(cpu)) for cpu in allowed
    }
    quota, _, period = _text("/sys/fs/cgroup/cpu.max", "max").partition(" ")
    share = int(quota) // int(period) if quota.isdigit() and period.isdigit() else len(cores)
    return max(1, min(len(cores), share))


def _text(path: str, default: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except OSError:
        return default


def _file(model: str | None) -> Path:
    """The GGUF file that is meant. Raises `SettingsError` if there is none."""
    if model is None:
        return embedded.default_model()
    if model.startswith(hub.PREFIX):
        return hub.fetched(model)
    path = Path(model).expanduser()
    if not path.is_file():
        raise SettingsError(f"there is no file {path}: name a .gguf file with `model`")
    return path


def _window(path: Path, wanted: int | None) -> int:
    """The window to use, in tokens. Raises `SettingsError` for a bad file or too long a window."""
    try:
        trained = trained_window(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, struct.error) as error:
        raise SettingsError(
            f"{path} is no GGUF file, or a damaged one: download it again, or name another with `model`"
        ) from error
    if wanted and trained and wanted > trained:
        raise SettingsError(
            f"window_tokens is {wanted}, the model in {path} was trained for {trained}: lower `window_tokens`"
        )
    return wanted or min(trained or DEFAULT_WINDOW_TOKENS, DEFAULT_WINDOW_TOKENS)
