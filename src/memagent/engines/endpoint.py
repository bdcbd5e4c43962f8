"""HTTP to one OpenAI-compatible endpoint, bounded in time and bytes; each failure names its cause.

Redirects are not followed. Retries and the meaning of replies are left to `openai.py`.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import httpx2

from memagent.engines.refusals import HttpReply, TransientError, brief
from memagent.errors import EngineError, SettingsError, reason, without_secrets
from memagent.settings import EngineSettings

DEFAULT_URL = "https://api.openai.com/v1"
CONCURRENCY = 16
"""The default limit on requests in flight."""

_MAX_PORT = 65_535
_SECRET_BYTES = 16  # a shorter key may be a word, such as "none", which a reply may well contain
_HIDDEN = b"[key]"
_USUAL = EngineSettings()


@dataclass(frozen=True, slots=True)
class Connection:
    """How to talk to an endpoint.

    `concurrency` bounds the requests in flight; `retries` is how often a failed call is retried, the first
    time after at most `first_delay_seconds`; `extra` is added to every request's body (a server's own
    sampling options, for instance), `verdict` to those that ask for a verdict (the adapter to use, for
    instance); `record` asks for token ids and log-probabilities,
    which strict endpoints refuse; `verbatim` accepts an empty reply or an unfinished thought as the model's
    output; `direct` ignores proxies. A trainer's `gateway` decides how replies are drawn, and trains on each:
    requests say nothing of it, and no reply is asked for again because of what it says.
    """

    base_url: str | None = None
    api_key: str | None = None
    concurrency: int = CONCURRENCY
    timeout_seconds: float = _USUAL.timeout_seconds
    connect_seconds: float = _USUAL.connect_seconds
    retries: int = _USUAL.retries
    first_delay_seconds: float = 0.5
    extra: Mapping[str, Any] | None = None
    verdict: Mapping[str, Any] | None = None
    record: bool = False
    verbatim: bool = False
    direct: bool = False
    gateway: bool = False


class UnreachableError(EngineError):
    """No usable endpoint at the address: not running, unknown host, untrusted certificate, or moved."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply whose body arrives in pieces."""

    status: int
    media_type: str
    retry_after: str
    pieces: AsyncIterator[bytes]

    async def read(self, max_bytes: int) -> HttpReply:
        """Read the whole body. Raises `TransientError` if it is longer than `max_bytes`."""
        content = bytearray()
        async for piece in self.pieces:
            content += piece
            if len(content) > max_bytes:
                raise TransientError(f"the reply is longer than {max_bytes:,} bytes, the limit")
        return HttpReply(self.status, bytes(content), self.retry_after)


