"""Files of many formats, made on the spot, and what is read of them."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from memagent import Document, open_document
from memagent.documents.opening import Pass

office = pytest.mark.skipif(importlib.util.find_spec("mammoth") is None, reason="needs memagent[formats]")

PROSE = {
    "en": "It was a naïve idea, she said, “and yet the café stayed open until midnight” — the old man’s "
    "résumé lay on the table. Nobody came to the house near the river until the following spring.\n",
    "fr": "Le café était fermé à Noël ; l'hôtelier, déçu, répondit que les clés étaient perdues près du "
    "théâtre. Où êtes-vous allés ? Tous les êtres humains naissent libres et égaux en dignité.\n",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e "
    "de consciência, devem agir uns para com os outros em espírito de fraternidade.\n",
    "cs": "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv. Jsou nadáni rozumem a "
    "svědomím a mají spolu jednat v duchu bratrství. Příliš žluťoučký kůň úpěl ďábelské ódy.\n",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są obdarzeni "
    "rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa. Zażółć gęślą jaźń.\n",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и "
    "совестью и должны поступать в отношении друг друга в духе братства.\n",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι "
    "προικισμένοι με λογική και συνείδηση.\n",
    "zh": "我们在一个小村庄里住了三年，那里的人们每天早上都去田里工作，晚上回来一起吃饭、聊天。后来村里修了"
    "一条新路，年轻人都去了城市。\n",
    "ja": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗いじめじめした所で"
    "ニャーニャー泣いていた事だけは記憶している。\n",
    "ko": "나는 그날 아침 일찍 집을 나섰다. 거리에는 아무도 없었고 바람만 불고 있었다.\n",
}


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts under their names, in folders that are made where they are missing."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def text_of(document: Document) -> str:
    return "".join(block.text for block in document.blocks())


def passed(document: Document) -> Pass:
    """A pass that has been read to its end."""
    blocks = document.blocks()
    for _ in blocks:
        pass
    return blocks


def read(path: Path) -> str:
    return text_of(open_document(path))


def zipped(parts: Mapping[str, str | bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def rewrite(content: bytes, name: str, *changes: tuple[str, str]) -> bytes:
    """A zip file in which the text of the parts whose names begin so is replaced."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    for part in parts:
        for before, after in changes if part.startswith(name) else ():
            assert before.encode() in parts[part]
            parts[part] = parts[part].replace(before.encode(), after.encode())
    return zipped(parts)


def docx(*paragraphs: str) -> bytes:
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    package = "http://schemas.openxmlformats.org/package/2006"
    part = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override '
            f'PartName="/word/document.xml" ContentType="{part}"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{relation}" Target="word/document.xml"/></Relationships>',
            "word/document.xml": f'<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>',
        }
    )


def sheet(rows: bytes) -> bytes:
    """A workbook of one sheet, with its rows as XML."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    spread = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    part = f'ContentType="{spread}.worksheet+xml"'
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{spread}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" {part}/></Types>'.encode(),
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>'.encode(),
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets><sheet name="S" sheetId="1" '
        'r:id="r1"/></sheets></workbook>'.encode(),
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>'.encode(),
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>'.encode()
        + rows
        + b"</sheetData></worksheet>",
    }
    return zipped(parts, zipfile.ZIP_DEFLATED)


def epub(*chapters: str) -> bytes:
    items = "".join(
        f'<item id="c{number}" href="c{number}.xhtml" media-type="application/xhtml+xml"/>'
        for number in range(len(chapters))
    )
    spine = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
    container = (
        '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="content.opf" media-type="application/oebps-package+xml"/></rootfiles>'
        "</container>"
    )
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A book</dc:title></metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    pages = {
        f"c{number}.xhtml": text
        and f'<html xmlns="http://www.w3.org/1999/xhtml"><body><p>{text}</p></body></html>'
        for number, text in enumerate(chapters)
    }
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": container,
            "content.opf": package,
            **pages,
        }
    )


def pdf(*pages: str) -> bytes:
    """A PDF of pages with one line each; an empty one has no text."""
    return pdf_of_pages(*(f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else "" for text in pages))


def pdf_of_pages(*streams: str) -> bytes:
    """A PDF of pages with these contents."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(streams)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(streams)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, stream in enumerate(streams):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    return pdf_of(objects)


def pdf_of(objects: list[str]) -> bytes:
    """A PDF of these objects, the first of which is the catalog."""
    body, table = "%PDF-1.7\n", "0000000000 65535 f \n"
    for number, content in enumerate(objects, 1):
        table += f"{len(body):010} 00000 n \n"
        body += f"{number} 0 obj\n{content}\nendobj\n"
    size = len(objects) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    return f"{body}xref\n0 {size}\n{table}{trailer}".encode("latin-1")


def notebook(*cells: dict[str, Any]) -> bytes:
    return json.dumps({"nbformat": 4, "cells": cells}).encode()
