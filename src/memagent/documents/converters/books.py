"""E-books to HTML."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from typing import IO, Any
from urllib.parse import unquote

from .text import xml_parser


def epub(file: IO[bytes]) -> Iterator[str]:
    """The HTML of the chapters, in reading order."""
    from lxml import etree

    def parsed(name: str) -> Any:
        return etree.fromstring(archive.read(name), xml_parser(recover=True))

    with zipfile.ZipFile(file) as archive:
        package = next(parsed("META-INF/container.xml").iter("{*}rootfile")).get("full-path")
        book = parsed(package)
        hrefs = {item.get("id"): item.get("href") for item in book.iter("{*}item")}
        for item in book.iter("{*}itemref"):
            href = unquote(hrefs.get(item.get("idref"), "").partition("#")[0])
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package), href))
            if archive.read(name).strip():
                # Written as HTML, in which `<title/>` would count as an opening tag.
                yield etree.tostring(parsed(name), method="html", encoding="unicode") + "\n"
