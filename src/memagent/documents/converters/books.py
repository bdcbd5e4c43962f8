"""Zipped XML to HTML: e-books and OpenDocument texts.

A chapter that a book lists but lacks is left out, and named.
"""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from typing import IO, Any
from urllib.parse import unquote

from .text import Remark, closed_html, xml_parser

_LOCKED = "META-INF/encryption.xml"
_TAGS = {
    **{"p": "p", "list": "ul", "list-item": "li", "a": "a", "line-break": "br"},
    **{"table": "table", "table-row": "tr", "table-cell": "td"},
}  # of OpenDocument
_ATTRIBUTES = {"href": "href", "number-columns-spanned": "colspan", "number-rows-spanned": "rowspan"}


def epub(file: IO[bytes]) -> Iterator[str]:
    """The HTML of the chapters, in reading order."""
    from lxml import etree

    def parse(name: str) -> Any:
        return etree.fromstring(archive.read(name), xml_parser(recover=True))

    with zipfile.ZipFile(file) as archive:
        package = next(parse("META-INF/container.xml").iter("{*}rootfile")).get("full-path")
        book = parse(package)
        hrefs = {item.get("id"): item.get("href") for item in book.iter("{*}item")}
        locked = parse(_LOCKED) if _LOCKED in archive.namelist() else book
        encrypted = {unquote(element.get("URI", "")) for element in locked.iter("{*}CipherReference")}
        names = {name.casefold(): name for name in archive.namelist()}
        for idref in dict.fromkeys(item.get("idref") for item in book.iter("{*}itemref")):
            href = unquote(hrefs.get(idref, "").partition("#")[0])
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package), href))
            if not (entry := names.get(name.casefold())):
                yield Remark(f"{name if href else idref} is missing")
            elif content := archive.read(entry).strip():
                if name in encrypted:
                    raise ValueError(f"{name} is encrypted")
                yield _chapter(content, name) + "\n"


def _chapter(content: bytes, name: str) -> str:
    """A chapter as HTML, parsed as such if it is not well-formed: a lenient parser of XML leaves out text."""
    from lxml import etree

    try:
        chapter = etree.fromstring(content, xml_parser())
    except etree.XMLSyntaxError:
        lenient = etree.fromstring(content, xml_parser(recover=True))
        if lenient is None:
            raise ValueError(f"{name} is not a page") from None
        encoding = lenient.getroottree().docinfo.encoding or "utf-8"
        return closed_html(content.decode(encoding, "replace"))
    # Written as HTML, in which `<title/>` would count as an opening tag.
    return str(etree.tostring(chapter, method="html", encoding="unicode"))


def odt(file: IO[bytes]) -> Iterator[str]:
    """HTML, without comments and tracked deletions."""
    from lxml import etree

    with zipfile.ZipFile(file) as archive:
        root = etree.fromstring(archive.read("content.xml"), xml_parser())
    etree.strip_elements(root, "{*}tracked-changes", "{*}annotation", with_tail=False)
    for node in root.iter("*"):
        kind = etree.QName(node).localname
        values = {etree.QName(name).localname: value for name, value in node.attrib.items()}
        node.attrib.clear()
        if kind in ("s", "tab"):
            node.text = " "
        node.tag = f"h{values.get('outline-level', '1')[:1]}" if kind == "h" else _TAGS.get(kind, "other")
        for name in _ATTRIBUTES.keys() & values.keys():
            node.set(_ATTRIBUTES[name], values[name])
    etree.strip_tags(root, "other")
    root.tag = "html"
    yield str(etree.tostring(root, method="html", encoding="unicode"))
