"""What all tests share: a server that is closed when its test ends, and settings of nobody's home."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from server import Server

# A busy machine is no defect. Each run tries the same; `--hypothesis-profile explore` looks further.
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")

signal.signal(
    signal.SIGHUP, signal.SIG_DFL
)  # `nohup make test` ignores it, and so would what the tests start


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start a server with `Server`'s arguments; it is closed when the test ends."""
    with ExitStack() as servers:

        def start(*args: Any, **options: Any) -> Server:
            return servers.enter_context(Server(*args, **options))

        yield start


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Processes that a test starts heed an interrupt, also where this one was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with no settings, journals and servers, for this process and those it starts."""
    home = tmp_path_factory.mktemp("home")
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(home))
    for name in list(os.environ):
        if name.startswith(("MEMAGENT_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MEMAGENT_DISCOVER", "false")  # whatever runs on this machine
    return home


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes name no test: packed ones hold the time, and all workers must find the same tests."""
    return argname if isinstance(val, bytes) else None
