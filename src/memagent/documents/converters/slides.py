"""PowerPoint files to text, slide by slide; SmartArt and pictures are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from .tables import Grid, TableCell, as_cell, as_table
from .text import PAGE_END, as_text, clean

_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"


def pptx(file: IO[bytes]) -> Iterator[str]:
    """Each slide's text, tables, charts and notes."""
    from pptx import Presentation

    for slide in Presentation(file).slides:
        _unwrap(slide.element)
        texts = [text for shape in slide.shapes for text in _shape_texts(shape)]
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame):
            texts.append(f"Notes: {notes.text}" if notes.text.strip() else "")
        yield "".join(f"{clean(text).strip()}\n\n" for text in texts if text.strip()) + PAGE_END


def _unwrap(slide: Any) -> None:
    """Show what python-pptx leaves out: equations, and shapes of which the slide has an older form too."""
    for either in list(slide.iterfind(".//{*}AlternateContent")):
        if either.getparent().tag.endswith(("}spTree", "}grpSp")):
            for shape in list(either.iterfind("{*}Choice/*")):
                either.addprevious(shape)
    for math in list(slide.iterfind(f".//{_DRAWING}p/{{*}}m")):
        run = math.makeelement(f"{_DRAWING}r")
        run.append(math.makeelement(f"{_DRAWING}t"))
        run[0].text = as_text(math)
        math.addprevious(run)


def _shape_texts(shape: Any) -> Iterator[str]:
    for inner in getattr(shape, "shapes", ()):
        yield from _shape_texts(inner)
    if shape.has_text_frame:
        yield shape.text_frame.text.replace("\v", "\n")
    if getattr(shape, "has_table", False):
        grid = Grid()
        rows = ([cell for cell in row.cells if not cell.is_spanned] for row in shape.table.rows)
        cells = ([TableCell(cell.text, cell.span_width, cell.span_height) for cell in row] for row in rows)
        yield "".join(map(grid.row, cells)) + grid.end()
    if getattr(shape, "has_chart", False):
        yield from _chart(shape.chart.element)


def _paragraphs(node: Any) -> str:
    """The paragraphs of a drawing, one per line."""
    texts = (
        "".join(
            child.text or "" if child.tag == f"{_DRAWING}t" else "\n"
            for child in paragraph.iter(f"{_DRAWING}t", f"{_DRAWING}br")
        )
        for paragraph in node.iter(f"{_DRAWING}p")
    )
    return "\n".join(filter(str.strip, texts))


def _chart(chart: Any) -> Iterator[str]:
    """The titles and a table of each plot, from the XML: python-pptx does not know all plot types."""
    for title in chart.iter("{*}title"):
        yield _paragraphs(title)
    for plot in chart.iterfind(".//{*}plotArea/*"):
        rows: list[list[str]] = []
        labels: list[list[str]] = []
        for series in plot.iterfind("{*}ser"):
            own_labels = [["", *row] for row in _points(series, "cat", "xVal")] or [[""]]
            if not rows or own_labels not in ([[""]], labels):
                labels = own_labels
                rows += labels
            name = series.findtext("{*}tx//{*}v") or ""
            rows += [[name, *row] for row in _points(series, "val", "yVal", "bubbleSize")]
        if rows:
            yield as_table(rows)


def _points(series: Any, *kinds: str) -> Iterator[list[str]]:
    """The values that a chart caches for these parts of a series; labels may have several levels."""
    for part in (element for kind in kinds for element in series.iterfind(f"{{*}}{kind}")):
        numeric = next(part.iter("{*}numCache", "{*}numLit"), None) is not None
        for level in reversed(list(part.iter("{*}lvl")) or [part]):
            texts = {int(point.get("idx")): point.findtext("{*}v") or "" for point in level.iter("{*}pt")}
            row = [texts.get(number, "") for number in range(max(texts, default=-1) + 1)]
            yield list(map(_number, row)) if numeric else row


def _number(text: str) -> str:
    try:
        return as_cell(float(text))
    except ValueError:  # a spreadsheet error, such as #N/A
        return text
