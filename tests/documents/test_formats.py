"""What each format gives: a table of contents and their texts, converted in this process.

That a converter runs in a process of its own, and what happens then, is in `test_conversion.py`.
"""

from __future__ import annotations

import mailbox
import re
import zipfile
from collections.abc import Callable, Iterable
from datetime import datetime
from email.message import EmailMessage
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from files import docx, epub, notebook, office, passed, pdf, pdf_of, pdf_of_pages, rewrite, sheet, zipped
from memagent import open_document
from memagent.documents.converters import HTML, converter
from memagent.documents.converters.text import Remark
from memagent.documents.markup import markdown_of

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
CHOICE = "http://schemas.openxmlformats.org/markup-compatibility/2006"


def convert(format: str, content: bytes) -> tuple[str, list[str]]:
    """The text of a file, and what is said of it."""
    pieces = list(converter(format)(BytesIO(content)))
    text = "".join(piece for piece in pieces if not isinstance(piece, Remark)).replace("\f", "")
    remarks = [str(piece) for piece in pieces if isinstance(piece, Remark)]
    return "".join(markdown_of([text])) if format in HTML else text, remarks


def text_in(format: str, content: bytes) -> str:
    return convert(format, content)[0]


def lines_in(format: str, content: bytes) -> list[str]:
    """The lines that are neither empty nor a fence."""
    return [line for line in text_in(format, content).splitlines() if line.strip() not in ("", "```")]


def saved(document: Any) -> bytes:
    """A workbook or a presentation as a file."""
    file = BytesIO()
    document.save(file)
    return file.getvalue()


# PDF


def page_pdf(
    stream: str, page: str = "", font: str = "", catalog: str = "", more: Iterable[str] = ()
) -> bytes:
    """A PDF of one page, with additions to its objects; `more` are the sixth and the next."""
    return pdf_of([
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R {page} "
        "/Resources << /Font << /F1 4 0 R >> >> >>",
        f"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica {font} >>",
        stream_of(stream),
        *more,
    ])  # fmt: skip


def stream_of(content: str, head: str = "") -> str:
    return f"<< {head} /Length {len(content)} >>\nstream\n{content}\nendstream"


def form_pdf(field: str) -> bytes:
    """A PDF of one page with one field."""
    return page_pdf(
        "BT /F1 12 Tf 72 700 Td (Tenant:) Tj 0 -20 Td (The last line.) Tj ET",
        page="/Annots [6 0 R]",
        catalog="/AcroForm << /Fields [6 0 R] /DA (/F1 12 Tf 0 g) /DR << /Font << /F1 4 0 R >> >> >>",
        more=[f"<< /Type /Annot /Subtype /Widget /FT /Tx /T (tenant) /F 4 /P 3 0 R {field} >>"],
    )


def turned_pdf(turn: str, rotate: int) -> bytes:
    lines = "(The first line) Tj 150 0 Td (has two parts.) Tj -150 -20 Td (The second line.) Tj"
    text = f"BT /F1 12 Tf {turn} 300 400 Tm {lines} 0 -20 Td (The third.) Tj ET"
    return page_pdf(text, page=f"/Rotate {rotate}")


def annotated_pdf() -> bytes:
    """A page with text typed over it, and a comment."""
    return page_pdf(
        "BT /F1 12 Tf 72 700 Td (Tenant:) Tj ET",
        page="/Annots [6 0 R 8 0 R]",
        more=[
            "<< /Type /Annot /Subtype /FreeText /F 4 /Rect [200 690 400 710] /AP << /N 7 0 R >> >>",
            stream_of(
                "BT /F1 12 Tf 5 5 Td (Typed over the page.) Tj ET",
                "/Type /XObject /Subtype /Form /BBox [0 0 200 20] /Resources << /Font << /F1 4 0 R >> >>",
            ),
            "<< /Type /Annot /Subtype /Text /F 4 /Rect [9 9 20 20] /Contents (A comment.) >>",
        ],
    )


def mapped_pdf(text: str, letters: dict[int, int]) -> bytes:
    """A PDF of one line, whose font says which characters these codes stand for, besides those of ASCII."""
    own = " ".join(f"<{code:02X}> <{letter:04X}>" for code, letter in letters.items())
    maps = (
        "begincmap 1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfrange <20> <7E> <0020> "
        f"endbfrange {len(letters)} beginbfchar {own} endbfchar endcmap"
    )
    differences = "/Encoding << /BaseEncoding /WinAnsiEncoding /Differences [128 /ff /fi /hyphen] >>"
    return page_pdf(
        f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET",
        font=f"/ToUnicode 6 0 R {differences}",
        more=[stream_of(maps)],
    )


