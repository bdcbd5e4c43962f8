"""A server of ours on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from memagent.engines import ScriptedEngine, open_engine
from memagent.server.app import create_app, listen, make_server
from memagent.server.limits import Keys, Limits
from memagent.server.store import Store
from memagent.settings import EngineSettings, ReadSettings
from memagent.types import Engine, Message
from server import read_facts

SETTINGS = ReadSettings(
    workflow="overwrite", problem_tokens=60, chunk_tokens=120, memory_tokens=300, answer_tokens=300
)


def facts_engine(**options: Any) -> ScriptedEngine:
    """An engine that reads facts as the test server does."""

    def reply(messages: tuple[Message, ...]) -> str:
        return read_facts([{"role": message.role, "content": message.content} for message in messages])

    return ScriptedEngine(reply, **{"window_tokens": 2000, "calls": 8} | options)


class Served:
    """A server that runs until it is closed, with an engine, or with the one that settings mean."""

    app: FastAPI

    def __init__(
        self,
        engine: Engine | EngineSettings,
        folder: Path,
        settings: ReadSettings = SETTINGS,
        keys: Keys | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.store = Store(folder)
        self.keys, self.limits = keys or Keys(), limits or Limits()
        self._listener = listen("127.0.0.1", 0, self.keys)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(engine, settings),), daemon=True
        )
        self._thread.start()
        assert self._ready.wait(20)

    async def _serve(self, engine: Engine | EngineSettings, settings: ReadSettings) -> None:
        async with AsyncExitStack() as closing:
            if isinstance(engine, EngineSettings):
                engine = await closing.enter_async_context(open_engine(engine))
            self.app = create_app(engine, settings, self.store, self.keys, self.limits)
            self._server = make_server(self.app, self.limits)
            self._ready.set()
            await self._server.serve(sockets=[self._listener])

    def client(self, **options: Any) -> httpx2.Client:
        """A client of this server."""
        return httpx2.Client(base_url=self.address, timeout=60, trust_env=False, **options)

    def close(self) -> None:
        """End it as a signal would."""
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._listener.close()
        self.store.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start servers, by default with an engine that reads facts."""
    with ExitStack() as closing:

        def start(
            engine: Engine | EngineSettings | None = None, folder: Path | None = None, **options: Any
        ) -> Served:
            served = Served(engine or facts_engine(), folder or tmp_path / "data", **options)
            closing.callback(served.close)
            return served

        yield start


@pytest.fixture
def facts() -> Callable[..., ScriptedEngine]:
    """Make engines that read facts."""
    return facts_engine
