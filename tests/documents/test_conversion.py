"""Converting files: what each format gives, the limits, the cache, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import mailbox
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from datetime import datetime
from email.message import EmailMessage
from io import BytesIO
from pathlib import Path

import pytest

from files import (
    docx,
    drawn,
    epub,
    form_pdf,
    notebook,
    office,
    passed,
    pdf,
    pdf_of,
    pdf_of_pages,
    placed,
    read,
    rewrite,
    sheet,
    text_of,
    zipped,
)
from memagent import DocumentError, open_document
from memagent.documents import converters
from memagent.documents.chunking import split
from memagent.documents.conversion import ConversionLimits, cache_folder, convert
from memagent.documents.files import look_at
from waiting import find_converters, is_converter, wait_for

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"


# What each format gives


def test_a_package_that_is_called_converters_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "converters").mkdir(parents=True)
    (tmp_path / "site" / "converters" / "__init__.py").write_text("def converter(format): return str\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("Nobody else reads this page."))
    assert "Nobody else reads this page." in text_of(open_document(path))


def test_pages_of_a_pdf_reach_the_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("The first page.", "The second page.", "", "The fourth page."))
    document = open_document(path)
    chunks = list(split(document, 8, len))
    assert (
        "".join(chunk.text for chunk in chunks)
        == "The first page.\n\nThe second page.\n\nThe fourth page.\n\n"
    )
    numbers = [part.page for chunk in chunks for part in chunk.parts]
    assert numbers == sorted(page for page in numbers if page)
    (whole,) = split(document, 1000, len)
    assert [(part.page, whole.text_of(part).strip()) for part in whole.parts] == [
        (1, "The first page."),
        (2, "The second page."),
        (4, "The fourth page."),
    ]
    assert whole.shown == whole.text


@pytest.mark.parametrize(
    ("empty", "said"),
    [((2,), "page 2 has"), ((2, 3), "pages 2-3 have"), ((1, 3, 4, 6), "pages 1, 3-4, 6 have")],
)
def test_pages_without_text_are_named(tmp_path: Path, empty: tuple[int, ...], said: str) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*("" if page in empty else "Text." for page in range(1, 7))))
    for _ in range(2):  # converted, and from the cache
        assert passed(open_document(path)).skipped == (f"{path}: {said} no text (scanned? run OCR first)",)


def test_a_scanned_pdf_is_an_error_and_named_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "scan.pdf").write_bytes(pdf("", ""))
    with pytest.raises(DocumentError, match=r"scan\.pdf has no text \(scanned\? run OCR first\)"):
        read(tmp_path / "scan.pdf")
    with pytest.raises(DocumentError, match=r"scan\.pdf has no text \(scanned\? run OCR first\)"):
        read(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    document = open_document(tmp_path)
    assert text_of(document) == "text"
    assert passed(document).skipped == (f"{tmp_path / 'scan.pdf'} has no text (scanned? run OCR first)",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("/Rect [200 690 400 710] /V (Ada Lovelace)", "Ada Lovelace\n"),
        ("/Rect [200 690 400 710]", ""),
        ("/Rect (no) /V 99 0 R /AP << /N 99 0 R >> /Kids [6 0 R] /Parent 6 0 R", ""),
    ],
    ids=["filled", "empty", "broken"],
)
def test_a_pdf_gives_what_its_form_was_filled_in_with(tmp_path: Path, field: str, value: str) -> None:
    (tmp_path / "a.pdf").write_bytes(form_pdf(field))
    assert read(tmp_path / "a.pdf") == f"Tenant:\nThe last line.\n{value}\n"


@pytest.mark.parametrize("turn", ["1 0 0 1", "0 1 -1 0", "-1 0 0 -1", "0 -1 1 0"])
@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_a_page_of_a_pdf_may_lie_on_its_side(tmp_path: Path, turn: str, rotate: int) -> None:
    lines = "(The first line) Tj 150 0 Td (has two parts.) Tj -150 -20 Td (The second line.) Tj"
    text = f"BT /F1 12 Tf {turn} 300 400 Tm {lines} 0 -20 Td (The third.) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Rotate {rotate} /Contents 5 0 R "
        "/Resources << /Font << /F1 4 0 R >> >> >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Length {len(text)} >>\nstream\n{text}\nendstream",
    ]
    (tmp_path / "a.pdf").write_bytes(pdf_of(objects))
    assert read(tmp_path / "a.pdf") == "The first line has two parts.\nThe second line.\nThe third.\n\n"


def test_a_pdf_gives_what_was_written_on_it_but_no_comments(tmp_path: Path) -> None:
    look = "BT /F1 12 Tf 5 5 Td (Typed over the page.) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R "
        "/Resources << /Font << /F1 4 0 R >> >> /Annots [6 0 R 8 0 R] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        "<< /Length 40 >>\nstream\nBT /F1 12 Tf 72 700 Td (Tenant:) Tj ET     \nendstream",
        "<< /Type /Annot /Subtype /FreeText /F 4 /Rect [200 690 400 710] /Contents (x) /AP << /N 7 0 R >> >>",
        "<< /Type /XObject /Subtype /Form /BBox [0 0 200 20] /Resources << /Font << /F1 4 0 R >> >> "
        f"/Length {len(look)} >>\nstream\n{look}\nendstream",
        "<< /Type /Annot /Subtype /Text /F 4 /Rect [9 9 20 20] /Contents (A comment.) >>",
    ]
    (tmp_path / "a.pdf").write_bytes(pdf_of(objects))
    assert read(tmp_path / "a.pdf") == "Tenant:\nTyped over the page.\n\n"


def test_the_empty_cells_of_a_table_in_a_pdf_stay_empty(tmp_path: Path) -> None:
    title = "Rain in mm, as it was measured at the three gauges"
    rows = [("A", "North", "South", "West"), ("May", "12", "", "7"), ("June", "", "9"), ("July", "", "", "5")]
    (tmp_path / "a.pdf").write_bytes(pdf_of_pages(drawn((title,), *rows, ("end",))))
    assert read(tmp_path / "a.pdf").strip().splitlines() == [
        *(title, "", "| A | North | South | West |"),
        *("| --- | --- | --- | --- |", "| May | 12 |  | 7 |", "| June |  | 9 |  |", "| July |  |  | 5 |"),
        *("", "end"),
    ]


def test_gaps_within_one_string_of_a_pdf_divide_it_too(tmp_path: Path) -> None:
    rows = ("[(May) -9000 (12) -19000 (7)] TJ", "[(June) -19000 (9)] TJ", "[(July) -9000 (3) -9700 (4)] TJ")
    (tmp_path / "a.pdf").write_bytes(
        pdf_of_pages(placed(*((72, 700 - 14 * number, text) for number, text in enumerate(rows))))
    )
    assert "| May | 12 |  | 7 |\n| --- | --- | --- | --- |\n| June |  |" in read(tmp_path / "a.pdf")


PAPER = [
    ("The survey of the harbour found that the re-", "A second team looked at the light-"),
    ("tention wall had moved by four centi-", "house. Its lamp is sound, but the"),
    ("metres since 1998. The engineers ad-", "stairs are rotten. They must be"),
    ("vise to drive new piles.", "replaced by oak at 90,000 crowns."),
]


def test_columns_of_a_pdf_that_are_drawn_row_by_row_are_read_one_after_the_other(tmp_path: Path) -> None:
    title = "A title that stands above both of the columns and so belongs to neither of the two"
    rows = [(title,), *PAPER, ("1 A note on the left.",)]
    (tmp_path / "a.pdf").write_bytes(pdf_of_pages(drawn(*rows, columns=(72, 320))))
    text = " ".join(read(tmp_path / "a.pdf").split())
    assert text == (
        f"{title} The survey of the harbour found that the retention wall had moved by four centimetres "
        "since 1998. The engineers advise to drive new piles. 1 A note on the left. A second team looked at "
        "the lighthouse. Its lamp is sound, but the stairs are rotten. They must be replaced by oak at "
        "90,000 crowns."
    )


@pytest.mark.parametrize(
    "feet",
    [[(285, "- 2 -")], [(72, "Journal of Bridges"), (288, "12"), (500, "2021")]],
    ids=["number", "three parts"],
)
@pytest.mark.parametrize("drawn_first", [True, False])
def test_the_foot_of_a_page_is_no_column(
    tmp_path: Path, feet: list[tuple[int, str]], drawn_first: bool
) -> None:
    body = [
        (left, 700 - 14 * number, f"({text}) Tj")
        for number, row in enumerate(PAPER)
        for left, text in zip((72, 320), row, strict=True)
    ]
    foot = [(left, 60, f"({text}) Tj") for left, text in feet]
    (tmp_path / "a.pdf").write_bytes(pdf_of_pages(placed(*(foot + body if drawn_first else body + foot))))
    text = " ".join(read(tmp_path / "a.pdf").split())
    assert "drive new piles. A second team" in text
    assert " ".join(text for _, text in feet) in text
    assert "|" not in text


STATIONS = [("No.", "Station", "Height"), *((f"{n}", f"Halt {n}", f"{n * 7}") for n in range(1, 7))]


@pytest.mark.parametrize(
    ("names", "second", "shown"),
    [
        (STATIONS[0], STATIONS[4:], STATIONS[0]),
        (STATIONS[0], [STATIONS[0], *STATIONS[4:]], STATIONS[0]),
        (STATIONS[0], [("Year", "Name", "Guests"), *STATIONS[4:]], ("Year", "Name", "Guests")),
        (("No.", "Station", ""), [(row[0], row[1]) for row in STATIONS[4:]], None),
    ],
    ids=["continued", "head repeated", "another", "fewer columns"],
)
def test_a_table_of_a_pdf_goes_on_on_the_next_page(
    tmp_path: Path, names: tuple[str, ...], second: list[tuple[str, ...]], shown: tuple[str, ...] | None
) -> None:
    title = ("Stations of the rack railway that climbs from the lake to the pass", "", "")
    pages = (drawn(title, *rows) for rows in ([names, *STATIONS[1:4]], second))
    (tmp_path / "a.pdf").write_bytes(pdf_of_pages(*pages))
    _, page = (block.text for block in open_document(tmp_path / "a.pdf").blocks())
    _, *lines = [line for line in page.splitlines() if line]
    if shown is None:
        assert lines == ["4 Halt 4", "5 Halt 5", "6 Halt 6"]
    else:
        assert lines == [f"| {' | '.join(row)} |" for row in (shown, ("---",) * 3, *STATIONS[4:])]


def mapped_pdf(text: str, letters: dict[int, int]) -> bytes:
    """A PDF of one line, whose font says which characters these codes stand for, besides those of ASCII."""
    own = " ".join(f"<{code:02X}> <{letter:04X}>" for code, letter in letters.items())
    maps = (
        "begincmap 1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfrange <20> <7E> <0020> "
        f"endbfrange {len(letters)} beginbfchar {own} endbfchar endcmap"
    )
    stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET"
    return pdf_of([
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R "
        "/Resources << /Font << /F1 4 0 R >> >> >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R "
        "/Encoding << /BaseEncoding /WinAnsiEncoding /Differences [128 /ff /fi /hyphen] >> >>",
        *(f"<< /Length {len(it)} >>\nstream\n{it}\nendstream" for it in (stream, maps)),
    ])  # fmt: skip


def test_a_character_that_a_pdf_maps_to_nothing_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(mapped_pdf("The o\x80er of the \x81rm: co\x80ee", {0x80: 0, 0x81: 0xFB01}))
    document = open_document(path)
    assert text_of(document) == "The o\ufffder of the firm: co\ufffdee\n\n"
    assert passed(document).replaced == {str(path): 2}


def test_soft_hyphens_are_no_part_of_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(mapped_pdf("The Bau\x82gesell\x82schaft", {0x82: 0xAD}))
    assert read(tmp_path / "a.pdf") == "The Baugesellschaft\n\n"
    (tmp_path / "a.html").write_text("<p>The Bau&shy;gesell\xadschaft")
    assert read(tmp_path / "a.html") == "The Baugesellschaft\n"


@pytest.mark.parametrize(
    "rows",
    [
        [("1.", "Payment within the days"), ("2.", "Notice of three months"), ("3.", "Court of Bremen")],
        [("Tenant", "Ada Lovelace"), ("Rent", "900"), ("Since", "2024"), ("Until", "2026")],
        [("one", "two", "three"), ("A line that stands across the three of them all",), ("four",)],
    ],
    ids=["list", "form", "once"],
)
def test_other_gaps_in_a_pdf_are_spaces(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf_of_pages(drawn(*rows)))
    assert read(tmp_path / "a.pdf").splitlines()[: len(rows)] == [" ".join(row) for row in rows]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("the re-", "tention wall", "the retention wall"),
        ("2.4 mil-", "lion", "2.4 million"),
        ("the well-", "known list", "the well-known list"),
        ("state-of-the-", "art", "state-of-the-art"),
        ("Jean-", "Paul", "Jean-Paul"),
        ("YYhhmm-", "ss", "YYhhmm-ss"),
        ("COVID-", "19", "COVID-19"),
        ("the cost-", "bearing party", "the cost-bearing party"),
        ("rent-roll or rent-", "roll", "rent-roll or rent-roll"),
        ("2019-", "2020", "2019-2020"),
        ("a 24-", "hour day", "a 24-hour day"),
        ("x-", "y@mail.example", "x-y@mail.example"),
        ("mail.x-", "ray", "mail.x-ray"),
        ("see https://ex.example/a-", "b/c", "see https://ex.example/a-b/c"),
    ],
)
def test_a_word_broken_at_the_end_of_a_line_is_whole(
    tmp_path: Path, before: str, after: str, expected: str
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf_of_pages(drawn((before,), (after,))))
    assert read(tmp_path / "a.pdf").strip() == expected


@office
def test_cells_of_a_sheet_that_were_merged_are_in_each_of_them(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [
        ("Sales by region", None, None),
        ("Region", 2025, None, 2026),
        (None, "Sales", "Cost", None),
        ("North", 10, 4, "=B4+1"),
        (None, 11, None, 13),
    ]:
        book.active.append(row)
    for merged in ("A1:D1", "B2:C2", "A4:A5", "B5:C5"):
        book.active.merge_cells(merged)
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx").strip().splitlines()[2:] == [
        *("Sales by region", "", "| Region | 2025 Sales | 2025 Cost | 2026 |"),
        *("| --- | --- | --- | --- |", "| North | 10 | 4 | =B4+1 |", "| North | 11 | 11 | 13 |"),
    ]


@office
def test_what_a_workbook_hides_is_left_out_and_said(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "Prices"
    rows = [
        ("id", "name", "cost", "price", None),
        ("Part", "Shelf", 1, "Dose", None),
        (None, None, 2, "adult", "child"),
        ("bolt", "A", 3, 4, 5),
        ("nut", "B", 6, 7, 8),
        (None, "C", 9, 10, 11),
    ]
    for row in rows:
        book.active.append(row)
    for merged in ("D2:E2", "B2:C2", "A4:A6", "A2:A3"):
        book.active.merge_cells(merged)
    for row in (1, 5):
        book.active.row_dimensions[row].hidden = True
    book.active.column_dimensions["C"].hidden = True
    for state in ("hidden", "veryHidden"):
        book.create_sheet(state).sheet_state = state
        book[state].append(("secret",))
    book.create_sheet("Last").append(("x",))
    book["Last"].row_dimensions[9].hidden = True
    book.save(tmp_path / "a.xlsx")
    document = open_document(tmp_path / "a.xlsx")
    assert [line for line in text_of(document).splitlines() if line] == [
        *("## Prices", "| Part | Shelf | Dose adult | Dose child |", "| --- | --- | --- | --- |"),
        *("| bolt | A | 4 | 5 |", "| bolt | C | 10 | 11 |", "## Last", "| x |", "| --- |"),
    ]
    assert [it.partition("a.xlsx: ")[2] for it in passed(document).skipped] == [
        "hidden rows or columns of the sheet Prices", "the hidden sheet hidden", "the hidden sheet veryHidden"
    ]  # fmt: skip


@office
def test_a_workbook_keeps_the_comments_on_its_cells(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(("part", "price"))
    book.active.append(("bolt", 4))
    threaded = "[Threaded comment]\n\nYour version of Excel allows you to read this.\n\nComment:\n    of May"
    for cell, text in (("B2", threaded), ("C2", "ask\nAda"), ("A1", "by number")):
        book.active[cell].comment = openpyxl.comments.Comment(text, "Bob")
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx").splitlines()[2:] == [
        "| part [comment: by number] | price |",
        "| --- | --- |",
        "| bolt | 4 [comment: of May] | [comment: ask Ada] |",
        "",
    ]


@office
def test_cells_of_a_slide_that_were_merged_are_in_each_of_them() -> None:
    pptx = pytest.importorskip("pptx")
    show, file = pptx.Presentation(), BytesIO()
    slide = show.slides.add_slide(show.slide_layouts[6])
    table = slide.shapes.add_table(3, 2, 0, 0, 100, 100).table
    for row, texts in enumerate([("Dose", "adult"), ("under 50", "10"), ("", "8")]):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    show.save(file)
    (text,) = converters.converter("pptx")(file)
    assert text.strip().splitlines()[2:] == ["| under 50 | 10 |", "| under 50 | 8 |"]


@office
def test_leading_zeros_of_a_sheet_stay(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    shown = [(42, "00000", "00042"), (123456, "00000", "123456"), (7, "0", "7"), (2.5, "00", "2.5")]
    for column, (value, number_format, _) in enumerate(shown, 1):
        book.active.cell(1, column, value).number_format = number_format
    book.save(tmp_path / "a.xlsx")
    assert f"| {' | '.join(text for *_, text in shown)} |" in read(tmp_path / "a.xlsx")


@office
def test_a_sheet_has_whole_numbers_and_empty_cells(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "Rents"
    for row in [
        ["who", "rent", "since", "paid", None, None],
        ["Ann", 1200.0, datetime(2024, 3, 1), True],
        [],
        ["Bob", 0.1 + 0.2, datetime(2024, 3, 1, 12, 30), None, "a\nnote"],
        ["sum", "=SUM(B2:B4)"],
    ]:
        book.active.append(row)
    book.create_sheet("Empty")
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx").split("\n") == [
        *("## Rents", "", "| who | rent | since | paid |", "| --- | --- | --- | --- |"),
        "| Ann | 1200 | 2024-03-01 | TRUE |",
        "| Bob | 0.3 | 2024-03-01 12:30:00 |  | a note |",
        "| sum | =SUM(B2:B4) |",
        *("", "## Empty", "", "", ""),
    ]


@office
def test_a_formula_whose_result_is_empty_was_computed(tmp_path: Path) -> None:
    cells = '<c t="str"><f>IF(A1,"late","")</f><v>{}</v></c>'
    row = f"<row>{cells.format('')}{cells.format('late')}<c><f>SUM(A1)</f><v></v></c></row>"
    (tmp_path / "a.xlsx").write_bytes(sheet(row.encode()))
    assert "|  | late | =SUM(A1) |" in read(tmp_path / "a.xlsx")


@office
def test_a_formula_of_several_cells_that_was_never_computed(tmp_path: Path) -> None:
    row = '<row><c r="A1"><f t="array" ref="A1:A2">SUM(B1:B2*C1:C2)</f></c></row>'
    (tmp_path / "a.xlsx").write_bytes(sheet(row.encode()))
    assert "| =SUM(B1:B2*C1:C2) |" in read(tmp_path / "a.xlsx")


@office
@pytest.mark.parametrize("before", range(2**20 - 20, 2**20 - 10, 4))
def test_a_formula_under_a_prefix(tmp_path: Path, before: int) -> None:
    """It is found wherever the file is cut into blocks."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    head = f'<sheets:worksheet xmlns:sheets="{main}"><sheets:sheetData><sheets:row>'
    head += " " * (before - len(head))
    text = f"{head}<sheets:c><sheets:f>SUM(B1:C9)</sheets:f></sheets:c>"
    text += "</sheets:row></sheets:sheetData></sheets:worksheet>"
    old = f'<worksheet xmlns="{main}"><sheetData></sheetData></worksheet>'
    (tmp_path / "a.xlsx").write_bytes(rewrite(sheet(b""), "xl/worksheets/", (old, text)))
    with (tmp_path / "a.xlsx").open("rb") as file:
        assert "| =SUM(B1:C9) |" in "".join(converters.converter("xlsx")(file))