def placed_pdf(*words: tuple[int, int, str]) -> bytes:
    """A page with texts at these places from the left and the bottom."""
    return page_pdf(placed(words))


def placed(words: Iterable[tuple[int, int, str]]) -> str:
    texts = " ".join(f"1 0 0 1 {left} {bottom} Tm {text}" for left, bottom, text in words)
    return f"BT /F1 10 Tf {texts} ET"


def cells(
    *rows: tuple[str, ...], columns: tuple[int, ...] = (72, 180, 290, 400)
) -> list[tuple[int, int, str]]:
    """Rows of cells, one below the other; an empty cell is not drawn."""
    return [
        (left, 700 - 14 * number, f"({cell}) Tj")
        for number, row in enumerate(rows)
        for left, cell in zip(columns, row, strict=False)
        if cell
    ]


def table_pdf(*rows: tuple[str, ...]) -> bytes:
    return placed_pdf(*cells(*rows))


PAPER = [
    ("The survey of the harbour found that the re-", "A second team looked at the light-"),
    ("tention wall had moved by four centi-", "house. Its lamp is sound, but the"),
    ("metres since 1998. The engineers ad-", "stairs are rotten. They must be"),
    ("vise to drive new piles.", "replaced by oak at 90,000 crowns."),
]
PAPER_LEFT = (
    "The survey of the harbour found that the retention wall had moved by four centimetres since 1998. The "
    "engineers advise to drive new piles."
)
PAPER_RIGHT = (
    "A second team looked at the lighthouse. Its lamp is sound, but the stairs are rotten. They must be "
    "replaced by oak at 90,000 crowns."
)
ABOVE = "A title that stands above both of the columns and so belongs to neither of the two"
RAIN = [
    ("Rain in mm, as it was measured at the three gauges",),
    ("A", "North", "South", "West"),
    ("May", "12", "", "7"),
    ("June", "", "9"),
    ("July", "", "", "5"),
    ("end",),
]
RAIN_TABLE = (
    "| A | North | South | West |\n| --- | --- | --- | --- |\n| May | 12 |  | 7 |\n| June |  | 9 |  |"
)
KERNED = [
    (72, 700, "[(May) -9000 (12) -19000 (7)] TJ"),
    (72, 686, "[(June) -19000 (9)] TJ"),
    (72, 672, "[(July) -9000 (3) -9700 (4)] TJ"),
]
KERNED_TABLE = "| May | 12 |  | 7 |\n| --- | --- | --- | --- |\n| June |  | 9 |  |\n| July | 3 | 4 |  |"
FORM = "Tenant:\nThe last line."
LIST_ROWS = [("1.", "Payment within the days"), ("2.", "Notice of three months"), ("3.", "Court of Bremen")]
FORM_ROWS = [("Tenant", "Ada Lovelace"), ("Rent", "900"), ("Since", "2024"), ("Until", "2026")]
ONCE_ROWS = [("one", "two", "three"), ("A line that stands across the three of them all",), ("four",)]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (form_pdf("/Rect [200 690 400 710] /V (Ada Lovelace)"), f"{FORM}\nAda Lovelace"),
        (form_pdf("/Rect [200 690 400 710]"), FORM),
        (form_pdf("/Rect (no) /V 99 0 R /AP << /N 99 0 R >> /Kids [6 0 R] /Parent 6 0 R"), FORM),
        (annotated_pdf(), "Tenant:\nTyped over the page."),
        (mapped_pdf("The Bau\x82gesell\x82schaft", {0x82: 0xAD}), "The Baugesellschaft"),
        (mapped_pdf("The o\x80er of the \x81rm", {0x80: 0, 0x81: 0xFB01}), "The o\ufffder of the firm"),
        (table_pdf(*RAIN), f"{RAIN[0][0]}\n\n{RAIN_TABLE}\n| July |  |  | 5 |\n\nend"),
        (placed_pdf(*KERNED), KERNED_TABLE),
        (table_pdf(*LIST_ROWS), "\n".join(map(" ".join, LIST_ROWS))),
        (table_pdf(*FORM_ROWS), "\n".join(map(" ".join, FORM_ROWS))),
        (table_pdf(*ONCE_ROWS), "\n".join(map(" ".join, ONCE_ROWS))),
    ],
    ids=["filled form", "empty form", "broken form", "typed over, without comments", "soft hyphens",
         "mapped to nothing", "empty cells", "gaps in a string", "list", "form", "gap once"],
)  # fmt: skip
def test_a_pdf(content: bytes, text: str) -> None:
    assert text_in("pdf", content).strip() == text


def test_characters_that_a_pdf_maps_to_nothing_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(mapped_pdf("The o\x80er: co\x80ee", {0x80: 0}))
    assert passed(open_document(path)).replaced == {str(path): 2}


