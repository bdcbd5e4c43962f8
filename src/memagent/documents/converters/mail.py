"""Mails and saved web pages (MIME) to HTML: the main headers, then all parts in order, as a person sees them.

Of alternatives, the one that says most is read. Signatures, and the pictures and styles of pages, are left
out. Attached files are read if they are text or office files, PDF or books; the others are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes
from email.headerregistry import ContentDispositionHeader, HeaderRegistry
from email.message import MIMEPart
from email.policy import default
from html import escape
from io import BytesIO
from typing import IO, Any

from . import HTML, converter
from .text import Remark, clean, closed_html, html_tree, meant_encoding

_HEADERS = ("From", "To", "Cc", "Date")
_REGISTRY: Any = HeaderRegistry(use_default_map=False)  # Python's parsers of addresses fail on malformed ones
_REGISTRY.map_to_type("content-disposition", ContentDispositionHeader)
_POLICY = default.clone(header_factory=_REGISTRY)
_BEGINNING = re.compile(rb"From .*\d:\d\d.* \d{4}( [+-]\d{4})?\s*$")  # ends in the year, or in a time zone
_QUOTED = re.compile(rb"^>(?=>*From )")
_URL = re.compile(r"https?://\S+")
_FILES = ("docx", "epub", "odt", "pdf", "pptx", "rtf", "xlsx")


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
        yield f"<h1>{_escape_text(subject)}</h1>"
    headers = (f"{name}: {_escape_text(message[name])}" for name in _HEADERS if message[name])
    yield f"<p>{'<br>'.join(headers)}</p>"
    yield from _part(message)


def _part(part: MIMEPart) -> Iterator[str]:
    """The text of a part, or of all parts within it."""
    kind, name = part.get_content_type(), part.get_filename()
    if kind == "multipart/alternative":
        yield from _fullest(_alternatives(part))
    elif kind == "message/rfc822" and part.is_multipart():
        yield from _heading(name)
        yield from _message(part.get_payload(0))
    elif part.is_multipart():
        for inner in _parts(part):
            yield from _part(inner)
    elif part.get_content_maintype() == "text":
        yield from _heading(name)
        text = _text(part)
        plain = f"<pre>{_escape_text(text)}</pre>" if text.strip() else ""
        yield closed_html(text) if kind == "text/html" else plain
    else:
        yield from _file(part, name)


def _alternatives(part: MIMEPart) -> list[MIMEPart]:
    """The forms of one text; those for machines, such as calendars, count only if there are no others."""
    parts: list[MIMEPart] = [*part.iter_parts()]
    readable = ("text/plain", "text/html")
    return [form for form in parts if form.is_multipart() or form.get_content_type() in readable] or parts


def _parts(part: MIMEPart) -> list[MIMEPart]:
    """The parts to read: of a page, its text and its attachments; of a signed mail, the text alone."""
    parts: list[MIMEPart] = [*part.iter_parts()]
    if part.get_content_type() == "multipart/signed":
        return parts[:1]
    if part.get_content_type() == "multipart/related" and parts:
        start = part.get_param("start")
        first = next((inner for inner in parts if start and inner["Content-ID"] == start), parts[0])
        return [first, *(inner for inner in parts if inner is not first and inner.is_attachment())]
    return parts


def _fullest(parts: list[MIMEPart]) -> list[str]:
    """The form that says most; of two that are as long, the later one: senders put the best last."""
    best, most = list[str](), set[str]()
    for part in parts:
        pieces = [*_part(part)]
        words = set[str]().union(*(_words(piece) for piece in pieces if not isinstance(piece, Remark)))
        if not best or (words != most and len(words) >= len(most)):
            best, most = pieces, words
    return best


def _words(page: str) -> set[str]:
    """The different words that a person sees of a page, apart from the addresses of links."""
    from lxml import etree

    root = html_tree(page)
    if root is None:
        return set()
    etree.strip_elements(root, etree.Comment, "style", "script", "title", with_tail=False)
    return {*re.findall(r"\w+", _URL.sub("", " ".join(root.itertext())).lower())}


def _heading(name: str | None, note: str = "") -> Iterator[str]:
    if name:
        yield f"<p>Attachment{note}: {_escape_text(name)}</p>"


def _file(part: MIMEPart, name: str | None) -> Iterator[str]:
    """The text of an attached file; one without text, or one that cannot be read, is only named."""
    suffix = (name or "").rpartition(".")[2].lower()
    kind = next((kind for kind in (suffix, part.get_content_subtype()) if kind in _FILES), None)
    if kind is None:
        yield from _heading(name, ", not read")
        return
    content: Any = part.get_payload(decode=True)
    try:
        pieces = [*converter(kind)(BytesIO(content or b""))]
        if not "".join(pieces).strip():
            raise ValueError("it has no text")
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 each library has its own
        why = "it needs memagent[formats]" if isinstance(error, ImportError) else str(error)
        yield from _heading(name, ", not read")
        yield Remark(f"{name or 'an attachment'} ({why.partition(chr(10))[0]})")
        return
    yield from _heading(name)
    for piece in pieces:
        if isinstance(piece, Remark):
            yield Remark(f"{name}: {piece}")
        else:
            yield piece if kind in HTML else f"<pre>{_escape_text(piece)}</pre>"


def _text(part: MIMEPart) -> str:
    payload: Any = part.get_payload(decode=True)
    content: bytes = payload or b""
    with suppress(LookupError, ValueError):  # no encoding, or none of text
        return content.decode(meant_encoding(part.get_content_charset("ascii")), "replace")
    return content.decode("utf-8", "replace")


def _escape_text(text: str) -> str:
    return escape(clean(text), quote=False)