@office
def test_numbers_are_written_as_people_do(tmp_path: Path) -> None:
    values = (b"1200.0", b"0.30000000000000004", b"-7", b"1E+20", b"12345678901234")
    cells = b"".join(b"<c><v>" + value + b"</v></c>" for value in values)
    (tmp_path / "a.xlsx").write_bytes(sheet(b"<row>" + cells + b"</row>"))
    assert "| 1200 | 0.3 | -7 | 1e+20 | 12345678901234 |" in read(tmp_path / "a.xlsx")


@office
def test_numbers_keep_the_units_of_their_format(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    shown = [
        (0.07, "0.0%", "7%"),
        (7, '0"%"', "7 %"),
        (1234.5, "$#,##0.00;[Red]-$#,##0.00", "1234.5 $"),
        (-3, r"#,##0.00\ [$€-407]", "-3 €"),
        (5, r'_("£"* #,##0_);_("£"* \(#,##0\)', "5 £"),
        (80, '[Red]0.0 "kg"', "80 kg"),
        (3, "[$-409]#,##0.00", "3"),
        (2500000, '$#,##0,,"M"', "2500000"),
        (5551234, r"000\-0000", "5551234"),
        (0, '"Yes";"Yes";"No"', "0"),
        (20, 'General" kg"', "20 kg"),
        ("text", "0%", "text"),
        (True, "0%", "TRUE"),
    ]
    for column, (value, number_format, _) in enumerate(shown, 1):
        book.active.cell(1, column, value).number_format = number_format
    row = f"| {' | '.join(text for *_, text in shown)} |"
    book.save(tmp_path / "a.xlsx")
    assert row in read(tmp_path / "a.xlsx").splitlines()
    book.active["A2"] = "=A1"
    book.save(tmp_path / "b.xlsx")
    assert row in read(tmp_path / "b.xlsx").splitlines()


@office
def test_a_word_file_keeps_headings_lists_tables_links_and_equations(tmp_path: Path) -> None:
    equation = (
        f'<m:oMath xmlns:m="{MATH}"><m:r><m:t>E=m</m:t></m:r><m:sSup><m:e><m:r><m:t>c</m:t></m:r></m:e>'
        "<m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup><m:f><m:num><m:r><m:t>a</m:t></m:r></m:num>"
        "<m:den><m:r><m:t>b</m:t></m:r></m:den></m:f></m:oMath>"
    )
    table = "".join(
        "<w:tr>"
        + "".join(f"<w:tc><w:p><w:r><w:t>{cell}</w:t></w:r></w:p></w:tc>" for cell in row)
        + "</w:tr>"
        for row in ("ab", "cd")
    )
    with zipfile.ZipFile(BytesIO(docx("text"))) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    parts["word/document.xml"] = (
        f'<w:document xmlns:w="{WORD}"><w:body><w:p><w:r><w:t>Title</w:t></w:r></w:p>'
        f"<w:p><w:r><w:t>It says </w:t></w:r>{equation}<w:r><w:t> here.</w:t></w:r></w:p>"
        f'<m:oMathPara xmlns:m="{MATH}">{equation}</m:oMathPara><w:tbl>{table}</w:tbl></w:body></w:document>'
    )
    (tmp_path / "a.docx").write_bytes(zipped(parts))
    text = read(tmp_path / "a.docx")
    assert "It says E=mc^(2)(a)/(b) here." in text
    assert "| a | b |\n| --- | --- |\n| c | d |" in text
    assert "Title" in text


def math(xml: str) -> str:
    """An equation in which `<e>` and the like stand for elements, and text for runs."""
    runs = re.sub(
        r"(?<=>)[^<]+(?=<)", lambda text: f"<m:r><m:t>{text[0]}</m:t></m:r>", f"<oMath>{xml}</oMath>"
    )
    named = re.sub(r"<(/?)(?!/|m:)", r"<\1m:", runs).replace(" val=", " m:val=")
    return named.replace("<m:oMath>", f'<m:oMath xmlns:m="{MATH}">')


@office
@pytest.mark.parametrize(
    ("xml", "text"),
    [
        ("f<d><e>x</e></d>", "f(x)"),
        ("<sSup><e><d><e>a+b</e></d></e><sup>2</sup></sSup>", "(a+b)^(2)"),
        ('<d><dPr><begChr val="["/><sepChr val=","/><endChr val=""/></dPr><e>a</e><e>b</e></d>', "[a,b"),
        ('<nary><naryPr><chr val="∑"/></naryPr><sub>i</sub><sup>n</sup><e>i</e></nary>', "∑_(i)^(n)i"),
        ("<nary><sub/><sup/><e>x</e></nary>", "∫x"),
        ("<m><mr><e>1</e><e>0</e></mr><mr><e>0</e><e>1</e></mr></m>", "1, 0; 0, 1"),
        ("<eqArr><e>a=b</e><e>c=d</e></eqArr>", "a=b; c=d"),
    ],
)
def test_an_equation_keeps_its_brackets_and_signs(tmp_path: Path, xml: str, text: str) -> None:
    old = "<w:r><w:t>text</w:t></w:r>"
    (tmp_path / "a.docx").write_bytes(rewrite(docx("text"), "word/", (old, math(xml))))
    assert read(tmp_path / "a.docx").strip() == text


@office
def test_a_word_file_keeps_comments_headers_and_footers(tmp_path: Path) -> None:
    with zipfile.ZipFile(BytesIO(docx("text"))) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    paragraph = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
    parts["word/document.xml"] = (
        f'<w:document xmlns:w="{WORD}"><w:body><w:p><w:r><w:t>within 30 days</w:t></w:r>'
        '<w:r><w:commentReference w:id="0"/></w:r></w:p></w:body></w:document>'
    )
    parts["word/comments.xml"] = (
        f'<w:comments xmlns:w="{WORD}"><w:comment w:id="0" w:author="Legal" w:initials="L">'
        f"{paragraph.format('Aster wants 21')}</w:comment></w:comments>"
    )
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/comments"
    parts["word/_rels/document.xml.rels"] = (
        f'<Relationships xmlns="{relations}"><Relationship Id="r1" Type="{kind}" Target="comments.xml"/>'
        "</Relationships>"
    )
    texts = {"header1": "contract 88", "header2": "contract 88", "footer1": "of 14 &amp; June"}
    for name, text in texts.items():
        parts[f"word/{name}.xml"] = f'<w:hdr xmlns:w="{WORD}">{paragraph.format(text)}</w:hdr>'
    (tmp_path / "a.docx").write_bytes(zipped(parts))
    lines = [line for line in read(tmp_path / "a.docx").splitlines() if line]
    assert lines == [
        *("contract 88", "within 30 days^[L1]", "Comment [L1]", "Aster wants 21 ↑", "of 14 & June")
    ]


def word_table(*rows: tuple[str, ...]) -> str:
    """A table as in a Word file, with the content of its cells."""
    cells = ("".join(f"<w:tc>{cell}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


@office
@pytest.mark.parametrize("size", [1, 600])
def test_a_table_within_a_table_of_a_word_file_breaks_no_row(tmp_path: Path, size: int) -> None:
    a, b, c, d = (f"<w:p><w:r><w:t>{it * size}</w:t></w:r></w:p>" for it in "abcd")
    innermost = word_table((c,), (d,)) + "<w:p/>"
    table = word_table((a, b), (a, b), (a, b + word_table((a + b, c), (d, innermost)) + "<w:p/>"), (c, d))
    (tmp_path / "a.docx").write_bytes(
        rewrite(docx("text"), "word/", ("<w:p><w:r><w:t>text</w:t></w:r></w:p>", table))
    )
    lines = [line for line in read(tmp_path / "a.docx").splitlines() if line]
    if size == 1:
        assert lines == [
            *("| a | b |", "| --- | --- |", "| a | b |", "| a | b a b, c; d, c; d |", "| c | d |")
        ]
    else:  # it arranges the page
        assert len(lines) > 5 and "a" * size in lines


@office
def test_a_word_file_keeps_fields_tagged_text_and_what_was_moved(tmp_path: Path) -> None:
    kinds = ("fldSimple", "moveTo", "moveFrom", "customXml", "ins", "del")
    runs = "".join(f"<w:{kind}><w:r><w:t>{kind} </w:t></w:r></w:{kind}>" for kind in kinds)
    old = "<w:r><w:t>text</w:t></w:r>"
    (tmp_path / "a.docx").write_bytes(rewrite(docx("text"), "word/", (old, runs)))
    assert read(tmp_path / "a.docx").split() == ["fldSimple", "moveTo", "customXml", "ins"]


@office
def test_a_word_file_keeps_what_was_ticked(tmp_path: Path) -> None:
    office = "http://schemas.microsoft.com/office/word/2010/wordml"
    old = "<w:r><w:t>text</w:t></w:r>"
    boxes = "".join(
        f'<w:sdt xmlns:v="{office}"><w:sdtPr><v:checkbox><v:checked v:val="{on}"/></v:checkbox></w:sdtPr>'
        f"<w:sdtContent><w:r><w:t>?</w:t></w:r></w:sdtContent></w:sdt><w:r><w:t>{text}</w:t><w:cr/></w:r>"
        for on, text in ((1, "Yes"), (0, "No"))
    )
    (tmp_path / "a.docx").write_bytes(rewrite(docx("text"), "word/", (old, boxes)))
    assert read(tmp_path / "a.docx") == "[x] Yes\n[ ] No\n"


@office
def test_a_word_file_keeps_text_from_right_to_left_and_what_furigana_explain(
    tmp_path: Path,
) -> None:
    run = "<w:r><w:t>{}</w:t></w:r>"
    ruby = "<w:r><w:ruby><w:rubyPr/><w:rt>{}</w:rt><w:rubyBase>{}</w:rubyBase></w:ruby></w:r>"
    runs = "".join(
        ("<w:bdo>", run.format("one "), "</w:bdo><w:dir>", run.format("two "), "</w:dir>",
         ruby.format(run.format("reading"), run.format("three")))
    )  # fmt: skip
    (tmp_path / "a.docx").write_bytes(rewrite(docx("text"), "word/", (run.format("text"), runs)))
    assert read(tmp_path / "a.docx").split() == ["one", "two", "three"]


@office
@pytest.mark.parametrize("older", ["", "<w:pict>{}</w:pict>", "<w:drawing><picture/></w:drawing>"])
def test_a_text_box_of_a_word_file_is_read_once(older: str, tmp_path: Path) -> None:
    box = "<w:txbxContent><w:p><w:r><w:t>in the box</w:t></w:r></w:p></w:txbxContent>"
    new = f"<w:drawing><x>{box}</x></w:drawing>"
    if older:
        mark = "http://schemas.openxmlformats.org/markup-compatibility/2006"
        new = (f'<c:AlternateContent xmlns:c="{mark}"><c:Choice>{new}</c:Choice>'
               f"<c:Fallback>{older.format(box)}</c:Fallback></c:AlternateContent>")  # fmt: skip
    old = "<w:t>text</w:t>"
    (tmp_path / "a.docx").write_bytes(rewrite(docx("text"), "word/", (old, f"{old}{new}")))
    assert read(tmp_path / "a.docx").split() == ["text", "in", "the", "box"]


def test_a_notebook_gives_its_cells_and_what_they_printed(tmp_path: Path) -> None:
    outputs = [
        {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo" * 999}},
        {"output_type": "stream", "name": "stdout", "text": ["RMSE 0.31 m\n", "done\n"]},
        {"output_type": "execute_result", "data": {"text/html": "<b>7</b>", "text/plain": "7"}},
        {"output_type": "error", "ename": "KeyError", "evalue": "'x'", "traceback": ["…"]},
    ]
    (tmp_path / "a.ipynb").write_bytes(
        notebook(
            {"cell_type": "markdown", "source": ["# Tide\n", "at *Skarv*"]},
            {"cell_type": "code", "source": "plot(x)\n", "outputs": outputs},
            {"cell_type": "code", "source": [], "outputs": []},
        )
    )
    fenced = "".join(f"```\n{it}\n```\n\n" for it in ("plot(x)", "RMSE 0.31 m\ndone", "7", "KeyError: 'x'"))
    assert read(tmp_path / "a.ipynb") == f"# Tide\nat *Skarv*\n\n{fenced}"


@pytest.mark.parametrize("content", [b"[", b"[]", b'{"cells": 3}'])
def test_a_file_that_is_not_a_notebook_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.ipynb").write_bytes(content)
    with pytest.raises(DocumentError, match=r"a\.ipynb cannot be converted: it is damaged, or not in IPYNB"):
        read(tmp_path / "a.ipynb")


def test_an_odt_file(tmp_path: Path) -> None:
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "text", "table")
    )
    cells = "<table:table-cell table:number-rows-spanned='2'><text:p>{}</text:p></table:table-cell>"
    below = "<table:covered-table-cell/><table:table-cell><text:p>z</text:p></table:table-cell>"
    (tmp_path / "a.odt").write_bytes(
        zipped({
            "content.xml": f"<office:document-content {spaces} xmlns:xlink='http://www.w3.org/1999/xlink'>"
            "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
            "<text:h text:outline-level='2'>Title</text:h><text:p>a<text:s/>&lt;b&gt;<text:line-break/>c"
            "<office:annotation><text:p>remark</text:p></office:annotation>"
            "<text:a xlink:href='http://x/?a&amp;b'>link</text:a></text:p>"
            "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
            f"<table:table><table:table-row>{cells.format('x')}<table:table-cell>y</table:table-cell>"
            f"</table:table-row><table:table-row>{below}</table:table-row></table:table>"
            "</office:document-content>"
        })
    )  # fmt: skip
    expected = "## Title\n\na <b>\nc[link](http://x/?a&b)\n\n* one\n\n| x | y |\n| --- | --- |\n| x | z |\n"
    assert read(tmp_path / "a.odt") == expected


def mail() -> EmailMessage:
    message = EmailMessage()
    message["From"], message["Subject"] = "Ada <a@x.org>", "Größe über 5 €"
    message.set_content("Die Tür:\n\n  4711 <b> &c.\n>From here\n", cte="base64")
    message.add_alternative("<p>in HTML</p>", subtype="html")
    message.add_attachment("name;value\n", subtype="csv", filename="data.csv")
    message.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename="scan.pdf")
    return message


MAIL = """# Größe über 5 €

From: Ada <a@x.org>

```
Die Tür:

  4711 <b> &c.
>From here
```

Attachment: data.csv

```
name;value
```

Attachment, not read: scan.pdf
"""


def test_a_mail_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.eml").write_bytes(mail().as_bytes())
    assert read(tmp_path / "a.eml") == MAIL
    outer = EmailMessage()
    outer.set_content("See below.")
    outer.add_attachment(mail())
    (tmp_path / "b.eml").write_bytes(outer.as_bytes())
    assert read(tmp_path / "b.eml") == f"```\nSee below.\n```\n\n{MAIL}"


def test_a_mail_in_html_alone_and_in_odd_encodings(tmp_path: Path) -> None:
    page = "<table><tr><td>a<td>b</table><pre>caf=E9"
    for name, head in (("a.mht", 'multipart/related; boundary="x"\n\n--x\nContent-Type: '), ("b.eml", "")):
        kind = (
            f"Content-Type: {head}text/html; charset=cp1252\nContent-Transfer-Encoding: quoted-printable\n\n"
        )
        rest = "\n--x\nContent-Type: text/css\n\np {}\n--x--\n" if head else ""
        (tmp_path / name).write_text(f"{kind}{page}{rest}")
        assert read(tmp_path / name) == "| a | b |\n| --- | --- |\n\n```\ncafé\n```\n"
    for charset in ("none-such", "undefined", "idna", '"x\0y"'):
        (tmp_path / "c.eml").write_bytes(f"Content-Type: text/plain; charset={charset}\n\ncafé\n".encode())
        assert read(tmp_path / "c.eml") == "```\ncafé\n```\n"
    for charset, meant, text in (("iso-8859-1", "cp1252", "“café” – €"), ("gb2312", "gbk", "朱镕基")):
        head = f"Content-Type: text/plain; charset={charset}\n\n"
        (tmp_path / "d.eml").write_bytes(f"{head}{text}\n".encode(meant))
        assert read(tmp_path / "d.eml") == f"```\n{text}\n```\n"


def mime(kind: str, *parts: str, head: str = "") -> str:
    """A part with parts, as text."""
    border = f"border-{kind.replace('/', '-')}-{len(parts)}"
    inner = "".join(f"--{border}\n{part}\n" for part in parts)
    return f'{head}Content-Type: {kind}; boundary="{border}"\n\n{inner}--{border}--\n'


def plain(text: str) -> str:
    return f"Content-Type: text/plain; charset=utf-8\n\n{text}"


def html(text: str) -> str:
    return f"Content-Type: text/html; charset=utf-8\n\n{text}"


ROOF = "The price for the roof is 8,400 euros."
OFFER = mime("multipart/alternative", plain(ROOF), html(f"<p>{ROOF}</p>"))
PICTURE = "Content-Type: image/png\nContent-ID: <p>\n\nx"
LIST = "Content-Type: text/plain; name=list.txt\nContent-Disposition: attachment\n\nitem 44"
TABLE = "<table><tr><td>Roof<td>8,400</table>"
SIGNATURE = "Content-Type: application/pgp-signature; name=signature.asc\n\nx"
INVITATION = "Content-Type: text/calendar\n\nBEGIN:VCALENDAR\nX-ONE:two three four five six seven\n"


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        (mime("multipart/mixed", plain("CAUTION: from outside."), OFFER), ["CAUTION: from outside.", ROOF]),
        (mime("multipart/mixed", plain("See below."), html(TABLE), plain("Regards, Eva")),
         ["See below.", "| Roof | 8,400 |", "| --- | --- |", "Regards, Eva"]),
        (mime("multipart/signed", mime("multipart/mixed", OFFER, LIST), SIGNATURE),
         [ROOF, "Attachment: list.txt", "item 44"]),
        (mime("multipart/alternative", plain("Please view this in an HTML client."), html(ROOF)), [ROOF]),
        (mime("multipart/alternative", plain("The roof of the old mill"), html("<p>A map of the new roof")),
         ["A map of the new roof"]),
        (mime("multipart/alternative", plain("The prices:\n\nRegards"), html(f"The prices:{TABLE}Regards")),
         ["The prices:", "| Roof | 8,400 |", "| --- | --- |", "Regards"]),
        (mime("multipart/alternative", plain(ROOF), html(f"<style>{'a b c d e' * 9}</style><!-- {ROOF} -->")),
         [ROOF]),
        (mime("multipart/alternative", plain(f"{ROOF} https://a.example/b/c/d/e"), html(f"{ROOF} Now.")),
         [f"{ROOF} Now."]),
        (mime("multipart/alternative", plain(ROOF), INVITATION), [ROOF]),
        (mime("multipart/alternative", plain(ROOF), mime("multipart/mixed", html(ROOF), LIST)),
         [ROOF, "Attachment: list.txt", "item 44"]),
        (mime("multipart/related", html(ROOF), PICTURE, "Content-Type: text/css\n\np {}", LIST),
         [ROOF, "Attachment: list.txt", "item 44"]),
        (mime("multipart/mixed", plain(" "), INVITATION), INVITATION.strip().splitlines()[2:]),
        (mime("multipart/mixed", PICTURE), []),
    ],
    ids=["banner", "table between", "signed", "stub", "as long", "table", "page of pictures", "links",
         "invitation", "file within a form", "page", "calendar alone", "picture alone"],
)  # fmt: skip
def test_the_parts_of_a_mail_are_read_once_and_in_order(
    tmp_path: Path, message: str, lines: list[str]
) -> None:
    (tmp_path / "a.eml").write_text(f"From: a@x.org\nMIME-Version: 1.0\n{message}")
    assert [it for it in read(tmp_path / "a.eml").splitlines() if it not in ("", "```")] == [
        *("From: a@x.org", *lines)
    ]


