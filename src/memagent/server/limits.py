"""What clients may ask of the server, and who they are."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from memagent.errors import SettingsError
from memagent.storage import read_utf8

_MIN_KEY_CHARACTERS = 16
_MOST_OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server.

    `body_bytes` is the largest request, and `held_bytes` the most that all have in memory, half of it for one
    key. `upload_bytes` is the largest file, `stored_bytes` the most that one key may have on the disk.
    `requests` is the most requests of one key at a time, `reads` its most unfinished reads. A silent stream
    sends something every `keep_alive_seconds`. `stop_seconds` is how long open requests have to finish at
    shutdown. There are at most `sessions` sessions of MCP, and one that is idle for `session_seconds` ends.
    `context_tokens` is the window that clients are told, by which some shorten their chats. `origins` are
    those of other web pages that may use the server.
    """

    body_bytes: int = 16 * 2**20
    upload_bytes: int = 512 * 2**20
    stored_bytes: int = 16 * 2**30
    requests: int = 1000
    reads: int = 10_000
    keep_alive_seconds: float = 10.0
    stop_seconds: int = 5
    sessions: int = 1000
    session_seconds: float = 600.0
    context_tokens: int = 4_000_000  # about as many as the largest request has
    origins: tuple[str, ...] = ()

    @property
    def held_bytes(self) -> int:
        """The most bytes of requests in memory."""
        return 32 * self.body_bytes


def open_files() -> int:
    """How many files, sockets among them, this process may have open, after asking for as many as it can."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_OPEN_FILES)
    if limit > now:
        with suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@dataclass(frozen=True, slots=True)
class Keys:
    """The API keys that are accepted, as SHA-256 digests. Without any, everyone is let in."""

    digests: tuple[bytes, ...] = ()

    def owner(self, given: bytes) -> str | None:
        """The name under which files and reads of this key are kept; None for an unknown key."""
        digest = hashlib.sha256(given).digest()  # so timing tells nothing about a key
        return digest.hex()[:16] if digest in self.digests else None


def check_origins(origins: Sequence[str], keys: Keys) -> tuple[str, ...]:
    """Check the origins of web pages (`https://chat.example`). Raises `SettingsError` for an invalid one."""
    for origin in origins:
        parts = urlsplit(origin)
        if origin == "*" and not keys.digests:
            raise SettingsError("`allow_origin` * lets in every web page: give the server `keys`")
        whole = parts.scheme in ("http", "https") and parts.netloc
        if origin != "*" and not (whole and origin == f"{parts.scheme}://{parts.netloc}"):
            raise SettingsError(
                f"`allow_origin` {origin!r} is not an origin: write http://localhost:3000, for example"
            )
    return tuple(origins)


def read_keys(path: Path | None) -> Keys:
    """The keys in a file, one per line, besides comments (#); none without a file. Raises `SettingsError`."""
    if path is None:
        return Keys()
    lines = read_utf8(path, "`keys`").splitlines()
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise SettingsError(f"`keys` {path} has no key: write one per line")
    for number, key in enumerate(keys, 1):
        if len(key) < _MIN_KEY_CHARACTERS or not (key.isascii() and key.isprintable()) or " " in key:
            raise SettingsError(
                f"`keys` {path}: key {number} is shorter than {_MIN_KEY_CHARACTERS} characters, or has "
                "characters that a key may not have; make one with: "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
    return Keys(tuple(hashlib.sha256(key.encode()).digest() for key in keys))
