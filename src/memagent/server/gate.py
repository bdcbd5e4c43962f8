"""The gate in front of the app, which checks keys and bounds requests in number and size, and its counters.

When a client disconnects, its work is cancelled, whether the reply is a stream or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from memagent.engines.endpoint import is_loopback
from memagent.engines.wrappers import Losses, Wrapper
from memagent.server.bodies import Values
from memagent.server.errors import ApiError, api_error
from memagent.server.limits import Keys, Limits
from memagent.server.page import served_files
from memagent.types import Completion, Engine, Message, Sampling, Usage

_log = logging.getLogger("memagent.server")

_UPLOADS = "/v1/files"
_PACE_SECONDS = 0.001  # about the time it takes to look at a request
_UNCOUNTED = {"/health", "/metrics"}
_METHODS = {"GET", "POST", "DELETE", "HEAD", "OPTIONS"}
_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 7200)


class Metrics:
    """What the server counts, for Prometheus."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        count = partial(Counter, registry=self._registry)
        measure = partial(Gauge, registry=self._registry)
        self._requests = count("memagent_requests", "Requests by outcome", ["method", "route", "status"])
        self._seconds = Histogram(
            "memagent_request_seconds", "How long requests took", ["route"], buckets=_SECONDS,
            registry=self._registry,
        )  # fmt: skip
        self.in_flight = measure("memagent_requests_in_flight", "Requests in flight")
        self.request_bytes = measure("memagent_request_bytes", "Bytes of requests in memory")
        self.reads = count("memagent_reads", "Reads by how they ended", ["state"])
        self.running = measure("memagent_reads_running", "Reads under way")
        self._tokens = count("memagent_tokens", "Tokens of reads", ["kind"])
        self._conversations = count("memagent_conversations", "Conversations of reads")

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        method = method if method in _METHODS else "other"  # clients may send any word
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def conversation(self, usage: Usage) -> None:
        """Count a conversation and its tokens."""
        self._conversations.inc()
        self.tokens([usage])

    def tokens(self, usages: Iterable[Usage]) -> None:
        """Count tokens, including those of replies that could not be used."""
        for usage in usages:
            for kind in ("prompt", "cached", "completion"):
                self._tokens.labels(kind).inc(getattr(usage, f"{kind}_tokens"))

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class CountedEngine(Wrapper):
    """Counts the calls of a read that reach the engine; a journal answers others itself."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        super().__init__(Losses(engine, metrics.tokens))
        self._metrics = metrics

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, and count it."""
        completion = await self.engine.complete(messages, sampling)
        self._metrics.conversation(completion.usage)
        return completion


class Gate:
    """ASGI middleware; see `Limits`."""

    def __init__(self, app: ASGIApp, keys: Keys, limits: Limits, metrics: Metrics) -> None:
        self.app, self.keys, self.limits, self.metrics = app, keys, limits, metrics
        self._open = {"/health", *served_files()}
        self._requests = defaultdict[str, int](int)
        self._request_bytes = defaultdict[str, int](int)  # in memory, by owner
        self._turn = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit, started = _Visit(scope, receive, send, self.limits, self._hold), time.perf_counter()
        self.metrics.in_flight.inc()
        try:
            scope.setdefault("state", {})["owner"] = visit.owner = self._owner(scope)
            visit.check_length()
            async with self._admit(visit.owner, scope["path"]):
                await visit.run(self.app)
        except ApiError as refusal:
            await visit.refuse(refusal)
        except Exception as error:  # noqa: BLE001 the boundary: a defect becomes a 500
            where = "".join(traceback.format_tb(error.__traceback__))
            _log.error("a defect in memagent: %s (`verbose` shows where)", type(error).__name__)
            _log.info("%s", where)  # without the message, which may quote a document
            await visit.refuse(api_error(error))
        finally:
            self._request_bytes[visit.owner] -= visit.held_bytes
            self.metrics.request_bytes.dec(visit.held_bytes)
            self.metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(scope["method"], route, visit.status, time.perf_counter() - started)
            _log.info("%s %s %s", scope["method"], route, visit.status)

    @asynccontextmanager
    async def _admit(self, owner: str, path: str) -> AsyncIterator[None]:
        """Bound the requests of an owner that are in flight. Raises `ApiError` for one too many.

        Those that come at once are spaced out, so that the event loop has time for others in between.
        """
        if path in _UNCOUNTED:
            yield
            return
        self._requests[owner] += 1
        try:
            if self._requests[owner] > self.limits.requests:
                message = f"{self.limits.requests} requests are in flight already: try again later"
                raise ApiError(429, message, "too_many_requests", headers={"Retry-After": "1"})
            now = asyncio.get_running_loop().time()
            self._turn = max(now, self._turn + _PACE_SECONDS)
            if self._turn > now:
                await asyncio.sleep(self._turn - now)
            yield
        finally:
            self._requests[owner] -= 1

    def _hold(self, owner: str, length: int) -> None:
        """Count bytes that are kept in memory until a request ends. Raises `ApiError` for too many."""
        most, head = self.limits.held_bytes, {"Retry-After": "5"}
        if self._request_bytes[owner] + length > most // 2:
            message = f"the requests in flight hold {most // 2:,} bytes already: try again later"
            raise ApiError(429, f"{message}, or upload files", "too_many_bytes", headers=head)
        if sum(self._request_bytes.values()) + length > most:
            message = f"the requests of all clients hold {most:,} bytes already: try again later"
            raise ApiError(503, message, "too_many_bytes", headers=head)
        self._request_bytes[owner] += length
        self.metrics.request_bytes.inc(length)

    def _owner(self, scope: Scope) -> str:
        headers = dict(scope["headers"])
        if not self.keys.digests:
            _check_origin(headers, self.limits.origins)
            return ""
        if scope["path"] in self._open:
            return ""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        owner = self.keys.owner(key.strip()) if scheme.lower() == b"bearer" else None
        if owner is None:
            message = "this key is not known" if key else "a key is needed: Authorization: Bearer KEY"
            raise ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return owner