@office
def test_files_attached_to_a_mail_are_read(tmp_path: Path) -> None:
    message = EmailMessage()
    message.set_content("Attached.")
    files = {
        "a.PDF": pdf("Of a PDF file.", ""),
        "b.docx": docx("Of a Word file."),
        "c.xlsx": sheet(b'<row><c t="inlineStr"><is><t>Of a sheet</t></is></c></row>'),
        "d.pdf": pdf(""),
        "e.docx": b"damaged",
        "f.zip": zipped({"a.txt": "text"}),
    }
    for name, content in files.items():
        message.add_attachment(content, maintype="application", subtype="octet-stream", filename=name)
    (tmp_path / "a.eml").write_bytes(message.as_bytes())
    document = open_document(tmp_path / "a.eml")
    assert [line for line in text_of(document).splitlines() if line.strip() not in ("", "```")] == [
        *("Attached.", "Attachment: a.PDF", "Of a PDF file.", "Attachment: b.docx", "Of a Word file."),
        *("Attachment: c.xlsx", "## S", "| Of a sheet |", "| --- |"),
        *(f"Attachment, not read: {name}" for name in ("d.pdf", "e.docx", "f.zip")),
    ]
    assert [it.partition("a.eml: ")[2] for it in passed(document).skipped] == [
        "a.PDF: page 2 has no text (scanned? run OCR first)",
        "d.pdf (it has no text)",
        "e.docx (File is not a zip file)",
    ]


