"""HTML as Markdown, block by block: headings, lists, links, tables and what pictures show.

What the page hides is left out, as are scripts and styles; bold and italics say little and cost tokens. The
parser repairs the page and reports its tags one by one: neither the depth nor the length of a page matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lxml import etree

from memagent.documents.converters.tables import Grid, TableCell
from memagent.documents.files import UnusableError
from memagent.text import SOFT_HYPHEN

_DROPPED = {
    *("script", "style", "template", "iframe", "object", "canvas", "audio", "video", "noscript"),
    *("annotation", "annotation-xml"),  # of formulas
}
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_LINES = ("li", "dt", "dd", "tr", "caption", "summary", "option", "br", "legend")
_PARAGRAPHS = (
    "p", "pre", "blockquote", "table", "title", "hr", "dl", "fieldset", "div", "section", "details",
    "article", "header", "footer", "main", "body", "aside", "nav", "figure", "figcaption", "form", "address",
)  # fmt: skip
_BREAKS = dict.fromkeys(_LINES, 1) | dict.fromkeys((*_HEADINGS, *_PARAGRAPHS), 2)  # line ends around it
_INLINE = {"code": "`", "del": "~~", "s": "~~", "sup": "^"}
# What goes before each part of a formula, and after the last.
_FORMULAS = {
    **{"mfrac": ("(", ")/(", ")"), "msqrt": ("√(", "", ")"), "mroot": ("√(", ")_(", ")")},
    **dict.fromkeys(("msup", "mover"), ("", "^(", ")")),
    **dict.fromkeys(("msub", "munder"), ("", "_(", ")")),
    **dict.fromkeys(("msubsup", "munderover"), ("", "_(", ")^(", ")")),
    **{"mtr": ("", ", ", ""), "mtable": ("", "; ", "")},
}
_HIDDEN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_LISTS = ("ul", "ol", "menu")
_SPACES = re.compile(r"[ \t\n\r\f]+")
_MAX_CELL = 1000  # characters; a table with longer ones lays out a page rather than data
_MAX_LINK = 1000
_DEEPEST = 10  # levels of lists and quotations that are shown by indentation


def markdown_of(blocks: Iterable[str], name: str = "the page", max_tag: int = 2**26) -> Iterator[str]:
    """The text of a page given in blocks.

    Raises `UnusableError` for a tag of more than `max_tag` characters, which the parser would hold; pictures
    inside pages are tags of many MiB.
    """
    writer = _Writer()
    parser = etree.HTMLParser(target=writer, encoding="utf-8", huge_tree=True)
    has_text, pending = False, 0
    for block in blocks:
        has_text = has_text or bool(block.strip())
        parser.feed(block.encode("utf-8", "replace"))
        pending = 0 if writer.called else pending + len(block)
        if pending > max_tag:
            raise UnusableError(f"{name} has a tag or comment of over {max_tag // 2**20} Mi characters")
        if text := writer.take():
            yield text
    if has_text:  # the parser rejects a blank page
        parser.close()
        yield writer.take() + "\n"


@dataclass(slots=True)
class _OpenTable:
    """A table being read: the finished cells of its current row, and the spans of the open one."""

    grid: Grid = field(default_factory=Grid)
    row: list[TableCell] = field(default_factory=list)
    spans: tuple[int, int] = (1, 1)
    has_output: bool = False


class _Writer:
    """A parser target that writes the tags and the text of a page as Markdown."""

    def __init__(self) -> None:
        self.called = False  # whether the parser has called since the last `take`
        self._out: list[str] = []
        self._has_output = False
        self._cell: list[str] | None = None  # the text of an open cell
        self._tables: list[_OpenTable] = []
        self._lists: list[int | None] = []  # the number of the last item; None for lists without numbers
        self._links: list[str] = []
        self._marker = ""  # what begins the next line: "# ", "* "
        self._marks: list[str] = []  # what goes right before the next text: "[", "`"
        self._formula: list[tuple[str, int]] = []  # open elements of a formula, and how many parts they have
        self._quotes = self._preformatted = self._dropped = (
            0  # open elements; the last counts those within it too
        )
        self._fence_due = False
        self._breaks, self._space, self._last = 0, False, ""

    def take(self) -> str:
        """The text written since the last call."""
        text, self._out, self.called = "".join(self._out), [], False
        return text

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.called = True
        hidden = "hidden" in attributes or _HIDDEN.search(attributes.get("style", ""))
        if self._dropped or tag in _DROPPED or hidden:
            self._dropped += 1
            return
        if self._formula or tag == "math":
            self._open_part(tag)
        self._quotes += tag == "blockquote"
        if tag in ("td", "th"):
            self._open_cell(attributes)
        elif tag == "table":
            self._spill()
            self._tables.append(_OpenTable())
        self._break(_BREAKS.get(tag, 0))
        if tag in _LISTS:
            self._break(1 if self._lists else 2)
            self._lists.append(_number(attributes.get("start")) - 1 if tag == "ol" else None)
        elif tag == "li":
            self._marker = "* "
            if self._lists and (number := self._lists[-1]) is not None:
                self._lists[-1] = number + 1
                self._marker = f"{number + 1}. "
        elif tag in _HEADINGS:
            self._marker = _HEADINGS[tag]
        elif tag == "a":
            self._links.append("" if self._preformatted else _link(attributes.get("href", "")))
            self._marks += ["["] * bool(self._links[-1])
        elif tag == "pre":
            self._preformatted += 1
            self._fence_due = True
        elif tag in _INLINE and not self._preformatted:
            self._marks.append(_INLINE[tag])
        elif tag == "hr":
            self._write("---")
            self._break(2)
        elif tag == "input" and attributes.get("type", "").lower() in ("checkbox", "radio"):
            self._write("[x]" if "checked" in attributes else "[ ]")
            self._space = True
        elif tag == "img" and (caption := " ".join(attributes.get("alt", "").split())):
            self._write(f"![{caption}]")

    def end(self, tag: str) -> None:
        self.called = True
        if self._dropped:
            self._dropped -= 1
            return
        if tag in ("td", "th"):
            self._close_cell()
        elif tag == "tr":
            self._close_row()
        elif tag == "table" and self._tables:
            self._close_row()
            self._write_rows(self._tables[-1].grid.end())
            self._tables.pop()
        elif tag in _LISTS and self._lists:
            self._lists.pop()
            self._break(1 if self._lists else 2)
        elif tag == "li" or tag in _HEADINGS:
            self._marker = ""
        elif tag == "a" and self._links:
            href = self._links.pop()
            self._close("[", f"]({href})" if href else "")
        elif tag == "pre":
            if not self._fence_due:
                self._put("```" if self._last == "\n" else "\n```")
            self._fence_due = False
            self._preformatted -= 1
        elif tag in _INLINE and not self._preformatted:
            self._close(_INLINE[tag], "" if tag == "sup" else _INLINE[tag])
        if self._formula and (name := self._formula.pop()[0]) in _FORMULAS:
            self._sign(_FORMULAS[name][-1])
        self._quotes -= tag == "blockquote"
        self._break(_BREAKS.get(tag, 0))

    def data(self, text: str) -> None:
        self.called = True
        if self._dropped:
            return
        if self._preformatted:
            self._write_preformatted(text.replace("\r\n", "\n"))
            return
        text = text.replace(SOFT_HYPHEN, "")
        self._space = self._space or _SPACES.match(text) is not None
        if words := _SPACES.sub(" ", text).strip(" "):
            self._write(words)
            self._space = _SPACES.match(text[-1]) is not None

    def comment(self, text: str) -> None:
        self.called = True
        if text.startswith("[CDATA["):  # text in XHTML
            self.data(text.removeprefix("[CDATA[").removesuffix("]]"))

    def close(self) -> None:
        if self._tables:
            self._close_row()
        self._spill()

    def _break(self, lines: int) -> None:
        self._breaks = max(self._breaks, lines)

    def _write(self, text: str) -> None:
        """Add text after any pending line ends, space and marks."""
        if self._breaks or not self._has_output:
            levels = len(self._lists) - (1 if self._marker else 0)
            indent = "> " * min(self._quotes, _DEEPEST) + "  " * max(0, min(levels, _DEEPEST))
            has_text = self._has_output or self._cell is not None
            self._put("\n" * self._breaks * has_text + indent)
        elif self._space:
            self._put(" ")
        self._put(self._marker + "".join(self._marks) + text)
        self._marker, self._marks, self._breaks, self._space = "", [], 0, False

    def _put(self, text: str) -> None:
        self._last = text[-1:]
        if self._cell is not None:
            self._cell.append(text)
            if sum(map(len, self._cell)) > _MAX_CELL:
                self._spill()
            return
        if self._tables and self._tables[-1].row:  # text between cells
            self._spill()
        self._out.append(text)
        self._has_output = True

    def _close(self, opened: str, closing: str) -> None:
        """Close what a mark opened; a mark with no text after it is dropped."""
        if self._marks and self._marks[-1] == opened:
            self._marks.pop()
        elif closing:
            self._put(closing)

    def _write_preformatted(self, text: str) -> None:
        if self._fence_due and (text := text.removeprefix("\n")):
            self._write("```\n")
            self._fence_due = False
        if text:
            self._put("\n" * self._breaks + text)
            self._breaks = 0

    def _open_part(self, tag: str) -> None:
        if self._formula:
            name, parts = self._formula[-1]
            self._formula[-1] = name, parts + 1
            if signs := _FORMULAS.get(name, ())[:-1]:
                self._sign(signs[min(parts, len(signs) - 1)], first=not parts)
        self._formula.append((tag, 0))

    def _sign(self, sign: str, first: bool = False) -> None:
        if sign:
            (self._write if first else self._put)(sign)
            self._space = False

    def _open_cell(self, attributes: dict[str, str]) -> None:
        self._close_cell()
        if self._tables:
            self._cell = []
            columns, rows = (_number(attributes.get(name)) for name in ("colspan", "rowspan"))
            self._tables[-1].spans = max(columns, 1), max(rows, 1)

    def _close_cell(self) -> None:
        """Add a short cell to its row; for one already written out, end the paragraph."""
        if self._cell is None:
            self._break(2)
            return
        table = self._tables[-1]
        table.row.append(TableCell(" ".join("".join(self._cell).split()), *table.spans))
        self._cell, self._marker, self._marks = None, "", []

    def _close_row(self) -> None:
        self._close_cell()
        if not self._tables:
            return
        table = self._tables[-1]
        row, table.row = table.row, []
        # A single cell before any other row is not a table yet, or not at all.
        alone = len(row) == 1 and not table.grid.has_rows and not table.grid.down
        self._write_rows(row[0].text if alone else table.grid.row(row))

    def _write_rows(self, lines: str) -> None:
        if lines:
            self._breaks = 1 if self._tables[-1].has_output else 2
            self._write(lines.rstrip("\n"))
            self._tables[-1].has_output = True

    def _spill(self) -> None:
        """Write the open cell, and those before it in its row, as paragraphs: the table lays out a page."""
        if not self._tables:
            return
        table = self._tables[-1]
        texts = (table.grid.end(), *(cell.text for cell in table.row), "".join(self._cell or ()))
        self._cell, table.row = None, []
        for text in filter(None, map(str.strip, texts)):
            self._put("\n\n" * self._has_output + text)


def _number(start: str | None) -> int:
    """The number of a list's first item."""
    return int(start) if start and re.fullmatch(r"-?[0-9]{1,9}", start) else 1


def _link(href: str) -> str:
    """A link's target; empty if it is useless: an anchor in the page, a script, data."""
    href = "".join(href.split())
    return "" if href.startswith(("#", "javascript:", "data:")) or len(href) > _MAX_LINK else href
