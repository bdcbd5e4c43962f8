"""E-books to HTML."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from typing import IO, Any
from urllib.parse import unquote

from .text import xml_parser

_LOCKED = "META-INF/encryption.xml"


def epub(file: IO[bytes]) -> Iterator[str]:
    """The HTML of the chapters, in reading order."""
    from lxml import etree

    def parsed(name: str) -> Any:
        return etree.fromstring(archive.read(name), xml_parser(recover=True))

    with zipfile.ZipFile(file) as archive:
        package = next(parsed("META-INF/container.xml").iter("{*}rootfile")).get("full-path")
        book = parsed(package)
        hrefs = {item.get("id"): item.get("href") for item in book.iter("{*}item")}
        locked = parsed(_LOCKED) if _LOCKED in archive.namelist() else book
        encrypted = {unquote(it.get("URI", "")) for it in locked.iter("{*}CipherReference")}
        for item in book.iter("{*}itemref"):
            href = unquote(hrefs.get(item.get("idref"), "").partition("#")[0])
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package), href))
            if content := archive.read(name).strip():
                if name in encrypted:
                    raise ValueError(f"{name} is encrypted")
                # Written as HTML, in which `<title/>` would count as an opening tag.
                yield etree.tostring(_chapter(content, name), method="html", encoding="unicode") + "\n"


def _chapter(content: bytes, name: str) -> Any:
    """A chapter, parsed as HTML if it is not well-formed: a lenient parser of XML leaves out text."""
    from lxml import etree

    try:
        return etree.fromstring(content, xml_parser())
    except etree.XMLSyntaxError:
        lenient = etree.fromstring(content, xml_parser(recover=True))
        if lenient is None:
            raise ValueError(f"{name} is not a page") from None
        encoding = lenient.getroottree().docinfo.encoding or "utf-8"
        text = content.decode(encoding, "replace").encode()
        return etree.fromstring(text, etree.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True))
