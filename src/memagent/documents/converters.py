"""Converters from each format to text; `converter_program.py` runs them in a separate process.

This imports nothing from memagent and only what the format needs, so that it starts quickly. Word,
OpenDocument and e-book files become HTML; in PDF files and slides, a form feed ends each page.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, time
from html import escape
from typing import IO, Any, ClassVar
from urllib.parse import unquote

HTML = frozenset({"docx", "epub", "odt"})
PAGED = frozenset({"pdf", "pptx"})
_PAGE_END = "\f"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_WORD_TEXT = re.compile(r"word/(document\d*|footnotes|endnotes)\.xml")
_UNREAD = re.compile(rb"oMath|fldSimple|moveTo|customXml|<w:(?:bdo|dir|ruby)\b|txbxContent")
"""What mammoth would leave out."""
_LIKE_TAGS = ("fldSimple", "moveTo", "customXml", "bdo", "dir", "ruby", "rubyBase")
_RTF_NOTE = re.compile(r"\\footnote(?![a-z]) ?")
_FORMULA = re.compile(rb"<([\w.-]+:)?f[\s/>]")
_FORMULA_BYTES = 256  # kept between blocks: more than such a tag takes, prefix included
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe]")


def pdf(file: IO[bytes]) -> Iterator[str]:
    """Each page's text, in the order of the file, followed by the values of its form fields."""
    import pypdfium2

    document = pypdfium2.PdfDocument(file)
    with suppress(pypdfium2.PdfiumError):  # even if the form cannot be read, the pages can
        document.init_forms()
    for number, page in enumerate(document):
        if page.formenv:
            with suppress(pypdfium2.PdfiumError):
                page.flatten()  # makes the values part of the page, which must then be reloaded
            page.close()
            page = document[number]
        lines = page.get_textpage().get_text_range().replace("\ufffe", "-").split("\r\n")
        text = _clean("\n".join(line.rstrip() for line in lines)).strip("\n")
        yield (text + "\n\n" if text.strip() else "") + _PAGE_END
        page.close()


def pptx(file: IO[bytes]) -> Iterator[str]:
    """Each slide's text, tables, diagrams, charts and notes."""
    from pptx import Presentation

    for slide in Presentation(file).slides:
        texts = [text for shape in slide.shapes for text in _shape_texts(shape)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame):
            texts.append(f"Notes: {notes.text}" if notes.text.strip() else "")
        yield "".join(f"{_clean(text).strip()}\n\n" for text in texts if text.strip()) + _PAGE_END


def _shape_texts(shape: Any) -> Iterator[str]:
    for inner in getattr(shape, "shapes", ()):
        yield from _shape_texts(inner)
    if shape.has_text_frame:
        yield shape.text_frame.text.replace("\v", "\n")
    if getattr(shape, "has_table", False):
        yield _table([[cell.text for cell in row.cells] for row in shape.table.rows])
    if getattr(shape, "has_chart", False):
        yield from _chart(shape.chart.element)
    for diagram in shape.element.iterfind("{*}graphic/{*}graphicData/{*}relIds"):
        if (number := diagram.get(f"{_RELATION}dm")) in shape.part.rels:
            yield _diagram(shape.part.related_part(number).blob)


def _diagram(content: bytes) -> str:
    """The text of a SmartArt diagram."""
    from lxml import etree

    return _paragraphs(etree.fromstring(content, _parser()))


def _paragraphs(node: Any) -> str:
    """The paragraphs of a drawing, one per line."""
    texts = (
        "".join(
            it.text or "" if it.tag == f"{_DRAWING}t" else "\n"
            for it in one.iter(f"{_DRAWING}t", f"{_DRAWING}br")
        )
        for one in node.iter(f"{_DRAWING}p")
    )
    return "\n".join(filter(str.strip, texts))


def _chart(chart: Any) -> Iterator[str]:
    """The titles and a table of each plot, from the XML: python-pptx does not know all plot types."""
    for title in chart.iter("{*}title"):
        yield _paragraphs(title)
    for plot in chart.iterfind(".//{*}plotArea/*"):
        rows: list[list[str]] = []
        labels: list[list[str]] = []
        for one in plot.iterfind("{*}ser"):
            found = [["", *row] for row in _points(one, "cat", "xVal")] or [[""]]
            if not rows or found not in ([[""]], labels):
                labels = found
                rows += labels
            name = one.findtext("{*}tx//{*}v") or ""
            rows += [[name, *row] for row in _points(one, "val", "yVal", "bubbleSize")]
        if rows:
            yield _table(rows)