@pytest.mark.parametrize("turn", ["1 0 0 1", "0 1 -1 0", "-1 0 0 -1", "0 -1 1 0"])
@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
def test_a_page_of_a_pdf_may_lie_on_its_side(turn: str, rotate: int) -> None:
    text = text_in("pdf", turned_pdf(turn, rotate))
    assert text == "The first line has two parts.\nThe second line.\nThe third.\n\n"


def test_columns_of_a_pdf_that_are_drawn_row_by_row_are_read_one_after_the_other() -> None:
    rows = [(ABOVE,), *PAPER, ("1 A note on the left.",)]
    text = text_in("pdf", placed_pdf(*cells(*rows, columns=(72, 320))))
    assert " ".join(text.split()) == f"{ABOVE} {PAPER_LEFT} 1 A note on the left. {PAPER_RIGHT}"


@pytest.mark.parametrize(
    "feet",
    [[(285, "- 2 -")], [(72, "Journal of Bridges"), (288, "12"), (500, "2021")]],
    ids=["number", "three parts"],
)
@pytest.mark.parametrize("drawn_first", [True, False])
def test_the_foot_of_a_page_is_no_column(feet: list[tuple[int, str]], drawn_first: bool) -> None:
    body = cells(*PAPER, columns=(72, 320))
    foot = [(left, 60, f"({text}) Tj") for left, text in feet]
    text = " ".join(text_in("pdf", placed_pdf(*(foot + body if drawn_first else body + foot))).split())
    assert f"{PAPER_LEFT} {PAPER_RIGHT}" in text
    assert " ".join(text for _, text in feet) in text
    assert "|" not in text


STATIONS = [("No.", "Station", "Height"), *((f"{n}", f"Halt {n}", f"{n * 7}") for n in range(1, 7))]
OTHER_HEAD = ("Year", "Name", "Guests")


@pytest.mark.parametrize(
    ("names", "second", "head"),
    [
        (STATIONS[0], STATIONS[4:], STATIONS[0]),
        (STATIONS[0], [STATIONS[0], *STATIONS[4:]], STATIONS[0]),
        (STATIONS[0], [OTHER_HEAD, *STATIONS[4:]], OTHER_HEAD),
        (("No.", "Station", ""), [(row[0], row[1]) for row in STATIONS[4:]], None),
    ],
    ids=["continued", "head repeated", "another", "fewer columns"],
)
def test_a_table_of_a_pdf_goes_on_on_the_next_page(
    names: tuple[str, ...], second: list[tuple[str, ...]], head: tuple[str, ...] | None
) -> None:
    title = ("Stations of the rack railway that climbs from the lake to the pass", "", "")
    pages = (placed(cells(title, *rows)) for rows in ([names, *STATIONS[1:4]], second))
    _, page = text_in("pdf", pdf_of_pages(*pages)).split(title[0])[1:]
    lines = [line for line in page.splitlines() if line]
    if head is None:
        assert lines == ["4 Halt 4", "5 Halt 5", "6 Halt 6"]
    else:
        assert lines == [f"| {' | '.join(row)} |" for row in (head, ("---",) * 3, *STATIONS[4:])]


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
def test_a_word_of_a_pdf_broken_at_the_end_of_a_line_is_whole(before: str, after: str, expected: str) -> None:
    assert text_in("pdf", table_pdf((before,), (after,))).strip() == expected


# Workbooks


def workbook(*rows: tuple[Any, ...], merged: Iterable[str] = (), title: str = "Sheet") -> Any:
    """A workbook of one sheet."""
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    for cells in merged:
        book.active.merge_cells(cells)
    return book


@office
def test_cells_of_a_sheet_that_were_merged_are_in_each_of_them() -> None:
    book = workbook(
        ("Sales by region", None, None),
        ("Region", 2025, None, 2026),
        (None, "Sales", "Cost", None),
        ("North", 10, 4, "=B4+1"),
        (None, 11, None, 13),
        merged=("A1:D1", "B2:C2", "A4:A5", "B5:C5"),
    )
    assert text_in("xlsx", saved(book)).strip().splitlines()[2:] == [
        *("Sales by region", "", "| Region | 2025 Sales | 2025 Cost | 2026 |"),
        *("| --- | --- | --- | --- |", "| North | 10 | 4 | =B4+1 |", "| North | 11 | 11 | 13 |"),
    ]


