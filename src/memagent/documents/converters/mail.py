"""Mails and saved web pages (MIME) to HTML: the main headers, the text, and attachments that are text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes
from email.headerregistry import ContentDispositionHeader, HeaderRegistry
from email.message import MIMEPart
from email.policy import default
from html import escape
from typing import IO, Any

from .text import clean, closed_html, meant_encoding

_HEADERS = ("From", "To", "Cc", "Date")
_REGISTRY: Any = HeaderRegistry(use_default_map=False)  # Python's parsers of addresses fail on malformed ones
_REGISTRY.map_to_type("content-disposition", ContentDispositionHeader)
_POLICY = default.clone(header_factory=_REGISTRY)
_BEGINNING = re.compile(rb"From .*\d:\d\d.* \d{4}( [+-]\d{4})?\s*$")  # ends in the year, or in a time zone
_QUOTED = re.compile(rb"^>(?=>*From )")


def eml(file: IO[bytes]) -> Iterator[str]:
    """One mail, or one page with all that belongs to it."""
    return _mail(file.read())


def mbox(file: IO[bytes]) -> Iterator[str]:
    """The mails of a mailbox; each begins with a line "From ..." that tells the date, after an empty one."""
    lines: list[bytes] = []
    for line in file:
        if _BEGINNING.match(line) and (not lines or not lines[-1].strip()):
            yield from _mail(b"".join(lines))
            lines.clear()
        else:
            lines.append(_QUOTED.sub(b"", line))
    yield from _mail(b"".join(lines))


def _mail(content: bytes) -> Iterator[str]:
    if content.strip():
        yield from _message(message_from_bytes(content, policy=_POLICY))


def _message(message: Any) -> Iterator[str]:
    if subject := message["Subject"]:
        yield f"<h1>{_shown(subject)}</h1>"
    headers = (f"{name}: {_shown(message[name])}" for name in _HEADERS if message[name])
    yield f"<p>{'<br>'.join(headers)}</p>"
    body = message.get_body(("plain", "html"))
    if body is not None and body.get_content_type() == "text/plain" and not _text(body).strip():
        body = message.get_body(("html",)) or body
    if body is not None:
        yield from _part(body)
    if message.get_content_type() != "multipart/related":  # whose parts are the body's pictures
        for part in message.iter_attachments():
            is_text = part.get_content_maintype() in ("text", "message", "multipart")
            if name := part.get_filename():
                yield f"<p>Attachment{'' if is_text else ', not read'}: {_shown(name)}</p>"
            if is_text:
                yield from _part(part)


def _part(part: MIMEPart) -> Iterator[str]:
    kind = part.get_content_type()
    if kind == "message/rfc822":
        yield from _message(part.get_payload(0))
    elif part.is_multipart():
        for inner in part.iter_parts():
            yield from _part(inner)
    elif kind == "text/html":
        yield closed_html(_text(part))
    else:
        yield f"<pre>{_shown(_text(part))}</pre>"


def _text(part: MIMEPart) -> str:
    payload: Any = part.get_payload(decode=True)
    content: bytes = payload or b""
    with suppress(LookupError, ValueError):  # no encoding, or none of text
        return content.decode(meant_encoding(part.get_content_charset("ascii")), "replace")
    return content.decode("utf-8", "replace")


def _shown(text: str) -> str:
    return escape(clean(text), quote=False)