@pytest.mark.parametrize("address", ["Ada <", "ada@", "a@[", "Ada Lovelace@x.org, <>"])
def test_a_malformed_address_is_text(tmp_path: Path, address: str) -> None:
    (tmp_path / "a.eml").write_text(f"From: {address}\nTo: {address}\n\nbody\n")
    assert read(tmp_path / "a.eml") == f"From: {address}\nTo: {address}\n\n```\nbody\n```\n"


def test_the_mails_of_a_mailbox_follow_each_other(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "a.mbox")
    html = EmailMessage()
    html.set_content("<pre>open<style>", subtype="html")
    for message in (mail(), html, mail()):
        box.add(message)
    box.close()
    assert read(tmp_path / "a.mbox") == f"{MAIL}\n```\nopen\n```\n\n{MAIL}"
    begins = "From ada@x.org Mon Jan  1 10:00:00 2024\n\n"
    body = "One.\n\nFrom here on,\nNote: two.\n\nFrom 10:30 on,\nthree.\n"
    (tmp_path / "b.mbox").write_text(f"{begins}{body}\n{begins}Three.\n")
    assert read(tmp_path / "b.mbox") == f"```\n{body}\n```\n\n```\nThree.\n```\n"


@office
def test_an_rtf_file_by_name_and_by_its_first_bytes(tmp_path: Path) -> None:
    for name in ("a.rtf", "a.doc"):
        (tmp_path / name).write_bytes(rb"{\rtf1\ansi The \b key\b0  is 4711.\par Caf\'e9 \u9731? end.}")
        assert read(tmp_path / name) == "The key is 4711.\nCafé ☃ end."