@office
def test_what_a_workbook_hides_is_left_out_and_said() -> None:
    book = workbook(
        ("id", "name", "cost", "price", None),
        ("Part", "Shelf", 1, "Dose", None),
        (None, None, 2, "adult", "child"),
        ("bolt", "A", 3, 4, 5),
        ("nut", "B", 6, 7, 8),
        (None, "C", 9, 10, 11),
        merged=("D2:E2", "B2:C2", "A4:A6", "A2:A3"),
        title="Prices",
    )
    for row in (1, 5):
        book.active.row_dimensions[row].hidden = True
    book.active.column_dimensions["C"].hidden = True
    for state in ("hidden", "veryHidden"):
        book.create_sheet(state).sheet_state = state
        book[state].append(("secret",))
    book.create_sheet("Last").append(("x",))
    book["Last"].row_dimensions[9].hidden = True
    content = saved(book)
    assert lines_in("xlsx", content) == [
        *("## Prices", "| Part | Shelf | Dose adult | Dose child |", "| --- | --- | --- | --- |"),
        *("| bolt | A | 4 | 5 |", "| bolt | C | 10 | 11 |", "## Last", "| x |", "| --- |"),
    ]
    assert convert("xlsx", content)[1] == [
        "hidden rows or columns of the sheet Prices",
        "the hidden sheet hidden",
        "the hidden sheet veryHidden",
    ]


@office
def test_a_workbook_keeps_the_comments_on_its_cells() -> None:
    book = workbook(("part", "price"), ("bolt", 4))
    comment = pytest.importorskip("openpyxl").comments.Comment
    threaded = "[Threaded comment]\n\nYour version of Excel allows you to read this.\n\nComment:\n    of May"
    for cell, text in (("B2", threaded), ("C2", "ask\nAda"), ("A1", "by number")):
        book.active[cell].comment = comment(text, "Bob")
    assert text_in("xlsx", saved(book)).splitlines()[2:] == [
        "| part [comment: by number] | price |",
        "| --- | --- |",
        "| bolt | 4 [comment: of May] | [comment: ask Ada] |",
        "",
    ]


@office
def test_a_sheet_has_whole_numbers_and_empty_cells() -> None:
    book = workbook(
        ("who", "rent", "since", "paid", None, None),
        ("Ann", 1200.0, datetime(2024, 3, 1), True),
        (),
        ("Bob", 0.1 + 0.2, datetime(2024, 3, 1, 12, 30), None, "a\nnote"),
        ("sum", "=SUM(B2:B4)"),
        title="Rents",
    )
    book.create_sheet("Empty")
    assert text_in("xlsx", saved(book)).split("\n") == [
        *("## Rents", "", "| who | rent | since | paid |", "| --- | --- | --- | --- |"),
        "| Ann | 1200 | 2024-03-01 | TRUE |",
        "| Bob | 0.3 | 2024-03-01 12:30:00 |  | a note |",
        "| sum | =SUM(B2:B4) |",
        *("", "## Empty", "", "", ""),
    ]


@office
@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [
        (42, "00000", "00042"),
        (123456, "00000", "123456"),
        (7, "0", "7"),
        (2.5, "00", "2.5"),
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
    ],
)
def test_numbers_keep_leading_zeros_and_units_of_their_format(
    value: Any, number_format: str, text: str
) -> None:
    book = workbook((value,))
    book.active["A1"].number_format = number_format
    assert lines_in("xlsx", saved(book))[1] == f"| {text} |"
    book.active["A2"] = "=A1"  # a formula anywhere is looked for first
    assert lines_in("xlsx", saved(book))[1] == f"| {text} |"


def number(value: str) -> str:
    return f"<c><v>{value}</v></c>"


LATE = '<c t="str"><f>IF(A1,"late","")</f><v>{}</v></c>'
NUMBERS = ("1200.0", "0.30000000000000004", "-7", "1E+20", "12345678901234")


@office
@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("".join(map(number, NUMBERS)), "1200 | 0.3 | -7 | 1e+20 | 12345678901234"),
        (f"{LATE.format('')}{LATE.format('late')}<c><f>SUM(A1)</f><v></v></c>", " | late | =SUM(A1)"),
        ('<c r="A1"><f t="array" ref="A1:A2">SUM(B1:B2*C1:C2)</f></c>', "=SUM(B1:B2*C1:C2)"),
    ],
    ids=["as people write them", "results that are empty", "never computed, of several cells"],
)
def test_a_row_of_a_sheet(row: str, text: str) -> None:
    assert f"| {text} |" in text_in("xlsx", sheet(f"<row>{row}</row>".encode()))


@office
def test_a_formula_under_a_prefix() -> None:
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    text = f'<sheets:worksheet xmlns:sheets="{main}"><sheets:sheetData><sheets:row><sheets:c><sheets:f>'
    text += "SUM(B1:C9)</sheets:f></sheets:c></sheets:row></sheets:sheetData></sheets:worksheet>"
    old = f'<worksheet xmlns="{main}"><sheetData></sheetData></worksheet>'
    assert "| =SUM(B1:C9) |" in text_in("xlsx", rewrite(sheet(b""), "xl/worksheets/", (old, text)))