class Endpoint:
    """The connections to one address; `url` is the address without its secrets.

    Raises `SettingsError` for an address, proxy or certificate file that cannot be used.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._base = _address(connection.base_url or DEFAULT_URL)
        self.url = without_secrets(str(self._base)).rstrip("/")
        self._client = _client(connection, self._base.scheme)
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "memagent"}
        if self._base.userinfo:
            user = f"{self._base.username}:{self._base.password}".encode()
            headers["Authorization"] = f"Basic {b64encode(user).decode()}"
        elif connection.api_key:
            headers["Authorization"] = f"Bearer {connection.api_key}"
        self._base = self._base.copy_with(userinfo=b"")
        self._secret = headers.get("Authorization", "").partition(" ")[2].encode()
        self._headers = httpx2.Headers(headers)
        self._posted = httpx2.Headers({**headers, "Content-Type": "application/json"})
        self._timeout = self._client.timeout.as_dict()
        self._addresses: dict[str, httpx2.URL] = {}

    @property
    def has_key(self) -> bool:
        """Whether requests carry a key or a password."""
        return "Authorization" in self._headers

    async def get(self, path: str, max_bytes: int, seconds: float) -> HttpReply:
        """Get `path`; limits and errors are those of `post`."""
        return await self._send(self._request("GET", path), max_bytes, seconds)

    async def post(self, path: str, body: bytes, max_bytes: int, seconds: float) -> HttpReply:
        """Post JSON to a path below the address, and read at most `max_bytes` within `seconds`.

        Raises `TransientError` for a failed connection and for a reply that is too late or too long, and
        `UnreachableError` where a retry is pointless.
        """
        return await self._send(self._request("POST", path, body), max_bytes, seconds)

    def stream(self, path: str, body: bytes, seconds: float) -> AbstractAsyncContextManager[Streamed]:
        """Post JSON and yield the reply as it arrives, each piece within `seconds`. Raises as `post` does."""
        return self._open(self._request("POST", path, body), seconds)

    async def _pieces(self, response: httpx2.Response, seconds: float) -> AsyncIterator[bytes]:
        """The reply's body, without the key: errors that quote it reach logs, tables and other clients."""
        pieces = self._arriving(response, seconds)
        if self._secret and (response.status_code >= 300 or len(self._secret) >= _SECRET_BYTES):
            pieces = hide(self._secret, pieces)
        async for piece in pieces:
            yield piece

    async def _arriving(self, response: httpx2.Response, seconds: float) -> AsyncIterator[bytes]:
        pieces = aiter(response.aiter_bytes())
        while True:
            async with self._bound(seconds, "the reply stalled for"):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _request(self, method: str, path: str, body: bytes | None = None) -> httpx2.Request:
        headers = self._headers if body is None else self._posted
        options = {"timeout": self._timeout}
        return httpx2.Request(method, self._at(path), headers=headers, content=body, extensions=options)

    def _at(self, path: str) -> httpx2.URL:
        if path not in self._addresses:
            whole = posixpath.normpath(f"{self._base.path}/{path}").replace("//", "/")
            self._addresses[path] = self._base.copy_with(path=whole)
        return self._addresses[path]

    async def _send(self, request: httpx2.Request, max_bytes: int, seconds: float) -> HttpReply:
        async with self._bound(seconds, "no reply within"), self._open(request, seconds) as reply:
            return await reply.read(max_bytes)

    @asynccontextmanager
    async def _open(self, request: httpx2.Request, seconds: float) -> AsyncIterator[Streamed]:
        async with self._bound(seconds, "no reply within"):
            response = await self._client.send(request, stream=True)
        try:
            if response.has_redirect_location:
                follow = response.next_request
                there = str(follow.url if follow else response.headers.get("location", ""))
                there = brief(
                    there.replace(self._secret.decode(), _HIDDEN.decode()) if self._secret else there
                )
                raise UnreachableError(
                    f"{self.url} redirects to {there}: not followed, as the key and the document would go "
                    "there; if that is the endpoint, set `base_url` to it"
                )
            headers = response.headers
            yield Streamed(
                response.status_code,
                headers.get("content-type", ""),
                headers.get("retry-after", ""),
                self._pieces(response, seconds),
            )
        finally:
            await response.aclose()

    @asynccontextmanager
    async def _bound(self, seconds: float, what: str) -> AsyncIterator[None]:
        """Bound the time of the block, and name the cause of what fails in it."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise TransientError(f"{what} {seconds:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ExceptionGroup) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> TransientError | UnreachableError:
        causes = list(_causes(error))
        if isinstance(error, httpx2.ConnectTimeout):
            seconds = self.connection.connect_seconds
            return TransientError(f"could not connect to {self.url} within {seconds:g} s", unreachable=True)
        if not isinstance(error, httpx2.ConnectError):
            return TransientError(f"the connection broke ({_describe(error)})")
        if tls := next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None):
            if isinstance(tls, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                return TransientError(f"the connection broke ({_describe(tls)})")
            return UnreachableError(_explain_tls(self.url, tls))
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            why = f"nothing listens at {self.url}: is the server running?"
        else:
            why = f"{self.url} cannot be reached ({_describe(causes[-1])}): check `base_url`"
        return TransientError(why, unreachable=True)


async def hide(secret: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes with a mark in place of the secret, which may be split between two pieces."""
    rest = b""
    async for piece in pieces:
        rest = (rest + piece).replace(secret, _HIDDEN)
        overlap = max(length for length in range(len(secret)) if rest.endswith(secret[:length]))
        yield rest[: len(rest) - overlap]
        rest = rest[len(rest) - overlap :]
    yield rest


def is_own(url: str | None) -> bool:
    """Whether an address is this machine's own, which no proxy can reach and none should see."""
    return is_loopback(_address(url).host) if url else False


def is_loopback(host: str) -> bool:
    """Whether a host can be reached only from its own machine."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _address(url: str) -> httpx2.URL:
    """Parse an address. Raises `SettingsError` if requests cannot be sent to it."""
    try:
        address = httpx2.URL(url)
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError("it needs http:// or https:// and a host")
        if address.port is not None and not 0 < address.port <= _MAX_PORT:
            raise ValueError(f"there is no port {address.port}")
    except (httpx2.InvalidURL, ValueError) as error:
        raise SettingsError(
            f"base_url is {brief(url)!r}, which is not a valid address ({brief(str(error))}): "
            "write it as http://localhost:8000/v1"
        ) from error
    return address


def _client(connection: Connection, scheme: str) -> httpx2.AsyncClient:
    """The HTTP client. Raises `SettingsError` if the environment's proxy or certificates cannot be used."""
    calls = connection.concurrency
    try:
        # Loading certificates takes a while, so without TLS none are loaded. SSL_CERT_FILE counts even where
        # the environment's proxies do not.
        tls = httpx2.create_ssl_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=connection.connect_seconds),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=calls),
            trust_env=not connection.direct,
            verify=tls,
        )
    except ImportError as error:
        raise SettingsError(
            "a SOCKS proxy is set in the environment (ALL_PROXY, HTTPS_PROXY or HTTP_PROXY), which needs "
            "one more package: pip install 'httpx2[socks]', or unset the variable"
        ) from error
    except (httpx2.InvalidURL, ValueError) as error:
        raise SettingsError(
            f"the proxy in the environment cannot be used ({brief(str(error))}): "
            "check ALL_PROXY, HTTPS_PROXY and HTTP_PROXY"
        ) from error
    except OSError as error:  # ssl.SSLError is one
        file = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
        raise SettingsError(
            f"the certificates in {file!r} cannot be read ({reason(error)}): "
            "check SSL_CERT_FILE and SSL_CERT_DIR"
        ) from error


def _explain_tls(url: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not trusted ({error.verify_message}): set SSL_CERT_FILE to "
            "your authority's certificates"
        )
    why = (error.reason or str(error)).replace("_", " ").lower()
    return f"could not open a TLS connection to {url} ({why}): does it speak https, or is it http://?"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        nested = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else None
        error = nested or error.__cause__ or error.__context__


def _describe(error: BaseException) -> str:
    return brief(str(error) or type(error).__name__)