@office
def test_an_rtf_file_has_characters_in_two_halves(tmp_path: Path) -> None:
    content = rb"{\rtf1\ansi The \u-10178?\u-8945?, \u-10178?half, \u20013?.}"
    (tmp_path / "a.rtf").write_bytes(content)
    assert read(tmp_path / "a.rtf") == "The 🤏, \ufffdhalf, 中."


def test_the_footnotes_of_an_rtf_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi The fee.{\footnote  It is 4711.} The end.}")
    assert read(tmp_path / "a.rtf") == "The fee. It is 4711. The end."


@office
def test_the_text_boxes_of_an_rtf_file_are_read(tmp_path: Path) -> None:
    box = rb"{\shp{\*\shpinst\shpleft9{\sp{\sn kind}{\sv 202}}{\shptxt \pard Boxed.\par}}{\shprslt old}}"
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi One.\par" + box + rb"{\shpgrp{\*\shpinst " + box + b"}}}")
    assert read(tmp_path / "a.rtf").split() == ["One.", "Boxed.", "Boxed."]
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi C:\\shp\\roads}")
    assert read(tmp_path / "a.rtf") == r"C:\shp\roads"


@office
def test_slides_are_pages(tmp_path: Path) -> None:
    pptx = pytest.importorskip("pptx")
    show = pptx.Presentation()
    for title in ("First", "Second"):
        slide = show.slides.add_slide(show.slide_layouts[5])
        slide.shapes.title.text = title
        table = slide.shapes.add_table(1, 2, 0, 0, 9, 9).table
        table.cell(0, 0).text, table.cell(0, 1).text = "x", "y"
        slide.notes_slide.notes_text_frame.text = f"Say {title}."
    show.save(tmp_path / "a.pptx")
    (chunk,) = split(open_document(tmp_path / "a.pptx"), 1000, len)
    slides = [(part.page, chunk.text_of(part)) for part in chunk.parts]
    assert slides == [
        (page, f"{title}\n\n| x | y |\n| --- | --- |\n\nNotes: Say {title}.\n\n")
        for page, title in ((1, "First"), (2, "Second"))
    ]


DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"


@office
def test_a_slide_gives_its_equations_and_the_boxes_around_them() -> None:
    pptx = pytest.importorskip("pptx")
    from pptx.oxml import parse_xml

    show = pptx.Presentation()
    shapes = show.slides.add_slide(show.slide_layouts[6]).shapes
    for text in ("Energy: ", "Below"):
        shapes.add_textbox(0, 0, 9, 9).text_frame.text = text
    office = "http://schemas.microsoft.com/office/drawing/2010/main"
    box = shapes[0]._element
    equation = parse_xml(f'<a:m xmlns:a="{office}">{math("E=m<sSup><e>c</e><sup>2</sup></sSup>")}</a:m>')
    box.find(f".//{{{DRAWING}}}p").append(equation)
    either = parse_xml(
        '<x:AlternateContent xmlns:x="http://schemas.openxmlformats.org/markup-compatibility/2006">'
        "<x:Choice/><x:Fallback/></x:AlternateContent>"
    )
    box.addprevious(either)
    either[0].append(box)
    file = BytesIO()
    show.save(file)
    assert list(converters.converter("pptx")(file)) == ["Energy: E=mc^(2)\n\nBelow\n\n\f"]


@office
def test_a_slide_gives_charts_of_all_kinds() -> None:
    pptx = pytest.importorskip("pptx")
    from pptx.chart.data import CategoryChartData, XyChartData
    from pptx.enum.chart import XL_CHART_TYPE

    bars, dots = CategoryChartData(), XyChartData()
    for year in ("2019", "2020"):
        bars.add_category(year).add_sub_category("spring")
    bars.add_series("rent", (1, 0.1 + 0.2))
    bars.add_series("food", (None, 4))
    for place in (1, 2):
        series = dots.add_series(f"line {place}")
        series.add_data_point(place, 5)
        series.add_data_point(place + 1, 6)
    show = pptx.Presentation()
    for kind, data in ((XL_CHART_TYPE.BAR_CLUSTERED, bars), (XL_CHART_TYPE.XY_SCATTER, dots)):
        slide = show.slides.add_slide(show.slide_layouts[6])
        chart = slide.shapes.add_chart(kind, 0, 0, 9, 9, data).chart
        chart.has_title = True
        chart.chart_title.text_frame.text = "In thousands"
    file = BytesIO()
    show.save(file)
    tables = [
        "|  | 2019 | 2020 |\n| --- | --- | --- |\n|  | spring | spring |\n"
        "| rent | 1 | 0.3 |\n| food |  | 4 |",
        "|  | 1 | 2 |\n| --- | --- | --- |\n| line 1 | 5 | 6 |\n|  | 2 | 3 |\n| line 2 | 5 | 6 |",
    ]
    with zipfile.ZipFile(file) as archive:
        (bar,) = (name for name in archive.namelist() if b"c:barChart" in archive.read(name))
    solid = rewrite(file.getvalue(), bar, ("c:barChart", "c:bar3DChart"))
    for content in (file.getvalue(), solid):
        slides = list(converters.converter("pptx")(BytesIO(content)))
        assert slides == [f"In thousands\n\n{it}\n\n\f" for it in tables]