# Word


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def paragraph(inner: str) -> str:
    return f"<w:p>{inner}</w:p>"


def word(body: str) -> bytes:
    """A Word file with this body."""
    return rewrite(docx("text"), "word/", (paragraph(run("text")), body))


def table(*rows: tuple[str, ...]) -> str:
    """A table as in a Word file, with the content of its cells."""
    cells = ("".join(f"<w:tc>{cell}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def math(xml: str) -> str:
    """An equation in which `<e>` and the like stand for elements, and text for runs."""
    runs = re.sub(
        r"(?<=>)[^<]+(?=<)", lambda text: f"<m:r><m:t>{text[0]}</m:t></m:r>", f"<oMath>{xml}</oMath>"
    )
    named = re.sub(r"<(/?)(?!/|m:)", r"<\1m:", runs).replace(" val=", " m:val=")
    return named.replace("<m:oMath>", f'<m:oMath xmlns:m="{MATH}">')


def tick(on: int, text: str) -> str:
    office = "http://schemas.microsoft.com/office/word/2010/wordml"
    box = f'<w:sdtPr><v:checkbox><v:checked v:val="{on}"/></v:checkbox></w:sdtPr>'
    boxed = f'<w:sdt xmlns:v="{office}">{box}<w:sdtContent>{run("?")}</w:sdtContent></w:sdt>'
    return f"{boxed}<w:r><w:t>{text}</w:t><w:cr/></w:r>"


def ruby(text: str, reading: str) -> str:
    inner = f"<w:rubyPr/><w:rt>{run(reading)}</w:rt><w:rubyBase>{run(text)}</w:rubyBase>"
    return f"<w:r><w:ruby>{inner}</w:ruby></w:r>"


BOX = "<w:txbxContent><w:p><w:r><w:t>in the box</w:t></w:r></w:p></w:txbxContent>"
DRAWN = f"<w:drawing><x>{BOX}</x></w:drawing>"


def boxed(older: str) -> str:
    """A text box, drawn anew and as older programs see it."""
    either = f"<c:Choice>{DRAWN}</c:Choice><c:Fallback>{older}</c:Fallback>"
    return f'<w:r><w:t>text</w:t><c:AlternateContent xmlns:c="{CHOICE}">{either}</c:AlternateContent></w:r>'


KINDS = ("fldSimple", "moveTo", "moveFrom", "customXml", "ins", "del")
A, B, C, D = (paragraph(run(letter)) for letter in "abcd")
INNERMOST = table((C,), (D,)) + "<w:p/>"
NESTED = table((A, B), (A, B), (A, B + table((A + B, C), (D, INNERMOST)) + "<w:p/>"), (C, D))
EQUATION = math("E=m<sSup><e>c</e><sup>2</sup></sSup><f><num>a</num><den>b</den></f>")


@office
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (paragraph(run("It says ") + EQUATION + run(" here.")), "It says E=mc^(2)(a)/(b) here."),
        (f'<m:oMathPara xmlns:m="{MATH}">{EQUATION}</m:oMathPara>', "E=mc^(2)(a)/(b)"),
        (paragraph(run("Title")) + table((A, B), (C, D)), "Title\n\n| a | b |\n| --- | --- |\n| c | d |"),
        (NESTED, "| a | b |\n| --- | --- |\n| a | b |\n| a | b a b, c; d, c; d |\n| c | d |"),
        (paragraph("".join(f"<w:{kind}>{run(kind + ' ')}</w:{kind}>" for kind in KINDS)),
         "fldSimple moveTo customXml ins"),
        (paragraph(tick(1, "Yes") + tick(0, "No")), "[x] Yes\n[ ] No"),
        (paragraph(f"<w:bdo>{run('one ')}</w:bdo><w:dir>{run('two ')}</w:dir>{ruby('three', 'reading')}"),
         "one two three"),
        (paragraph(f"<w:r><w:t>text</w:t>{DRAWN}</w:r>"), "text\n\nin the box"),
        (paragraph(boxed(f"<w:pict>{BOX}</w:pict>")), "text\n\nin the box"),
        (paragraph(boxed("<w:drawing><picture/></w:drawing>")), "text\n\nin the box"),
    ],
    ids=["equation", "equation alone", "table", "table within a table", "what was changed", "ticked",
         "from right to left and furigana", "text box", "with an older one", "with an older picture"],
)  # fmt: skip
def test_a_word_file(body: str, text: str) -> None:
    assert text_in("docx", word(body)).strip() == text


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
def test_an_equation_keeps_its_brackets_and_signs(xml: str, text: str) -> None:
    assert text_in("docx", word(paragraph(math(xml)))).strip() == text


