"""Converting files in a process of their own: its limits, the cache, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from files import docx, epub, notebook, office, passed, pdf, read, sheet, text_of, zipped
from memagent import Document, DocumentError, open_document
from memagent.documents.chunking import split
from memagent.documents.conversion import ConversionLimits, cache_folder, convert
from memagent.documents.files import BLOCK_BYTES, look_at
from waiting import find_converters, is_converter, wait_for

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


# From the process to the chunks


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
    ("empty", "pages"),
    [((2,), "page 2 has"), ((2, 3), "pages 2-3 have"), ((1, 3, 4, 6), "pages 1, 3-4, 6 have")],
)
def test_pages_without_text_are_named(tmp_path: Path, empty: tuple[int, ...], pages: str) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*("" if page in empty else "Text." for page in range(1, 7))))
    for _ in range(2):  # converted, and from the cache
        assert passed(open_document(path)).skipped == (f"{path}: {pages} no text (scanned? run OCR first)",)


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


@pytest.mark.parametrize("content", [b"[", b"[]", b'{"cells": 3}'])
def test_a_file_that_is_not_a_notebook_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.ipynb").write_bytes(content)
    with pytest.raises(DocumentError, match=r"a\.ipynb cannot be converted: it is damaged, or not in IPYNB"):
        read(tmp_path / "a.ipynb")


@office
def test_an_rtf_file_by_name_and_by_its_first_bytes(tmp_path: Path) -> None:
    for name in ("a.rtf", "a.doc"):
        (tmp_path / name).write_bytes(rb"{\rtf1\ansi The \b key\b0  is 4711.\par Caf\'e9 \u9731? end.}")
        assert read(tmp_path / name) == "The key is 4711.\nCafé ☃ end."


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


def test_a_locked_book_says_so(tmp_path: Path) -> None:
    locked = '<encryption><CipherData><CipherReference URI="c0.xhtml"/></CipherData></encryption>'
    with zipfile.ZipFile(BytesIO(epub("text"))) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    (tmp_path / "a.epub").write_bytes(zipped(parts | {"META-INF/encryption.xml": locked}))
    with pytest.raises(DocumentError, match="it is protected by a password"):
        read(tmp_path / "a.epub")


# Limits


def refused(path: Path, target: Path, limits: ConversionLimits) -> str:
    with pytest.raises(DocumentError, match="cannot be converted") as error:
        convert(look_at(path, path.name, named=True), target, threading.Event(), limits)
    assert not target.exists()
    return str(error.value).partition("cannot be converted: ")[2]


@pytest.mark.slow
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


@pytest.mark.slow
def test_ten_readers_convert_once(tmp_path: Path) -> None:
    """Readers at the same time wait for one conversion; the next process finds it."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(*(f"Page {number}." for number in range(300))))
    for conversions in (b"1", b"0"):
        done = subprocess.run([sys.executable, "-c", TEN_READERS, path], capture_output=True, check=True)
        assert done.stdout.split() == [conversions, b"10", b"1", b"True"]
    (cache_file,) = cache_folder().iterdir()
    assert cache_file.parent.stat().st_mode & 0o077 == 0
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
    first_pass = open_document(tmp_path).blocks()
    blocks, answers = iter(first_pass), [first_pass.may_convert()]
    for _ in range(3):
        next(blocks)
        answers.append(first_pass.may_convert())
    assert answers == [True, True, True, False]
    again = open_document(tmp_path).blocks()
    blocks, answers = iter(again), [again.may_convert()]
    next(blocks), next(blocks)
    for cache_file in cache_folder().iterdir():
        cache_file.unlink()
    assert [*answers, again.may_convert()] == [False, True]


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


def long_notebook(folder: Path) -> Document:
    """A document whose text takes more than one block of the cache."""
    text = "".join(f"Line {number} of some length, again.\n" for number in range(8000))
    assert len(text) > BLOCK_BYTES
    (folder / "a.ipynb").write_bytes(notebook({"cell_type": "markdown", "source": text}))
    return open_document(folder / "a.ipynb")


def test_a_text_that_is_dropped_from_the_cache_while_it_is_read(tmp_path: Path) -> None:
    document = long_notebook(tmp_path)
    whole = text_of(document)
    blocks = iter(document.blocks())
    text = next(blocks).text
    for cache_file in cache_folder().iterdir():
        cache_file.unlink()
    assert text + "".join(block.text for block in blocks) == whole


def test_the_cache_is_bounded_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    crashed = cache_folder() / ".left"
    crashed.mkdir()
    os.utime(crashed, (0, 0))
    for number in range(4):
        path = tmp_path / f"{number}.ipynb"
        path.write_bytes(notebook({"cell_type": "markdown", "source": str(number) * 98}))
        text = cache_folder() / str(number)
        convert(
            look_at(path, path.name, named=True), text, threading.Event(), ConversionLimits(cache_bytes=300)
        )
        os.utime(text, (1000 + number, 1000 + number))
        if number == 1:
            os.utime(cache_folder() / "0", (1500, 1500))
    assert sorted(text.name for text in cache_folder().iterdir()) == ["0", "3"]


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
    (cache_file,) = cache_folder().iterdir()
    cache_file.write_bytes(damaged(sound := cache_file.read_bytes()))
    assert read(path) == whole
    assert cache_file.read_bytes() == sound


def test_a_text_in_the_cache_that_is_damaged_while_it_is_read(tmp_path: Path) -> None:
    document = long_notebook(tmp_path)
    whole = text_of(document)
    blocks = iter(document.blocks())
    text = next(blocks).text
    (cache_file,) = cache_folder().iterdir()
    cache_file.write_bytes(cache_file.read_bytes()[:-100].replace(b"again", b"never"))
    assert text + "".join(block.text for block in blocks) == whole


@pytest.mark.slow
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


@pytest.mark.slow
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
    blocks = open_document(path).blocks()

    def close() -> None:
        wait_for(lambda: find_converters(os.getpid()))
        blocks.close()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(DocumentError, match="the read was stopped"):
        next(iter(blocks))
    closing.join()


@office
def test_an_interrupt_ends_a_conversion(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(sheet(b'<row><c t="inlineStr"><is><t>x</t></is></c></row>' * 1_000_000))
    code = "import sys\nfrom memagent import open_document\nnext(iter(open_document(sys.argv[1]).blocks()))"
    with subprocess.Popen([sys.executable, "-c", code, path], stderr=subprocess.PIPE) as process:
        wait_for(lambda: find_converters(process.pid), process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    assert b"KeyboardInterrupt" in stderr
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