@pytest.mark.parametrize(
    "page",
    [
        "<!DOCTYPE html><body><p>One<br>two <img src=x> &amp; &lt;three&gt; caf&eacute;<p>end</body></html>",
        '<?xml version="1.0"?><html><head><title/></head><body><p>One</p>two & &lt;three> café<p>end</html>',
        '<?xml version="1.0" encoding="cp1252"?><p>One<br/>two & &lt;three&gt; café</div></p><p>end',
    ],
)
def test_a_chapter_that_is_not_well_formed_is_read_whole(tmp_path: Path, page: str) -> None:
    encoding = "cp1252" if "cp1252" in page else "utf-8"
    with zipfile.ZipFile(BytesIO(epub("text", "The next."))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "a.epub", "w") as changed:
        for name, content in (parts | {"c0.xhtml": page.encode(encoding)}).items():
            changed.writestr(name, content)
    assert read(tmp_path / "a.epub").split() == ["One", "two", "&", "<three>", "café", "end", "The", "next."]


def test_a_chapter_that_a_book_does_not_hold_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(BytesIO(epub("One.", "Two.", "Three.", "Four."))) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    del parts["c1.xhtml"]
    parts["C2.XHTML"] = parts.pop("c2.xhtml")
    parts["content.opf"] = parts["content.opf"].replace('<item id="c3"', '<item id="d3"')
    (tmp_path / "a.epub").write_bytes(zipped(parts))
    document = open_document(tmp_path / "a.epub")
    assert text_of(document).split() == ["One.", "Three."]
    assert [it.partition("a.epub: ")[2] for it in passed(document).skipped] == [
        *("c1.xhtml is missing", "c3 is missing")
    ]


def test_a_locked_book_says_so(tmp_path: Path) -> None:
    locked = '<encryption><CipherData><CipherReference URI="c0.xhtml"/></CipherData></encryption>'
    with zipfile.ZipFile(BytesIO(epub("text"))) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    (tmp_path / "a.epub").write_bytes(zipped(parts | {"META-INF/encryption.xml": locked}))
    with pytest.raises(DocumentError, match="it is protected by a password"):
        read(tmp_path / "a.epub")


# Limits


def refused(path: Path, place: Path, limits: ConversionLimits) -> str:
    with pytest.raises(DocumentError, match="cannot be converted") as error:
        convert(look_at(path, path.name, named=True), place, threading.Event(), limits)
    assert not place.exists()
    return str(error.value).partition("cannot be converted: ")[2]