@office
def test_a_table_that_arranges_a_page_of_a_word_file_is_read_in_lines() -> None:
    long = NESTED.replace("<w:t>a<", f"<w:t>{'a' * 600}<")
    lines = lines_in("docx", word(long))
    assert len(lines) > 5 and "a" * 600 in lines


@office
def test_a_word_file_keeps_comments_headers_and_footers() -> None:
    with zipfile.ZipFile(BytesIO(docx("text"))) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    commented = f'{run("within 30 days")}<w:r><w:commentReference w:id="0"/></w:r>'
    parts["word/document.xml"] = (
        f'<w:document xmlns:w="{WORD}"><w:body>{paragraph(commented)}</w:body></w:document>'
    )
    parts["word/comments.xml"] = (
        f'<w:comments xmlns:w="{WORD}"><w:comment w:id="0" w:author="Legal" w:initials="L">'
        f"{paragraph(run('Aster wants 21'))}</w:comment></w:comments>"
    )
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/comments"
    parts["word/_rels/document.xml.rels"] = (
        f'<Relationships xmlns="{relations}"><Relationship Id="r1" Type="{kind}" Target="comments.xml"/>'
        "</Relationships>"
    )
    texts = {"header1": "contract 88", "header2": "contract 88", "footer1": "of 14 &amp; June"}
    for name, text in texts.items():
        parts[f"word/{name}.xml"] = f'<w:hdr xmlns:w="{WORD}">{paragraph(run(text))}</w:hdr>'
    assert lines_in("docx", zipped(parts)) == [
        *("contract 88", "within 30 days^[L1]", "Comment [L1]", "Aster wants 21 ↑", "of 14 & June")
    ]


# Notebooks, ODT, RTF


def test_a_notebook_gives_its_cells_and_what_they_printed() -> None:
    outputs = [
        {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo" * 999}},
        {"output_type": "stream", "name": "stdout", "text": ["RMSE 0.31 m\n", "done\n"]},
        {"output_type": "execute_result", "data": {"text/html": "<b>7</b>", "text/plain": "7"}},
        {"output_type": "error", "ename": "KeyError", "evalue": "'x'", "traceback": ["…"]},
    ]
    content = notebook(
        {"cell_type": "markdown", "source": ["# Tide\n", "at *Skarv*"]},
        {"cell_type": "code", "source": "plot(x)\n", "outputs": outputs},
        {"cell_type": "code", "source": [], "outputs": []},
    )
    code = ("plot(x)", "RMSE 0.31 m\ndone", "7", "KeyError: 'x'")
    fenced = "".join(f"```\n{text}\n```\n\n" for text in code)
    assert text_in("ipynb", content) == f"# Tide\nat *Skarv*\n\n{fenced}"


def test_an_odt_file() -> None:
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "text", "table")
    )
    cells = "<table:table-cell table:number-rows-spanned='2'><text:p>{}</text:p></table:table-cell>"
    below = "<table:covered-table-cell/><table:table-cell><text:p>z</text:p></table:table-cell>"
    content = zipped({
        "content.xml": f"<office:document-content {spaces} xmlns:xlink='http://www.w3.org/1999/xlink'>"
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        "<text:h text:outline-level='2'>Title</text:h><text:p>a<text:s/>&lt;b&gt;<text:line-break/>c"
        "<office:annotation><text:p>remark</text:p></office:annotation>"
        "<text:a xlink:href='http://x/?a&amp;b'>link</text:a></text:p>"
        "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
        f"<table:table><table:table-row>{cells.format('x')}<table:table-cell>y</table:table-cell>"
        f"</table:table-row><table:table-row>{below}</table:table-row></table:table>"
        "</office:document-content>"
    })  # fmt: skip
    expected = "## Title\n\na <b>\nc[link](http://x/?a&b)\n\n* one\n\n| x | y |\n| --- | --- |\n| x | z |\n"
    assert text_in("odt", content) == expected


SHAPE = rb"{\shp{\*\shpinst\shpleft9{\sp{\sn kind}{\sv 202}}{\shptxt \pard Boxed.\par}}{\shprslt old}}"