def _points(series: Any, *kinds: str) -> Iterator[list[str]]:
    """The values that a chart caches for these parts of a series; labels may have several levels."""
    for part in (it for kind in kinds for it in series.iterfind(f"{{*}}{kind}")):
        numeric = next(part.iter("{*}numCache", "{*}numLit"), None) is not None
        for level in reversed(list(part.iter("{*}lvl")) or [part]):
            texts = {int(it.get("idx")): it.findtext("{*}v") or "" for it in level.iter("{*}pt")}
            row = [texts.get(number, "") for number in range(max(texts, default=-1) + 1)]
            yield list(map(_number, row)) if numeric else row


def _number(text: str) -> str:
    try:
        return _cell(float(text))
    except ValueError:  # a spreadsheet error, such as #N/A
        return text


def xlsx(file: IO[bytes]) -> Iterator[str]:
    """Each sheet as a table. A formula that was never computed is shown as it is."""
    from openpyxl import load_workbook

    values = load_workbook(file, read_only=True, data_only=True)
    formulas = load_workbook(file, read_only=True) if _has_formulas(file) else values
    for sheet, computed in zip(formulas.worksheets, values.worksheets, strict=True):
        yield f"## {_clean(sheet.title)}\n\n"
        for one in {sheet, computed}:
            one.reset_dimensions()  # those stated in the file may be wrong
        begun = False
        for row in _values(sheet, computed):
            cells = list(map(_cell, row))
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                yield _row(cells) if begun else _row(cells) + _rule(cells)
                begun = True
        yield "\n"


def _values(sheet: Any, computed: Any) -> Iterator[Iterable[object]]:
    """The values of each row; for a formula, the computed value if there is one."""
    if sheet is computed:
        yield from sheet.iter_rows(values_only=True)
        return
    for row, shown in zip(sheet.iter_rows(values_only=True), computed.iter_rows(), strict=False):
        yield [
            given
            if known.value is None and known.data_type != "str"
            else known.value  # an empty string is None
            for given, known in zip(row, shown, strict=False)
        ]


def _has_formulas(file: IO[bytes]) -> bool:
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.startswith("xl/worksheets/"):
                with archive.open(name) as sheet:
                    before = b""
                    while block := sheet.read(2**20):
                        if _FORMULA.search(before + block):
                            return True
                        before = block[-_FORMULA_BYTES:]
    return False


def _cell(value: object) -> str:
    """A cell as a person sees it: whole numbers without a decimal point, dates without midnight."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if hasattr(value, "ref"):  # a formula of several cells
        return str(getattr(value, "text", None) or value.ref)
    return str(value)


def _table(rows: list[list[str]]) -> str:
    return "".join(_row(row) + (_rule(row) if not number else "") for number, row in enumerate(rows))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(' '.join(_clean(cell).split()) for cell in cells)} |\n"


def _rule(cells: list[str]) -> str:
    return "|" + " --- |" * len(cells) + "\n"


def docx(file: IO[bytes]) -> Iterator[str]:
    """HTML, with equations as text, without pictures and tracked deletions."""
    import mammoth

    nothing = mammoth.images.img_element(lambda _image: {})
    yield mammoth.convert_to_html(_for_mammoth(file), convert_image=nothing).value


def _for_mammoth(file: IO[bytes]) -> IO[bytes]:
    """The Word file, changed so that mammoth reads all of its text."""
    with zipfile.ZipFile(file) as archive:
        plain = {
            name: _plain(content)
            for name in archive.namelist()
            if _WORD_TEXT.fullmatch(name) and _UNREAD.search(content := archive.read(name))
        }
        if not plain:
            return io.BytesIO(_all(file))  # mammoth would take the file's name for a path
        changed = io.BytesIO()
        with zipfile.ZipFile(changed, "w") as copy:
            for name in archive.namelist():
                if not name.startswith("word/media/"):  # pictures, which would fill the memory
                    copy.writestr(name, plain.get(name) or archive.read(name))
    return changed


def _plain(content: bytes) -> bytes:
    """Equations and text boxes as plain text; other text as elements that mammoth reads; no furigana."""
    from lxml import etree

    root = etree.fromstring(content, _parser())
    for equation in list(root.iter("{*}oMath")):
        run = etree.Element(f"{_WORD}r")
        etree.SubElement(run, f"{_WORD}t").text = _equation(equation)
        run.tail = equation.tail
        equation.getparent().replace(equation, run)
    for reading in list(root.iter(f"{_WORD}rubyPr", f"{_WORD}rt")):
        reading.getparent().remove(reading)
    for drawing in list(root.iter(f"{_WORD}drawing")):
        _show_text_boxes(drawing)
    for unread in list(root.iter("{*}oMathPara", *(f"{{*}}{name}" for name in _LIKE_TAGS))):
        unread.tag = f"{_WORD}smartTag"  # whose content mammoth reads
    plain: bytes = etree.tostring(root)
    return plain


def _show_text_boxes(drawing: Any) -> None:
    """Put a drawing's text boxes in its place, unless an older form of it follows, which mammoth reads."""
    from lxml import etree

    boxes = list(drawing.iter(f"{_WORD}txbxContent"))
    choice = next(drawing.iterancestors("{*}AlternateContent"), None)
    if not boxes or (choice is not None and choice.find("{*}Fallback") is not None):
        return
    shown, hidden = etree.Element(f"{_WORD}pict"), drawing if choice is None else choice
    shown.tail = hidden.tail
    hidden.getparent().replace(hidden, shown)
    shown.extend(boxes)