@office
def test_a_bomb_ends_at_the_limit_of_memory(tmp_path: Path) -> None:
    with zipfile.ZipFile(BytesIO(docx("text"))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    middle = b"<w:p><w:r><w:t>" + b"a" * 300_000_000 + b"</w:t></w:r></w:p>"
    parts["word/document.xml"] = (
        f'<w:document xmlns:w="{WORD}"><w:body>'.encode() + middle + b"</w:body></w:document>"
    )
    path = tmp_path / "a.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    assert path.stat().st_size < 400_000
    limits = ConversionLimits(memory_mib=256)
    assert refused(path, tmp_path / "out", limits) == "it takes more than 256 MiB of memory"


@office
def test_a_bomb_ends_at_the_limit_of_time_or_text(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    row = b'<row><c t="inlineStr"><is><t>' + b"x" * 1000 + b"</t></is></c></row>"
    path.write_bytes(sheet(row * 50_000))
    assert path.stat().st_size < 400_000
    started = time.monotonic()
    assert refused(path, tmp_path / "out", ConversionLimits(seconds=1)) == "it takes longer than 1 s"
    assert time.monotonic() - started < 10
    limits = ConversionLimits(output_mib=1)
    assert refused(path, tmp_path / "out", limits) == "it produces more than 1 MiB of text"


@pytest.mark.parametrize(
    "content",
    [
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
        b"2 0 obj<</Type/Pages/Kids[2 0 R]/Count 9>>endobj\n"
        b"trailer<</Root 1 0 R>>\n%%EOF",
        b"%PDF-1.4\nxref\n0 1\n0000000000 65535 f \n"
        b"trailer<</Size 1/Root 1 0 R/Prev 9>>\nstartxref\n9\n%%EOF",
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 1 0 R/Kids[1 0 R 1 0 R]/Count 99999999>>endobj\n"
        b"trailer<</Root 1 0 R>>\nstartxref\n0\n%%EOF",
    ],
    ids=["kids", "references", "all"],
)
def test_a_pdf_that_refers_to_itself_ends(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pdf").write_bytes(content)
    started = time.monotonic()
    with pytest.raises(DocumentError, match=r"a\.pdf (cannot be converted|has no text)"):
        read(tmp_path / "a.pdf")
    assert time.monotonic() - started < 30


# Once for each file


TEN_READERS = """
import sys, threading
from memagent import open_document
started = []
sys.addaudithook(lambda event, _: started.append(event) if event == "subprocess.Popen" else None)
document, texts = open_document(sys.argv[1]), []
def read():
    texts.append("".join(block.text for block in document.blocks()))
threads = [threading.Thread(target=read) for _ in range(10)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(started), len(texts), len(set(texts)), "Page 299." in texts[0])
"""


def test_ten_readers_convert_once(tmp_path: Path) -> None:
    """Readers at the same time wait for one conversion; the next process finds it."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*(f"Page {number}." for number in range(300))))
    for conversions in (b"1", b"0"):
        done = subprocess.run([sys.executable, "-c", TEN_READERS, path], capture_output=True, check=True)
        assert done.stdout.split() == [conversions, b"10", b"1", b"True"]
    (kept,) = cache_folder().iterdir()
    assert kept.parent.stat().st_mode & 0o077 == 0
    path.write_bytes(pdf("Another."))
    assert read(path) == "Another.\n\n"


def test_the_text_of_a_file_that_has_grown_does_not_pass_for_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("One."))
    document = open_document(path)
    with path.open("ab") as file:
        file.write(b"% saved again\n")
    with pytest.raises(DocumentError, match=r"a\.pdf changed while it was read"):
        text_of(document)
    assert not list(cache_folder().iterdir())


def test_a_pass_tells_whether_it_may_have_to_convert(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for name in ("b.pdf", "c.pdf"):
        (tmp_path / name).write_bytes(pdf(name))
    assert not open_document(tmp_path / "a.txt").blocks().may_convert()
    found = open_document(tmp_path).blocks()
    blocks, told = iter(found), [found.may_convert()]
    for _ in range(3):
        next(blocks)
        told.append(found.may_convert())
    assert told == [True, True, True, False]
    again = open_document(tmp_path).blocks()
    blocks, told = iter(again), [again.may_convert()]
    next(blocks), next(blocks)
    for kept in cache_folder().iterdir():
        kept.unlink()
    assert [*told, again.may_convert()] == [False, True]


def test_a_file_that_cannot_be_converted_is_tried_once(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4\nnothing")
    (tmp_path / "b.txt").write_text("text")
    code = (
        "import sys\nfrom memagent import open_document\nstarted = []\n"
        "sys.addaudithook(lambda event, _: started.append(event) if event == 'subprocess.Popen' else None)\n"
        "document = open_document(sys.argv[1])\n"
        "for _ in range(3):\n"
        "    found = document.blocks()\n"
        "    print(*(block.text for block in found), len(found.skipped), found.may_convert(), len(started))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "text 1 False 1\n" * 3


def test_a_text_that_is_dropped_from_the_cache_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*("A line of some length, again and again." for _ in range(8000))))
    document = open_document(path)
    whole = text_of(document)
    assert len(whole) > 256 * 1024
    blocks = iter(document.blocks())
    text = next(blocks).text
    for kept in cache_folder().iterdir():
        kept.unlink()
    assert text + "".join(block.text for block in blocks) == whole


def test_the_cache_is_bounded_and_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memagent.documents.conversion._CACHE_BYTES", 300)
    crashed = cache_folder() / ".left"
    crashed.mkdir()
    os.utime(crashed, (0, 0))
    for number in range(4):
        path = tmp_path / f"{number}.pdf"
        path.write_bytes(pdf(str(number) * 98))
        read(path)
        (newest,) = (it for it in cache_folder().iterdir() if first(it) == str(number))
        os.utime(newest, (1000 + number, 1000 + number))
        if number == 1:
            os.utime(next(it for it in cache_folder().iterdir() if first(it) == "0"), (1500, 1500))
    assert sorted(map(first, cache_folder().iterdir())) == ["0", "3"]


def test_what_goes_from_the_cache_meanwhile_stops_no_conversion(tmp_path: Path) -> None:
    crashed = cache_folder() / ".left"
    crashed.mkdir()
    os.utime(crashed, (0, 0))
    for name in (".gone", "gone"):  # listed, but not there
        (cache_folder() / name).symlink_to(tmp_path / "nothing")
    (tmp_path / "a.pdf").write_bytes(pdf("The key."))
    assert read(tmp_path / "a.pdf") == "The key.\n\n"
    assert not crashed.exists()


def test_a_cache_that_cannot_be_pruned_stops_no_conversion(tmp_path: Path) -> None:
    loop = cache_folder() / ".loop"
    loop.symlink_to(loop)
    (tmp_path / "a.pdf").write_bytes(pdf("The key."))
    assert read(tmp_path / "a.pdf") == "The key.\n\n"


def first(kept: Path) -> str:
    """The first character of a text in the cache, behind its digest."""
    return chr(kept.read_bytes()[32])


@pytest.mark.parametrize(
    "damaged",
    [
        lambda raw: raw[:100],
        lambda raw: raw[:-1],
        lambda raw: b"",
        lambda raw: raw + b"more",
        lambda raw: raw[:500] + bytes([raw[500] ^ 1]) + raw[501:],
        lambda raw: raw[32:],
        lambda raw: bytes(range(256)) * 9,
    ],
    ids=["cut", "one byte", "empty", "longer", "flipped", "without its digest", "garbage"],
)
def test_a_damaged_text_in_the_cache_is_never_read(tmp_path: Path, damaged: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*(f"Page {number}." for number in range(100))))
    whole = read(path)
    (kept,) = cache_folder().iterdir()
    kept.write_bytes(damaged(sound := kept.read_bytes()))
    assert read(path) == whole
    assert kept.read_bytes() == sound


def test_a_text_in_the_cache_that_is_damaged_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*(f"Line {number} of some length, again." for number in range(8000))))
    document = open_document(path)
    whole = text_of(document)
    blocks = iter(document.blocks())
    text = next(blocks).text
    (kept,) = cache_folder().iterdir()
    kept.write_bytes(kept.read_bytes()[:-100].replace(b"again", b"never"))
    assert text + "".join(block.text for block in blocks) == whole


@office
def test_a_conversion_ends_with_the_process_that_began_it(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(sheet(b'<row><c t="inlineStr"><is><t>x</t></is></c></row>' * 1_000_000))
    code = "import sys\nfrom memagent import open_document\nnext(iter(open_document(sys.argv[1]).blocks()))"
    with subprocess.Popen([sys.executable, "-c", code, path]) as process:
        (child,) = wait_for(lambda: find_converters(process.pid), process)
        process.kill()
    wait_for(lambda: not is_converter(child))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, nobody: Path) -> None:
    (nobody / "memagent").write_text("a file where a folder should be")
    (tmp_path / "a.pdf").write_bytes(pdf("text"))
    with pytest.raises(
        DocumentError, match=r"a\.pdf cannot be converted: .*memagent.*: (Not a dir|File exists)"
    ):
        read(tmp_path / "a.pdf")


def refuses_what_changed(path: Path, before: str, after: str) -> None:
    """Assert that a PDF which changes once its print is taken is refused."""
    path.write_bytes(pdf(before))
    document = open_document(path)
    assert document.fingerprint
    path.write_bytes(pdf(after))
    with pytest.raises(DocumentError, match=r"a\.pdf changed while it was read"):
        text_of(document)


def test_a_file_that_changes_while_it_is_converted(tmp_path: Path) -> None:
    refuses_what_changed(tmp_path / "a.pdf", "Before.", "Behind.")
    assert list(cache_folder().iterdir()) == []


def test_the_text_of_what_a_file_was_meanwhile_is_not_kept_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    refuses_what_changed(path, "Before, and more of it.", "Less.")
    path.write_bytes(pdf("Before, and more of it."))
    assert "Before, and more of it." in read(path)


def test_narrower_limits_of_the_user_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("The key."))
    narrow = {resource.RLIMIT_FSIZE: 8 * 2**20, resource.RLIMIT_CPU: 500}
    code = (
        "import resource, sys, memagent\n"
        f"for which, most in {narrow!r}.items(): resource.setrlimit(which, (most, most))\n"
        "print(*(it.text for it in memagent.open_document(sys.argv[1]).blocks()))"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "a.pdf")]
    assert "The key." in subprocess.run(run, capture_output=True, text=True, check=True).stdout


# Meanwhile


@office
def test_a_pass_that_is_closed_ends_its_conversion(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(sheet(b'<row><c t="inlineStr"><is><t>x</t></is></c></row>' * 1_000_000))
    found = open_document(path).blocks()

    def close() -> None:
        wait_for(lambda: find_converters(os.getpid()))
        found.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(DocumentError, match="the read was stopped"):
        next(iter(found))
    closing.join()


@office
def test_an_interrupt_ends_a_conversion(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(sheet(b'<row><c t="inlineStr"><is><t>x</t></is></c></row>' * 1_000_000))
    code = "import sys\nfrom memagent import open_document\nnext(iter(open_document(sys.argv[1]).blocks()))"
    with subprocess.Popen([sys.executable, "-c", code, path], stderr=subprocess.PIPE) as process:
        wait_for(lambda: find_converters(process.pid), process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert b"KeyboardInterrupt" in said
    assert list(cache_folder().iterdir()) == []


@office
def test_the_event_loop_is_not_blocked(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(docx("The key."))

    async def ticks() -> int:
        done = asyncio.create_task(asyncio.to_thread(read, tmp_path / "a.docx"))
        count = 0
        while not done.done():
            await asyncio.sleep(0.01)
            count += 1
        assert "The key." in done.result()
        return count

    assert asyncio.run(ticks()) >= 2


def test_the_converter_imports_only_what_it_needs(tmp_path: Path) -> None:
    """Its start is paid for each file."""
    code = (
        "import runpy, sys\nfrom memagent.documents import converters as it\n"
        "before = set(sys.modules)\nlist(it.converter('pdf')(open(sys.argv[1], 'rb')))\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    (tmp_path / "a.pdf").write_bytes(pdf("text"))
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.pdf"], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    assert "pypdfium2" in loaded
    assert not {"lxml", "openpyxl", "mammoth", "pptx", "openai", "numpy"} & set(loaded)