@office
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (rb"The \b key\b0  is 4711.\par Caf\'e9 \u9731? end.", "The key is 4711.\nCafé ☃ end."),
        (rb"The \u-10178?\u-8945?, \u-10178?half, \u20013?.", "The 🤏, \ufffdhalf, 中."),
        (rb"The fee.{\footnote  It is 4711.} The end.", "The fee. It is 4711. The end."),
        (rb"One.\par" + SHAPE + rb"{\shpgrp{\*\shpinst " + SHAPE + b"}}", "One.\nBoxed.\nBoxed.\n"),
        (rb"C:\\shp\\roads", r"C:\shp\roads"),
    ],
    ids=["words", "characters in two halves", "footnotes", "text boxes", "the name of one"],
)
def test_an_rtf_file(content: bytes, text: str) -> None:
    assert text_in("rtf", rb"{\rtf1\ansi " + content + b"}") == text


# Mail


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


def forwarded() -> bytes:
    outer = EmailMessage()
    outer.set_content("See below.")
    outer.add_attachment(mail())
    return outer.as_bytes()


def typed(kind: str, content: bytes, head: str = "") -> bytes:
    return f"{head}Content-Type: {kind}\n".encode() + content


QUOTED = b"Content-Transfer-Encoding: quoted-printable\n\n<table><tr><td>a<td>b</table><pre>caf=E9"
WEB_HEAD = 'Content-Type: multipart/related; boundary="x"\n\n--x\n'
WEB_END = b"\n--x\nContent-Type: text/css\n\np {}\n--x--\n"
WEB_TEXT = "| a | b |\n| --- | --- |\n\n```\ncafé\n```\n"
ODD = ("none-such", "undefined", "idna", '"x\0y"')
ADDRESSES = ("Ada <", "ada@", "a@[", "Ada Lovelace@x.org, <>")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (mail().as_bytes(), MAIL),
        (forwarded(), f"```\nSee below.\n```\n\n{MAIL}"),
        (typed("text/html; charset=cp1252", QUOTED), WEB_TEXT),
        (typed("text/html; charset=cp1252", QUOTED + WEB_END, WEB_HEAD), WEB_TEXT),
        *((typed(f"text/plain; charset={name}", "\ncafé\n".encode()), "```\ncafé\n```\n") for name in ODD),
        (typed("text/plain; charset=iso-8859-1", "\n“é” – €\n".encode("cp1252")), "```\n“é” – €\n```\n"),
        (typed("text/plain; charset=gb2312", "\n朱镕基\n".encode("gbk")), "```\n朱镕基\n```\n"),
        *((f"From: {address}\nTo: {address}\n\nbody\n".encode(),
           f"From: {address}\nTo: {address}\n\n```\nbody\n```\n")
          for address in ADDRESSES),
    ],
    ids=["mail", "within a mail", "HTML", "web archive", *map(repr, ODD), "Latin", "GB 2312",
         *map(repr, ADDRESSES)],
)  # fmt: skip
def test_a_mail(content: bytes, text: str) -> None:
    assert text_in("eml", content) == text


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
def test_the_parts_of_a_mail_are_read_once_and_in_order(message: str, lines: list[str]) -> None:
    content = f"From: a@x.org\nMIME-Version: 1.0\n{message}".encode()
    assert lines_in("eml", content) == ["From: a@x.org", *lines]


@office
def test_files_attached_to_a_mail_are_read() -> None:
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
    content = message.as_bytes()
    assert lines_in("eml", content) == [
        *("Attached.", "Attachment: a.PDF", "Of a PDF file.", "Attachment: b.docx", "Of a Word file."),
        *("Attachment: c.xlsx", "## S", "| Of a sheet |", "| --- |"),
        *(f"Attachment, not read: {name}" for name in ("d.pdf", "e.docx", "f.zip")),
    ]
    assert convert("eml", content)[1] == [
        "a.PDF: page 2 has no text (scanned? run OCR first)",
        "d.pdf (it has no text)",
        "e.docx (File is not a zip file)",
    ]


def test_the_mails_of_a_mailbox_follow_each_other(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "a.mbox")
    page = EmailMessage()
    page.set_content("<pre>open<style>", subtype="html")
    for message in (mail(), page, mail()):
        box.add(message)
    box.close()
    assert text_in("mbox", (tmp_path / "a.mbox").read_bytes()) == f"{MAIL}\n```\nopen\n```\n\n{MAIL}"
    begins = "From ada@x.org Mon Jan  1 10:00:00 2024\n\n"
    body = "One.\n\nFrom here on,\nNote: two.\n\nFrom 10:30 on,\nthree.\n"
    content = f"{begins}{body}\n{begins}Three.\n".encode()
    assert text_in("mbox", content) == f"```\n{body}\n```\n\n```\nThree.\n```\n"


# Slides


def slides(layout: int = 6, count: int = 1) -> tuple[Any, list[Any]]:
    """A presentation, and its empty slides."""
    show = pytest.importorskip("pptx").Presentation()
    return show, [show.slides.add_slide(show.slide_layouts[layout]) for _ in range(count)]