def _equation(node: Any) -> str:
    """An equation on one line: x^(2), a_(i), (a)/(b)."""
    kind = node.tag.rpartition("}")[2]
    if kind == "t":
        return node.text or ""
    inner = {child.tag.rpartition("}")[2]: _equation(child) for child in node}
    if kind == "f":
        return f"({inner.get('num', '')})/({inner.get('den', '')})"
    if kind == "rad":
        return f"{inner.get('deg', '')}√({inner.get('e', '')})"
    if kind in ("sup", "sub", "lim"):
        text = "".join(map(_equation, node))
        return f"{'^' if kind == 'sup' else '_'}({text})" if text else ""
    return "".join(map(_equation, node))


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
        **{"p": "p", "list": "ul", "list-item": "li", "table": "table", "table-row": "tr", "a": "a"},
        **dict.fromkeys(("table-cell", "covered-table-cell"), "td"),
    }
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
            self._html.append(f"<{tag}{link}>")

    def end(self, name: str) -> None:
        if (tag := self._open.pop()) and not self._dropped:
            self._html.append(f"</{tag}>")
        self._dropped -= name.rpartition("}")[2] in self.DROPPED

    def data(self, text: str) -> None:
        if not self._dropped:
            self._html.append(escape(text))

    def close(self) -> None:
        """Called by the parser at the end."""


def epub(file: IO[bytes]) -> Iterator[str]:
    """The HTML of the chapters, in reading order."""
    from lxml import etree

    def parsed(name: str) -> Any:
        return etree.fromstring(archive.read(name), _parser(recover=True))

    with zipfile.ZipFile(file) as archive:
        package = next(parsed("META-INF/container.xml").iter("{*}rootfile")).get("full-path")
        book = parsed(package)
        hrefs = {item.get("id"): item.get("href") for item in book.iter("{*}item")}
        for item in book.iter("{*}itemref"):
            href = unquote(hrefs.get(item.get("idref"), "").partition("#")[0])
            chapter = parsed(posixpath.normpath(posixpath.join(posixpath.dirname(package), href)))
            # Written as HTML, in which `<title/>` would count as an opening tag.
            yield etree.tostring(chapter, method="html", encoding="unicode") + "\n"


def rtf(file: IO[bytes]) -> Iterator[str]:
    """The text."""
    from striprtf.striprtf import rtf_to_text

    convert: Callable[..., str] = rtf_to_text
    source = _RTF_NOTE.sub("", file.read().decode("cp1252", "replace"))  # where striprtf would drop the note
    yield _clean(convert(source, errors="replace"))


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _parser(recover: bool = False) -> Any:
    from lxml import etree

    return etree.XMLParser(resolve_entities=False, no_network=True, recover=recover)


def _clean(text: str) -> str:
    """The text without control characters and lone surrogates."""
    return _CONTROLS.sub(" ", text)


CONVERTERS: dict[str, Callable[[IO[bytes]], Iterator[str]]] = {
    "pdf": pdf, "pptx": pptx, "xlsx": xlsx, "docx": docx, "odt": odt, "epub": epub, "rtf": rtf
}  # fmt: skip
