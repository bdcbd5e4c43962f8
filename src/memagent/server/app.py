"""The app: all routes over one engine, behind the gate."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST

from memagent.server.chat import ALIAS, Chats
from memagent.server.errors import FAILURES, not_found, report_errors
from memagent.server.gate import Gate
from memagent.server.jobs import Jobs
from memagent.server.limits import Keys, Limits
from memagent.server.metrics import Metrics
from memagent.server.page import served_files
from memagent.server.reads import reads_router
from memagent.server.schemas import ChatRequest
from memagent.server.store import Store
from memagent.server.uploads import files_router
from memagent.settings import ReadSettings
from memagent.types import Engine
from memagent.version import __version__

_COLLECTION_THRESHOLDS = (1000, 15, 300)
"""Thresholds of garbage collection: new objects, then collections of the younger generations."""

_THREADS = 6  # few: a thread that counts tokens or writes keeps the event loop waiting for the GIL


def create_app(
    engine: Engine,
    settings: ReadSettings,
    store: Store,
    keys: Keys | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """Create the app. Blocks while it counts the budgets.

    Args:
        engine: what completes the chats; it stays open.
        settings: how to read unless a request says otherwise.
        store: where files and reads are kept; it stays open.
        keys: the API keys that are accepted; without any, only this machine's own programs are.
        limits: what a client may ask for.

    Raises `SettingsError` for budgets that do not fit the model's window.
    """
    keys, limits, metrics = keys or Keys(), limits or Limits(), Metrics()
    jobs = Jobs(engine, settings, store, metrics, engine.model.calls)
    chats = Chats(engine, settings, jobs, limits)

    @asynccontextmanager
    async def run_jobs(_app: FastAPI) -> AsyncIterator[None]:
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="memagent")
        asyncio.get_running_loop().set_default_executor(threads)
        jobs.start()
        try:
            with _rare_collections():
                yield
        finally:
            await jobs.stop()

    app = FastAPI(
        title="memagent",
        version=__version__,
        lifespan=run_jobs,
        docs_url=None,
        redoc_url=None,
        responses=FAILURES,
    )
    app.add_middleware(Gate, keys=keys, limits=limits, metrics=metrics)
    if limits.origins:  # outermost: a browser's preflight request has no key
        app.add_middleware(
            CORSMiddleware, allow_origins=limits.origins, allow_methods=["*"], allow_headers=["*"]
        )
    report_errors(app)
    _add_chat(app, chats)
    _add_models(app, engine, limits.context_tokens)
    app.include_router(files_router(store, limits))
    app.include_router(reads_router(store, jobs, limits))
    _add_page(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server answers; the model is not asked."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def get_metrics() -> Response:
        """What the server counts, for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return app


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Make full garbage collections rare: with 500 streams, each blocks the event loop for 0.1 s."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what exists now is there to stay
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _add_page(app: FastAPI) -> None:
    """Serve the page at `/`, which anyone may load: it contains no user data."""
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
    files = served_files()

    async def get_file(request: Request) -> Response:
        content, kind = files[request.url.path]
        return Response(content, media_type=kind, headers=headers)

    for path in files:
        app.add_api_route(path, get_file, include_in_schema=False)


def _add_chat(app: FastAPI, chats: Chats) -> None:
    @app.post("/v1/chat/completions", response_class=Response)
    async def complete_chat(request: Request, body: ChatRequest) -> Response:
        """OpenAI's chat completions: what does not fit the model's window is read in chunks."""
        return await chats.respond(request.state.owner, body, await request.body())


def _add_models(app: FastAPI, engine: Engine, context_tokens: int) -> None:
    names = list(dict.fromkeys((engine.model.name, ALIAS)))

    def describe(name: str) -> dict[str, Any]:
        window = {"context_length": context_tokens, "max_model_len": context_tokens}  # both are in use
        return {"id": name, "object": "model", "created": 0, "owned_by": "memagent", **window}

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The one model, by its own name and by `memagent`, with the longest chat that it reads."""
        return {"object": "list", "data": [describe(name) for name in names]}

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> dict[str, Any]:
        """The model, if it has this name."""
        if name not in names:
            raise not_found("model", name)
        return describe(name)
