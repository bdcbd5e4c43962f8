"""The app, all routes over one engine behind the gate, and the server that runs it.

The server waits for slow clients: a reverse proxy keeps those away.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from memagent.concurrency import Turns
from memagent.engines.endpoint import is_loopback
from memagent.errors import SettingsError, reason
from memagent.server.bodies import ParsingRoute
from memagent.server.chat import ALIAS, Chats
from memagent.server.errors import FAILURES, not_found, report_errors
from memagent.server.gate import Gate, Metrics
from memagent.server.jobs import Jobs
from memagent.server.limits import Keys, Limits, open_files
from memagent.server.page import served_files
from memagent.server.routes import files, reads
from memagent.server.schemas import ChatRequest
from memagent.server.store import Store
from memagent.settings import ReadSettings
from memagent.types import Engine
from memagent.version import __version__

_COLLECTION_THRESHOLDS = (1000, 15, 300)  # new objects, then collections of the younger generations
_BACKLOG, _AT_A_TIME = 2048, 16
_FILES_PER_CONNECTION, _FILES_PER_READ = 4, 8  # that may be open: both together leave some for the rest
_SAME_NEWS_SECONDS = 60.0
_THREADS = 6  # few: a thread that counts tokens or writes keeps the event loop waiting for the GIL


def create_app(
    engine: Engine,
    settings: ReadSettings,
    store: Store,
    keys: Keys | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """Create the app over an engine and a store, which stay open. Blocks while it counts the budgets.

    `settings` say how to read unless a request says otherwise. Without `keys`, only this machine's own
    programs are let in. Raises `SettingsError` for budgets that do not fit the model's window.
    """
    keys, limits, metrics = keys or Keys(), limits or Limits(), Metrics()
    several = len(keys.digests) > 1
    jobs = Jobs(engine, settings, store, metrics, several, Turns(open_files() // _FILES_PER_READ))
    app = FastAPI(
        title="memagent",
        version=__version__,
        lifespan=lambda _: _run(jobs),
        docs_url=None,
        redoc_url=None,
        responses=FAILURES,
    )
    app.add_middleware(Gate, keys=keys, limits=limits, metrics=metrics)
    if limits.origins:  # outermost: a browser's preflight request has no key
        app.add_middleware(
            CORSMiddleware, allow_origins=limits.origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.router.route_class = ParsingRoute
    report_errors(app)
    app.state.jobs, app.state.limits = jobs, limits
    app.include_router(files)
    app.include_router(reads)
    _add_routes(app, Chats(engine, settings, jobs, limits), metrics)
    _add_page(app)
    return app


@asynccontextmanager
async def _run(jobs: Jobs) -> AsyncIterator[None]:
    """Run the jobs, and make full garbage collections rare: with 500 streams, each takes 0.1 s."""
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memagent")
    asyncio.get_running_loop().set_default_executor(threads)
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what exists now is there to stay
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        async with jobs.work():
            yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _add_routes(app: FastAPI, chats: Chats, metrics: Metrics) -> None:
    """Add the routes that need no more than one function: chats, models, and those for monitoring."""
    window = dict.fromkeys(("context_length", "max_model_len"), chats.limits.context_tokens)
    about = {"object": "model", "created": 0, "owned_by": "memagent", **window}  # both names are in use
    models = {name: {"id": name, **about} for name in (chats.engine.model.name, ALIAS)}

    @app.post("/v1/chat/completions", response_class=Response)
    async def complete_chat(request: Request, body: ChatRequest) -> Response:
        """OpenAI's chat completions: what does not fit the model's window is read in chunks."""
        return await chats.respond(request.state.owner, body, await request.body())

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The one model, by its own name and by `memagent`, with the longest chat that it reads."""
        return {"object": "list", "data": list(models.values())}

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> dict[str, Any]:
        """The model, if it has this name."""
        if name not in models:
            raise not_found("model", name)
        return models[name]

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server answers; the model is not asked."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def get_metrics() -> Response:
        """What the server counts, for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_page(app: FastAPI) -> None:
    """Serve the page at `/`, which anyone may load: it contains no user data."""
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
    files = served_files()

    async def get_file(request: Request) -> Response:
        content, kind = files[request.url.path]
        return Response(content, media_type=kind, headers=headers)

    for path in files:
        app.add_api_route(path, get_file, include_in_schema=False)


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


class _Connection(H11Protocol):
    """A connection that replaces an idle one if there are too many. If all are busy, uvicorn refuses its
    requests.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and end the one that has been idle for longest if there are too many."""
        self.heard = self.loop.time()
        super().connection_made(transport)  # type: ignore[arg-type] # uvicorn's own is narrower
        if len(self.connections) >= (self.limit_concurrency or 0):
            others = [
                connection
                for connection in self.connections
                if isinstance(connection, _Connection) and connection is not self
            ]
            if idle := min(
                (connection for connection in others if connection.is_idle),
                key=lambda connection: connection.heard,
                default=None,
            ):
                idle.transport.abort()
                self.connections.discard(idle)  # requests of others may come before it hears of its end

    def data_received(self, data: bytes) -> None:
        """Note when the client was last heard of."""
        self.heard = self.loop.time()
        super().data_received(data)

    @property
    def is_idle(self) -> bool:
        """Whether every request whose head has arrived is answered."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self.transport.is_closing()


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


class _NewsFilter:
    """Drops log records that are no news: requests cut off when the server stops, and a message that comes
    again within a minute, which any client could cause.
    """

    def __init__(self) -> None:
        self._last: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is news."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False
        last, self._last[record.msg] = self._last.get(record.msg), record.created
        return last is None or record.created - last > _SAME_NEWS_SECONDS


_NEWS = _NewsFilter()


def make_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    """Make a server, to be run with `await server.serve(sockets=[...])`."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_NEWS)
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=open_files() // _FILES_PER_CONNECTION,
        backlog=_AT_A_TIME,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=limits.stop_seconds,
    )
    return _Server(config)
