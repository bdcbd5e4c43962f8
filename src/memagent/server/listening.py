"""Listening: a socket, and uvicorn, which waits for slow clients: a reverse proxy keeps those away."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from memagent.engines.endpoint import is_loopback
from memagent.errors import SettingsError, reason
from memagent.server.limits import Keys, Limits

_BACKLOG, _AT_A_TIME = 2048, 16


def listen(host: str, port: int, keys: Keys) -> socket.socket:
    """Open a socket that clients can connect to. Raises `SettingsError`."""
    if not is_loopback(host) and not keys.digests:
        raise SettingsError(
            f"`host` {host} can be reached from other machines: name a file with API keys with `keys`, or "
            "leave `host` out to serve this machine only"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the protocol is named, asyncio turns Nagle's algorithm off for the connections.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise SettingsError(f"cannot listen on `host` {host} `port` {port}: {reason(error)}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address at which clients reach a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start. More connections can wait than are accepted at a time, so that other work gets a turn."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """End the server on a signal, without raising it again afterwards: that is a clean exit."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record tells of more than a request that was cut off because the server ends."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def make_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    """Make a server, to be run with `await server.serve(sockets=[...])`."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_AT_A_TIME,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=limits.stop_seconds,
    )
    return _Server(config)
