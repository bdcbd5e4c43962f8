"""Word files to HTML: the text with its notes and comments, between what stands above and below all pages."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from html import escape
from typing import IO, Any

from .text import as_text, xml_parser

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_WORD_TEXT = re.compile(r"word/(document\d*|footnotes|endnotes|comments)\.xml")
_UNREAD = re.compile(rb"oMath|fldSimple|moveTo|customXml|<w:(?:bdo|dir|ruby|cr|tbl)\b|txbxContent")
"""What mammoth would leave out, and tables, which may stand within each other."""
_MAX_NESTED = 500  # characters of a table that stands in a cell as text; a longer one arranges a page
_LIKE_TAGS = ("fldSimple", "moveTo", "customXml", "bdo", "dir", "ruby", "rubyBase")


def docx(file: IO[bytes]) -> Iterator[str]:
    """HTML, with equations as text, without pictures and tracked deletions."""
    import mammoth

    nothing = mammoth.images.img_element(lambda _image: {})
    with zipfile.ZipFile(file) as archive:
        above, below = (_paragraphs(archive, kind) for kind in ("header", "footer"))
    yield above
    yield mammoth.convert_to_html(
        _for_mammoth(file), convert_image=nothing, style_map="comment-reference => sup"
    ).value
    yield below


def _paragraphs(archive: zipfile.ZipFile, kind: str) -> str:
    """The headers or the footers, each paragraph once; sections and first pages often repeat them."""
    from lxml import etree

    texts: dict[str, None] = {}
    for name in sorted(archive.namelist()):
        if re.fullmatch(rf"word/{kind}\d*\.xml", name):
            root = etree.fromstring(archive.read(name), xml_parser())
            for paragraph in root.iter(f"{_WORD}p"):
                texts["".join(node.text or " " for node in paragraph.iter(f"{_WORD}t", f"{_WORD}tab"))] = None
    return "".join(f"<p>{escape(text)}</p>" for text in texts if text.strip())


def _for_mammoth(file: IO[bytes]) -> IO[bytes]:
    """The Word file, changed so that mammoth reads all of its text."""
    with zipfile.ZipFile(file) as archive:
        plain = {
            name: _plain(content)
            for name in archive.namelist()
            if _WORD_TEXT.fullmatch(name) and _UNREAD.search(content := archive.read(name))
        }
        if not plain:
            file.seek(0)
            return io.BytesIO(file.read())  # mammoth would take the file's name for a path
        changed = io.BytesIO()
        with zipfile.ZipFile(changed, "w") as copy:
            for name in archive.namelist():
                if not name.startswith("word/media/"):  # pictures, which would fill the memory
                    copy.writestr(name, plain.get(name) or archive.read(name))
    return changed


def _plain(content: bytes) -> bytes:
    """Equations, text boxes and tables within cells as text, the rest as mammoth reads it; no furigana."""
    from lxml import etree

    root = etree.fromstring(content, xml_parser())
    for equation in list(root.iter("{*}oMath")):
        run = etree.Element(f"{_WORD}r")
        etree.SubElement(run, f"{_WORD}t").text = as_text(equation)
        run.tail = equation.tail
        equation.getparent().replace(equation, run)
    for reading in list(root.iter(f"{_WORD}rubyPr", f"{_WORD}rt")):
        reading.getparent().remove(reading)
    for end in root.iter(f"{_WORD}cr"):
        end.tag = f"{_WORD}br"
    for drawing in list(root.iter(f"{_WORD}drawing")):
        _show_text_boxes(drawing)
    for cell in reversed(list(root.iter(f"{_WORD}tc"))):  # the innermost first
        for table in cell.findall(f"{_WORD}tbl"):
            _flatten(table)
    for unread in list(root.iter("{*}oMathPara", *(f"{{*}}{name}" for name in _LIKE_TAGS))):
        unread.tag = f"{_WORD}smartTag"  # whose content mammoth reads
    plain: bytes = etree.tostring(root)
    return plain


def _flatten(table: Any) -> None:
    """Replace a short table within a cell by its text, so that the cell's row stays one row."""
    from lxml import etree

    def text_of(cell: Any) -> str:
        paragraphs = ("".join(paragraph.itertext(f"{_WORD}t")) for paragraph in cell.iter(f"{_WORD}p"))
        return " ".join(" ".join(paragraphs).split())

    rows = (", ".join(map(text_of, row.iter(f"{_WORD}tc"))) for row in table.iter(f"{_WORD}tr"))
    if len(text := "; ".join(rows)) <= _MAX_NESTED:
        paragraph = etree.Element(f"{_WORD}p")
        etree.SubElement(etree.SubElement(paragraph, f"{_WORD}r"), f"{_WORD}t").text = text
        table.getparent().replace(table, paragraph)


def _show_text_boxes(drawing: Any) -> None:
    """Put a drawing's text boxes in its place, unless mammoth reads them in an older form that follows."""
    from lxml import etree

    boxes = list(drawing.iter(f"{_WORD}txbxContent"))
    choice = next(drawing.iterancestors("{*}AlternateContent"), None)
    if not boxes or (choice is not None and choice.find(f"{{*}}Fallback//{_WORD}txbxContent") is not None):
        return
    picture, hidden = etree.Element(f"{_WORD}pict"), drawing if choice is None else choice
    picture.tail = hidden.tail
    hidden.getparent().replace(hidden, picture)
    picture.extend(boxes)
