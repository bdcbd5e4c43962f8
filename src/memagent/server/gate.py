"""The gate in front of the app: it checks keys, bounds requests in number and size, and counts them.

When a client disconnects, its work is cancelled, whether the reply is a stream or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memagent.engines.endpoint import is_loopback
from memagent.server.errors import ApiError
from memagent.server.limits import Keys, Limits
from memagent.server.metrics import Metrics
from memagent.server.page import served_files

_log = logging.getLogger("memagent.server")

UPLOADS = "/v1/files"
_DRAIN_SECONDS = 2.0
_PACE_SECONDS = 0.001  # about the time it takes to look at a request
_UNCOUNTED = {"/health", "/metrics"}


class Gate:
    """ASGI middleware; see `Limits`."""

    def __init__(self, app: ASGIApp, keys: Keys, limits: Limits, metrics: Metrics) -> None:
        self.app, self.keys, self.limits, self.metrics = app, keys, limits, metrics
        self._open = {"/health", *served_files()}
        self._requests: Counter[str] = Counter()
        self._turn = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = _Visit(scope, receive, send, self.limits)
        counted = scope["path"] not in _UNCOUNTED
        owner, started = "", time.perf_counter()
        self.metrics.in_flight.inc()
        try:
            scope.setdefault("state", {})["owner"] = owner = self._owner(scope)
            visit.check_length()
            self._requests[owner] += counted
            try:
                if counted and self._requests[owner] > self.limits.requests:
                    raise ApiError(
                        429,
                        f"{self.limits.requests} requests are in flight already: try again later",
                        "too_many_requests",
                        headers={"Retry-After": "1"},
                    )
                if counted:
                    await self._in_turn()
                await visit.run(self.app)
            finally:
                self._requests[owner] -= counted
        except ApiError as refusal:
            await visit.refuse(refusal)
        except Exception as error:  # noqa: BLE001 the boundary: a defect becomes a 500
            where = "".join(traceback.format_tb(error.__traceback__))
            _log.error("a defect in memagent: %s (`verbose` shows where)", type(error).__name__)
            _log.info("%s", where)  # without the message, which may quote a document
            await visit.refuse(ApiError(500, "a defect in memagent", "defect"))
        finally:
            self.metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(scope["method"], route, visit.status, time.perf_counter() - started)
            _log.info("%s %s %s", scope["method"], route, visit.status)

    async def _in_turn(self) -> None:
        """Space out requests that come at once, so that the event loop has time for others in between."""
        now = asyncio.get_running_loop().time()
        self._turn = max(now, self._turn + _PACE_SECONDS)
        if self._turn > now:
            await asyncio.sleep(self._turn - now)

    def _owner(self, scope: Scope) -> str:
        """The owner of the key of a request. Raises `ApiError`."""
        headers = {name: value for name, value in scope["headers"] if name in _HEADERS}
        if not self.keys.digests:
            _check_origin(headers, self.limits.origins)
            return ""
        if scope["path"] in self._open:
            return ""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        owner = self.keys.owner(key.strip()) if scheme.lower() == b"bearer" else None
        if owner is None:
            said = "this key is not known" if key else "a key is needed: Authorization: Bearer KEY"
            raise ApiError(401, said, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return owner


_OF_BODIES = {b"content-length", b"transfer-encoding"}
_HEADERS = {b"host", b"origin", b"authorization"}


def _check_origin(headers: dict[bytes, bytes], allowed: tuple[str, ...]) -> None:
    """Keep web pages of other origins away from a server without keys. Raises `ApiError`."""
    host = headers.get(b"host", b"").decode("latin-1")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        said = headers.get(b"origin", b"").decode("latin-1")
        origin = urlsplit(said)
    except ValueError as error:
        raise ApiError(400, "the Host or Origin of the request is not an address", "invalid_host") from error
    if name and not is_loopback(name):
        raise ApiError(
            403,
            f"a server without keys serves only its own machine, not {name[:100]!r}: start it with `keys`",
            "invalid_host",
        )
    if said and origin.netloc != host and said not in allowed:  # "null" is a page that hides its origin
        raise ApiError(
            403,
            "a server without keys does not serve web pages of other origins: start it with `allow_origin` "
            "to let one in",
            "invalid_origin",
        )


class _Visit:
    """One request: its body is bounded in size, and its work ends when the client disconnects."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.status = 499  # counted if the client disconnects before a reply
        self._uploads = scope["method"] == "POST" and scope["path"] == UPLOADS
        self._most_bytes = limits.upload_bytes + 2**16 if self._uploads else limits.body_bytes
        self._scope, self._receive, self._send = scope, receive, send
        self._bytes = 0
        self._has_body = any(name in _OF_BODIES and value != b"0" for name, value in scope["headers"])
        self._whole = self._replied = False
        self._gone = asyncio.Event()
        self._work: asyncio.Future[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    def check_length(self) -> None:
        """Raise `ApiError` for a request that says that it is too large."""
        for name, value in self._scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._most_bytes:
                raise self._too_large()

    def _too_large(self) -> ApiError:
        advice = "" if self._uploads else "upload long documents as files, or "
        return ApiError(
            413,
            f"the request is larger than the limit of {self._most_bytes:,} bytes: {advice}start the server "
            "with a higher limit",
            "request_too_large",
        )

    async def run(self, app: ASGIApp) -> None:
        """Run the app until it is done or the client disconnects."""
        self._work = asyncio.ensure_future(app(self._scope, self.receive, self.send))
        try:
            await asyncio.wait({self._work})
        finally:
            pending = [task for task in (self._work, self._watch) if task and not task.done()]
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.gather(*pending, return_exceptions=True)
        if not self._work.cancelled():
            self._work.result()

    async def receive(self) -> Message:
        """The next piece of the body. Raises `ApiError` if the body is too large."""
        if self._whole:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._most_bytes:
            raise self._too_large()
        if not message.get("more_body"):
            self._whole = True
            self._watch = asyncio.create_task(self._until_gone())
        return message

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._replied:
            self._gone.set()
            if self._work:
                self._work.cancel()

    async def send(self, message: Message) -> None:
        """Pass on a part of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._has_body and not self._whole:  # the rest of the body is not another request
                message["headers"] = [*message["headers"], (b"connection", b"close")]
                await self._drain()
        elif not message.get("more_body"):
            self._replied = True
        await self._send(message)

    async def _drain(self) -> None:
        """Read what the client is still sending: closing the connection before that loses the reply."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while (await self._receive()).get("more_body"):
                    pass

    async def refuse(self, error: ApiError) -> None:
        """Reply with an error, unless a reply has begun."""
        if self.status != 499 or self._gone.is_set():
            return
        with suppress(OSError):
            await error.response(self._scope, self._receive, self.send)
