"""OpenDocument texts to HTML."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from html import escape
from typing import IO, ClassVar


def odt(file: IO[bytes]) -> Iterator[str]:
    """HTML, without comments and tracked deletions."""
    from lxml import etree

    writer = _OpenDocument()
    parser = etree.XMLParser(target=writer, resolve_entities=False, no_network=True)
    with zipfile.ZipFile(file) as archive, archive.open("content.xml") as content:
        while block := content.read(2**18):
            parser.feed(block)
            yield writer.taken()
    parser.close()
    yield writer.taken()


class _OpenDocument:
    """A parser target that writes the content of an OpenDocument text as HTML."""

    TAGS: ClassVar = {
        **{"p": "p", "list": "ul", "list-item": "li", "a": "a"},
        **{"table": "table", "table-row": "tr", "table-cell": "td"},
    }
    SPANS: ClassVar = {"number-columns-spanned": "colspan", "number-rows-spanned": "rowspan"}
    DROPPED = ("tracked-changes", "annotation")

    def __init__(self) -> None:
        self._html: list[str] = []
        self._open: list[str] = []
        self._dropped = 0

    def taken(self) -> str:
        """What was written since the last call."""
        html = "".join(self._html)
        self._html.clear()
        return html

    def start(self, name: str, attributes: dict[str, str]) -> None:
        kind = name.rpartition("}")[2]
        values = {key.rpartition("}")[2]: value for key, value in attributes.items()}
        tag = f"h{values.get('outline-level', '1')[:1]}" if kind == "h" else self.TAGS.get(kind, "")
        self._open.append(tag)
        self._dropped += kind in self.DROPPED
        if self._dropped:
            return
        if kind in ("s", "tab", "line-break"):
            self._html.append("<br>" if kind == "line-break" else " ")
        if tag:
            link = f' href="{escape(values.get("href", ""))}"' if tag == "a" else ""
            spans = (f' {it}="{escape(values[key])}"' for key, it in self.SPANS.items() if key in values)
            self._html.append(f"<{tag}{link}{''.join(spans)}>")

    def end(self, name: str) -> None:
        if (tag := self._open.pop()) and not self._dropped:
            self._html.append(f"</{tag}>")
        self._dropped -= name.rpartition("}")[2] in self.DROPPED

    def data(self, text: str) -> None:
        if not self._dropped:
            self._html.append(escape(text))

    def close(self) -> None:
        """Called by the parser at the end."""
