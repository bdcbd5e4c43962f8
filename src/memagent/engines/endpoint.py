"""HTTP to one OpenAI-compatible endpoint, bounded in time and bytes; each failure names its cause.

Retries and the meaning of replies are left to `openai.py`.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
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

_MOST_REDIRECTS = 3
_MOST_PORT = 65_535
_USUAL = EngineSettings()


@dataclass(frozen=True, slots=True)
class Connection:
    """How to talk to an endpoint.

    `concurrency` bounds the requests in flight; `retries` is how often a failed call is retried; `extra` is
    added to every request's body (a server's own sampling options, for instance); `record` asks for token ids
    and log-probabilities, which strict endpoints refuse; `verbatim` accepts an empty reply or an unfinished
    thought as the model's output; `direct` ignores proxies.
    """

    base_url: str | None = None
    api_key: str | None = None
    concurrency: int = CONCURRENCY
    timeout_seconds: float = _USUAL.timeout_seconds
    connect_seconds: float = _USUAL.connect_seconds
    retries: int = _USUAL.retries
    extra: Mapping[str, Any] | None = None
    record: bool = False
    verbatim: bool = False
    direct: bool = False


class UnreachableError(EngineError):
    """No usable endpoint at the address: not running, unknown host, untrusted certificate, or moved."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply whose body arrives in pieces."""

    status: int
    media_type: str
    retry_after: str
    pieces: AsyncIterator[bytes]


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
        self._headers = httpx2.Headers(headers)
        self._posted = httpx2.Headers({**headers, "Content-Type": "application/json"})
        self._timeout = self._client.timeout.as_dict()
        self._addresses: dict[str, httpx2.URL] = {}

    @property
    def has_key(self) -> bool:
        """Whether requests carry a key or a password."""
        return "Authorization" in self._headers

    async def get(self, path: str, most_bytes: int, seconds: float) -> HttpReply:
        """Get `path`; limits and errors are those of `post`."""
        return await self._send(self._request("GET", path), most_bytes, seconds)

    async def post(self, path: str, body: bytes, most_bytes: int, seconds: float) -> HttpReply:
        """Post JSON to a path below the address, and read at most `most_bytes` within `seconds`.

        Raises `TransientError` for a failed connection and for a reply that is too late or too long, and
        `UnreachableError` where a retry is pointless.
        """
        return await self._send(self._request("POST", path, body), most_bytes, seconds)

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, seconds: float) -> AsyncIterator[Streamed]:
        """Post JSON and yield the reply as it arrives, each piece within `seconds`.

        Raises as `post` does; redirects are not followed.
        """
        request = self._request("POST", path, body)
        async with self._bounded(seconds, "no reply within"):
            response = await self._client.send(request, stream=True)
        try:
            if response.has_redirect_location:
                self._redirected(request, response)
            headers = response.headers
            yield Streamed(
                response.status_code,
                headers.get("content-type", ""),
                headers.get("retry-after", ""),
                self._pieces(response, seconds),
            )
        finally:
            await response.aclose()

    async def _pieces(self, response: httpx2.Response, seconds: float) -> AsyncIterator[bytes]:
        pieces = aiter(response.aiter_bytes())
        while True:
            async with self._bounded(seconds, "the reply stalled for"):
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

    async def _send(self, request: httpx2.Request, most_bytes: int, seconds: float) -> HttpReply:
        async with self._bounded(seconds, "no reply within"):
            for _ in range(_MOST_REDIRECTS):
                response = await self._client.send(request, stream=True)
                try:
                    if not response.has_redirect_location:
                        return await self._read(response, most_bytes)
                    request = self._redirected(request, response)
                finally:
                    await response.aclose()
        raise UnreachableError(f"{self.url} redirects too often: check `base_url`")

    @asynccontextmanager
    async def _bounded(self, seconds: float, told: str) -> AsyncIterator[None]:
        """Bound the time of the block, and name the cause of what fails in it."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise TransientError(f"{told} {seconds:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ExceptionGroup) as error:
            raise self._failure(error) from error

    async def _read(self, response: httpx2.Response, most_bytes: int) -> HttpReply:
        pieces, size = [], 0
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise TransientError(f"the reply is longer than {most_bytes:,} bytes, the limit")
        return HttpReply(response.status_code, b"".join(pieces), response.headers.get("retry-after", ""))

    def _redirected(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Request:
        """The request that follows a redirect, if it stays on the same host."""
        follow = response.next_request
        if follow and follow.method == request.method and _origin(follow.url) == _origin(request.url):
            return follow
        there = brief(str(follow.url if follow else response.headers.get("location", "")))
        raise UnreachableError(
            f"{self.url} redirects to {there}: not followed, as the key and the document would go there; "
            "if that is the endpoint, set `base_url` to it"
        )

    def _failure(self, error: Exception) -> TransientError | UnreachableError:
        """The error to raise for a failed connection."""
        causes = list(_causes(error))
        if isinstance(error, httpx2.ConnectTimeout):
            seconds = self.connection.connect_seconds
            return TransientError(f"could not connect to {self.url} within {seconds:g} s", unreachable=True)
        if not isinstance(error, httpx2.ConnectError):
            return TransientError(f"the connection broke ({_named(error)})")
        if tls := next((it for it in causes if isinstance(it, ssl.SSLError)), None):
            if isinstance(tls, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                return TransientError(f"the connection broke ({_named(tls)})")
            return UnreachableError(_about_tls(self.url, tls))
        if any(isinstance(it, ConnectionRefusedError) for it in causes):
            why = f"nothing listens at {self.url}: is the server running?"
        else:
            why = f"{self.url} cannot be reached ({_named(causes[-1])}): check `base_url`"
        return TransientError(why, unreachable=True)


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
        found = httpx2.URL(url)
        if found.scheme not in ("http", "https") or not found.host:
            raise ValueError("it needs http:// or https:// and a host")
        if found.port is not None and not 0 < found.port <= _MOST_PORT:
            raise ValueError(f"there is no port {found.port}")
    except (httpx2.InvalidURL, ValueError) as error:
        raise SettingsError(
            f"base_url is {brief(url)!r}, which is not a valid address ({brief(str(error))}): "
            "write it as http://localhost:8000/v1"
        ) from error
    return found


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


def _about_tls(url: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not trusted ({error.verify_message}): set SSL_CERT_FILE to "
            "your authority's certificates"
        )
    why = (error.reason or str(error)).replace("_", " ").lower()
    return f"could not open a TLS connection to {url} ({why}): does it speak https, or is it http://?"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and the chain of its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from _causes(error.exceptions[0])
        error = error.__cause__ or error.__context__


def _named(error: BaseException) -> str:
    return brief(str(error) or type(error).__name__)