def _check_origin(headers: dict[bytes, bytes], allowed: tuple[str, ...]) -> None:
    """Keep web pages of other origins away from a server without keys. Raises `ApiError`."""
    host = headers.get(b"host", b"").decode("latin-1")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        header = headers.get(b"origin", b"").decode("latin-1")
        origin = urlsplit(header)
    except ValueError as error:
        raise ApiError(400, "the Host or Origin of the request is not an address", "invalid_host") from error
    if name and not is_loopback(name):
        why = f"a server without keys serves only its own machine, not {name[:100]!r}: start it with `keys`"
        raise ApiError(403, why, "invalid_host")
    if header and origin.netloc != host and header not in allowed:  # "null" is a page that hides its origin
        why = "a server without keys does not serve web pages of other origins: start it with `allow_origin`"
        raise ApiError(403, f"{why} to let one in", "invalid_origin")


class _Visit:
    """One request: its body is bounded, and its work ends when the client disconnects.

    `hold` is called before more of the body is kept in memory.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: Limits, hold: Callable[[str, int], None]
    ) -> None:
        self.status = 499  # counted if the client disconnects before a reply
        self.owner, self.held_bytes, self._hold, self._values = "", 0, hold, Values()
        self._uploads = scope["method"] == "POST" and scope["path"] == _UPLOADS
        self._most_bytes = limits.upload_bytes + 2**16 if self._uploads else limits.body_bytes
        self._scope, self._receive, self._send = scope, receive, send
        self._bytes = 0
        self._whole = self._replied = self._gone = False
        self._work: asyncio.Future[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    def check_length(self) -> None:
        """Raise `ApiError` for a request that says that it is too large."""
        for name, value in self._scope["headers"]:
            if name == b"content-length" and value.isdigit():
                self._check(int(value))

    def _check(self, length: int) -> None:
        if length > self._most_bytes:
            advice = "" if self._uploads else "upload long documents as files, or "
            message = f"the request is larger than the limit of {self._most_bytes:,} bytes: {advice}"
            raise ApiError(413, f"{message}start the server with a higher limit", "request_too_large")

    async def run(self, app: ASGIApp) -> None:
        """Run the app until it is done or the client disconnects."""
        self._work = asyncio.ensure_future(app(self._scope, self.receive, self.send))
        try:
            await asyncio.wait({self._work})
        finally:
            tasks = [task for task in (self._work, self._watch) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self._work.cancelled():
            self._work.result()

    async def receive(self) -> AsgiMessage:
        """The next piece of the body. Raises `ApiError` if the body is too large."""
        if self._whole:  # a disconnect cancels whoever waits for it
            gone: asyncio.Future[AsgiMessage] = asyncio.get_running_loop().create_future()
            return await gone
        message = await self._receive()
        piece = message.get("body", b"")
        self._bytes += len(piece)
        self._check(self._bytes)
        if not self._uploads:  # those go to the disk
            self._hold(self.owner, len(piece))
            self.held_bytes += len(piece)
            self._values.add(piece)
        if not message.get("more_body"):
            self._whole = True
            self._watch = asyncio.create_task(self._until_gone())
        return message

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._work and not self._replied:
            self._gone = True
            self._work.cancel()

    async def send(self, message: AsgiMessage) -> None:
        """Pass on a part of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not message.get("more_body"):
            self._replied = True
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        """Reply with an error, unless a reply has begun."""
        if self.status != 499 or self._gone:
            return
        with suppress(OSError):
            await error.response(self._scope, self._receive, self.send)
