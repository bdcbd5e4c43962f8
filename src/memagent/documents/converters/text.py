"""What the converters have in common: clean text, the encodings that are meant, safe parsers, equations."""

from __future__ import annotations

import codecs
import re
from typing import Any

from memagent.text import SOFT_HYPHEN

PAGE_END = "\f"
REMARK = "\x1e"
"""Stands before and after a remark in a converted text, and nowhere else in it."""

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe]")
_BETWEEN = {"eqArr": "; ", "m": "; ", "mr": ", "}  # equations below each other, matrices and their rows
# Declared encodings, and those that are meant, which have more characters: mostly Microsoft's.
_MEANT = {
    "ascii": "utf-8", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
    "euc_kr": "cp949",
}  # fmt: skip


class Remark(str):
    """What a converter reports about a file besides its text: what it left out, and why."""


def frame(piece: str) -> str:
    """A piece of a converted text, or a remark between its marks."""
    plain = piece.replace(REMARK, " ")
    return f"{REMARK}{plain}{REMARK}" if isinstance(piece, Remark) else plain


def clean(text: str) -> str:
    """The text without control characters, lone surrogates and soft hyphens, which nobody sees in a word."""
    return _CONTROLS.sub(" ", text.replace(SOFT_HYPHEN, ""))


def meant_encoding(declared: str) -> str:
    """The encoding meant by a declared one. Raises `LookupError` or `ValueError` if it is not one of text."""
    "".encode(declared)  # fails for base64 and the like
    encoding = codecs.lookup(declared).name
    return _MEANT.get(encoding, encoding)


def html_tree(page: str) -> Any:
    """The elements of a page of HTML, repaired; None if there are none."""
    from lxml import etree

    parser = etree.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
    return etree.fromstring(page.encode("utf-8", "replace"), parser) if page.strip() else None


def closed_html(page: str) -> str:
    """A page of HTML, repaired, so that nothing in it swallows what follows."""
    from lxml import etree

    root = html_tree(page)
    return "" if root is None else str(etree.tostring(root, method="html", encoding="unicode"))


def xml_parser(recover: bool = False) -> Any:
    """A parser that fetches nothing and expands no entities."""
    from lxml import etree

    return etree.XMLParser(resolve_entities=False, no_network=True, recover=recover)


def as_text(node: Any) -> str:
    """An equation, or a part of one."""
    kind = node.tag.rpartition("}")[2]
    if kind == "t":
        return node.text or ""
    parts = [(child.tag.rpartition("}")[2], as_text(child)) for child in node]
    inner = dict(parts)
    if kind == "f":
        return f"({inner.get('num', '')})/({inner.get('den', '')})"
    if kind == "rad":
        return f"{inner.get('deg', '')}√({inner.get('e', '')})"
    if kind in ("sup", "sub", "lim"):
        text = "".join(text for _, text in parts)
        return f"{'^' if kind == 'sup' else '_'}({text})" if text else ""
    if kind == "d":
        within = _sign(node, "sepChr", "|").join(text for name, text in parts if name == "e")
        return _sign(node, "begChr", "(") + within + _sign(node, "endChr", ")")
    before = _sign(node, "chr", "∫") if kind == "nary" else ""
    between = _BETWEEN.get(kind, "")
    return before + between.join(text for name, text in parts if text or name == "e")


def _sign(node: Any, name: str, default: str) -> str:
    """A sign from an element's properties, such as a bracket or a sum."""
    element = node.find(f"{{*}}{node.tag.rpartition('}')[2]}Pr/{{*}}{name}")
    return default if element is None else "".join(element.attrib.values())
