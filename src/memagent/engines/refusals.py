"""What a server's refusal means: try again, cut the prompt, or give up and say what to do next."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from memagent.errors import ContextOverflowError, EngineError, without_secrets
from memagent.text import sendable
from memagent.types import Usage

# Applied to words without underscores. A request may also exceed a budget, or the limit of its reply.
_OVERFLOW = re.compile(
    r"context[ -]?(?:length|window|size|limit)|max model len"
    r"|max(?:imum)? (?:context|model|input|prompt) (?:length|characters)"
    r"|model token limit|exceed max (?:num tokens|seq len)|too many (?:input )?tokens"
    r"|(?:prompt|input|request)(?:(?!max tokens).){0,40}"
    r"(?:too long|too large|exceeds(?!.{0,40}\b(?:budget|quota|credit|balance|rate|time)))"
    r"|input length should be|inputs\W+must have less|longer than the (?:model|maximum)"
    r"|max new tokens\W+must be",
    re.IGNORECASE,
)
_RETRIED_STATUS = {408, 409, 425, 429}
_STATUS_CODES = frozenset(map(str, range(400, 600)))
_SHOWN_CHARACTERS = 300
_LOOKED_AT_BYTES = 64 * 1024


class TransientError(Exception):
    """A failure that another try may get past, with the delay that the server asked for.

    `unreachable` says that nothing answered at all; `usage` is that of a reply that was paid for.
    """

    usage: Usage | None = None

    def __init__(
        self, reason: str, retry_after_seconds: float | None = None, *, unreachable: bool = False
    ) -> None:
        super().__init__(brief(reason))
        self.retry_after_seconds = retry_after_seconds
        self.unreachable = unreachable


class UnusableReplyError(TransientError):
    """The model itself wrote what cannot be used."""

    def lasting(self) -> EngineError:
        """The error for a greedy call, whose repetition would bring the same again."""
        error = EngineError(str(self))
        error.usage = self.usage
        return error


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that a server sent: its HTTP status and its own words, empty where it has none."""

    status: int
    message: str
    code: str = ""
    param: str = ""
    retry_after_seconds: float | None = None

    @property
    def is_overflow(self) -> bool:
        """Whether the server says that the prompt does not fit the model's window."""
        words = f"{self.code} {self.message}".replace("_", " ")
        return self.status in (400, 413, 422, 500, 502) and bool(_OVERFLOW.search(words))


class RefusedError(EngineError):
    """The endpoint refused a forwarded request; `refusal` holds its words."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What came back: the status, the body (decompressed), and the Retry-After header."""

    status: int
    body: bytes
    retry_after: str = ""

    @property
    def text(self) -> str:
        """The beginning of the body: enough to recognise it, and to quote."""
        return self.body[:_LOOKED_AT_BYTES].decode("utf-8", "replace").strip()


def read_refusal(reply: HttpReply) -> Refusal:
    """The refusal in an error reply, in any of the shapes that servers send; never raises.

    Some gateways send status 200 with an error of the server behind them.
    """
    text = reply.text
    try:
        sent: Any = json.loads(text)
    except (ValueError, RecursionError):
        sent = None
    error = sent.get("error") if isinstance(sent, dict) else sent
    if error is None or isinstance(error, bool):
        error = sent
    fields = error if isinstance(error, dict) else {}
    message = fields.get("message") or fields.get("detail")
    if not message and isinstance(error, str):
        message = error
    code, status = sendable(str(fields.get("code") or "")), reply.status
    if status < 300:
        status = int(code) if code in _STATUS_CODES else 502
    return Refusal(
        status,
        brief(page_title(text) if is_page(text) else str(message or text)),
        code,
        sendable(str(fields.get("param") or "")),
        seconds_to_wait(reply.retry_after),
    )


def error_of(refusal: Refusal, url: str, has_key: bool) -> EngineError | TransientError:
    """The error to raise for a refusal by the endpoint at `url`."""
    status, text = refusal.status, refusal.message
    if status == 429 and refusal.code == "insufficient_quota":
        return EngineError(f"the account's quota is used up: {text}")
    if status in _RETRIED_STATUS or (status >= 500 and not refusal.is_overflow):
        return TransientError(f"HTTP {status}: {text}", refusal.retry_after_seconds)
    if refusal.is_overflow:
        return ContextOverflowError(text)
    if status in (401, 403):
        return EngineError(_about_the_key(refusal, url, has_key))
    if status == 404:
        named = "model" in f"{refusal.code} {text}".lower()
        hint = "check `model`" if named else "check `base_url` (does it end in /v1?) and `model`"
        return EngineError(f"{url} did not find what was asked for (HTTP 404: {text}): {hint}")
    return EngineError(f"{url} refused the call (HTTP {status}: {text})")


def _about_the_key(refusal: Refusal, url: str, has_key: bool) -> str:
    details = f"(HTTP {refusal.status}: {refusal.message})"
    if not has_key:
        return (
            f"{url} wants a key {details}: set `api_key` or MEMAGENT_API_KEY "
            "(OPENAI_API_KEY is sent only to OpenAI and to OPENAI_BASE_URL)"
        )
    if refusal.status == 403:
        return (
            f"{url} does not allow this key to do so {details}: check what `api_key` or OPENAI_API_KEY may do"
        )
    return f"{url} refused the key {details}: check `api_key`, MEMAGENT_API_KEY or OPENAI_API_KEY"


def seconds_to_wait(retry_after: str) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or a date; None for anything else."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def is_page(text: str) -> bool:
    """Whether a reply is an HTML page, as gateways and wrong addresses send."""
    start = text[:200].lower()
    return start.startswith(("<!doctype", "<html", "<head", "<body", "<h1", "<?xml"))


def page_title(text: str) -> str:
    """A description of an HTML page, with its title or heading."""
    match = re.search(r"<(title|h1)[^>]*>([^<]*)", text[:20_000], re.IGNORECASE)
    return f"an HTML page{f', {match[2].strip()!r}' if match and match[2].strip() else ''}"


def brief(text: str) -> str:
    """Shorten a text for a message: on one line, without the secrets of a URL, in any encoding."""
    line = " ".join(without_secrets(sendable(text[: 4 * _SHOWN_CHARACTERS])).split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 3] + "..."