@office
def test_cells_of_a_slide_that_were_merged_are_in_each_of_them() -> None:
    show, (slide,) = slides()
    table = slide.shapes.add_table(3, 2, 0, 0, 100, 100).table
    for row, texts in enumerate([("Dose", "adult"), ("under 50", "10"), ("", "8")]):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    assert lines_in("pptx", saved(show))[2:] == ["| under 50 | 10 |", "| under 50 | 8 |"]


@office
def test_a_slide_gives_its_equations_and_the_boxes_around_them() -> None:
    show, (slide,) = slides()
    from pptx.oxml import parse_xml

    for text in ("Energy: ", "Below"):
        slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = text
    office = "http://schemas.microsoft.com/office/drawing/2010/main"
    box = slide.shapes[0]._element
    equation = parse_xml(f'<a:m xmlns:a="{office}">{math("E=m<sSup><e>c</e><sup>2</sup></sSup>")}</a:m>')
    box.find(f".//{{{DRAWING}}}p").append(equation)
    either = parse_xml(
        f'<x:AlternateContent xmlns:x="{CHOICE}"><x:Choice/><x:Fallback/></x:AlternateContent>'
    )
    box.addprevious(either)
    either[0].append(box)
    assert text_in("pptx", saved(show)) == "Energy: E=mc^(2)\n\nBelow\n\n"


def bars() -> tuple[str, Any]:
    from pptx.chart.data import CategoryChartData

    data = CategoryChartData()
    for year in ("2019", "2020"):
        data.add_category(year).add_sub_category("spring")
    data.add_series("rent", (1, 0.1 + 0.2))
    data.add_series("food", (None, 4))
    return "BAR_CLUSTERED", data


def dots() -> tuple[str, Any]:
    from pptx.chart.data import XyChartData

    data = XyChartData()
    for number in (1, 2):
        series = data.add_series(f"line {number}")
        series.add_data_point(number, 5)
        series.add_data_point(number + 1, 6)
    return "XY_SCATTER", data


BAR_TABLE = (
    "|  | 2019 | 2020 |\n| --- | --- | --- |\n|  | spring | spring |\n| rent | 1 | 0.3 |\n| food |  | 4 |"
)
DOT_TABLE = "|  | 1 | 2 |\n| --- | --- | --- |\n| line 1 | 5 | 6 |\n|  | 2 | 3 |\n| line 2 | 5 | 6 |"


@office
@pytest.mark.parametrize(
    ("make", "kind", "table"),
    [(bars, "barChart", BAR_TABLE), (bars, "bar3DChart", BAR_TABLE), (dots, "scatterChart", DOT_TABLE)],
)
def test_a_slide_gives_charts_of_all_kinds(
    make: Callable[[], tuple[str, Any]], kind: str, table: str
) -> None:
    show, (slide,) = slides()
    from pptx.enum.chart import XL_CHART_TYPE

    name, data = make()
    chart = slide.shapes.add_chart(XL_CHART_TYPE[name], 0, 0, 9, 9, data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "In thousands"
    content = saved(show)
    if kind == "bar3DChart":
        content = rewrite(content, "ppt/charts/chart", ("c:barChart", "c:bar3DChart"))
    assert text_in("pptx", content) == f"In thousands\n\n{table}\n\n"


# Books


@pytest.mark.parametrize(
    "page",
    [
        "<!DOCTYPE html><body><p>One<br>two <img src=x> &amp; &lt;three&gt; caf&eacute;<p>end</body></html>",
        '<?xml version="1.0"?><html><head><title/></head><body><p>One</p>two & &lt;three> café<p>end</html>',
        '<?xml version="1.0" encoding="cp1252"?><p>One<br/>two & &lt;three&gt; café</div></p><p>end',
    ],
)
def test_a_chapter_that_is_not_well_formed_is_read_whole(page: str) -> None:
    chapters = parts_of(epub("text", "The next."))
    chapters["c0.xhtml"] = page.encode("cp1252" if "cp1252" in page else "utf-8")
    words = text_in("epub", zipped(chapters)).split()
    assert words == ["One", "two", "&", "<three>", "café", "end", "The", "next."]


def test_a_chapter_that_a_book_does_not_hold_is_named_and_the_rest_is_read() -> None:
    parts = parts_of(epub("One.", "Two.", "Three.", "Four."))
    del parts["c1.xhtml"]
    parts["C2.XHTML"] = parts.pop("c2.xhtml")
    parts["content.opf"] = parts["content.opf"].replace(b'<item id="c3"', b'<item id="d3"')
    text, remarks = convert("epub", zipped(parts))
    assert text.split() == ["One.", "Three."]
    assert remarks == ["c1.xhtml is missing", "c3 is missing"]


def parts_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
