"""Opening anything readable: formats, places, encodings, and what is refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from operator import length_hint
from pathlib import Path

import pytest

from files import PROSE, docx, epub, office, passed, pdf, read, text_of, write_files, zipped
from memagent import DocumentError, open_document, text_document
from memagent.documents.encodings import detect_encoding, is_doubtful
from memagent.documents.jsonl import row_texts, unescape
from memagent.errors import extra_hint

# Formats


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (r'{"\u043e\u0442": "\u041e"}', '{"от": "О"}'),
        (r'["\ud83d\ude00", "\u00e9t\u00C9", "\u00a0"]', '["😀", "étÉ", "\u00a0"]'),
        (r'["\\u0041 \" \u0022 \u005c \n \u0007"]', r'["\\u0041 \" \u0022 \u005c \n \u0007"]'),
        (r'["\ud83d", "\udE00x", "\u12", 1', r'["\ud83d", "\udE00x", "\u12", 1'),
        ('["\\', '["\\'),
    ],
)
def test_letters_stand_for_their_escapes_in_json(tmp_path: Path, written: str, expected: str) -> None:
    for name in ("a.json", "a.jsonl"):
        (tmp_path / name).write_text(written, "utf-8")
        assert read(tmp_path / name).rstrip("\n") == expected
    (tmp_path / "a.txt").write_text(written, "utf-8")
    assert read(tmp_path / "a.txt") == written
    for size in (1, 2, 5, 13):
        blocks = [written[start : start + size] for start in range(0, len(written), size)]
        assert "".join(unescape(blocks)) == expected


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a", "a.csv", "a.py", "a.xml", "a.unknown"])
def test_text_is_kept_unchanged(tmp_path: Path, name: str) -> None:
    text = "# Title\n\n<b>not HTML</b> & {memory}\r\nwith\ttabs \x0c and a last line"
    (tmp_path / name).write_bytes(text.encode())
    assert read(tmp_path / name) == text


def test_html_becomes_markdown_without_scripts_and_styles(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text(
        "<!doctype html><html><head><title>The title</title><style>body { color: red }</style>"
        "<script>alert('evil')</script></head><body><!-- a comment --><h1>Heading</h1><p>a &lt; b, "
        "MAX_SIZE * 2<script type='text/template'>hidden</script></p><svg><style>.x{}</style></svg>"
        "<img src='x.png' alt='picture'><ul><li>item</li></ul></body></html>"
    )
    text = read(page)
    for dropped in ("color", "alert", "comment", "hidden", ".x{}", "x.png", "doctype"):
        assert dropped not in text
    for expected in ("The title", "# Heading", "a < b, MAX_SIZE * 2", "* item"):
        assert expected in text


@pytest.mark.filterwarnings("error")
def test_xhtml_and_a_page_that_looks_like_an_address(tmp_path: Path) -> None:
    page = tmp_path / "a.xhtml"
    page.write_text('<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><p>text</p></html>')
    assert read(page).strip() == "text"
    page.write_text("http://example.org/a.html")
    assert read(page).strip() == "http://example.org/a.html"


@office
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.docx", docx("The key is 4711.", "A second paragraph.")),
        ("a.epub", epub("The key is 4711.", "", "A third chapter.")),
        ("a.pdf", pdf("The key is 4711.")),
        ("a PDF by its first bytes", pdf("The key is 4711.")),
        ("A.DOCX", docx("The key is 4711.")),
        ("with macros.docm", docx("The key is 4711.")),
        ("-odd näme\n.docx", docx("The key is 4711.")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_office_formats_give_their_text(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    document = open_document(tmp_path / name)
    text = text_of(document)
    assert "The key is 4711." in text
    assert "\x0c" not in text
    assert "\n\n\n" not in text
    assert document.text_bytes is None


LOCKED = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\n"
    b"trailer<</Root 1 0 R/ID[<00><00>]/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<" + b"11" * 32 + b">/U<"
    + b"22" * 32 + b">>>>>\n%%EOF"
)  # fmt: skip


@office
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", docx("text")[:200], r"it is damaged, or not in DOCX format \(File is not a zip file\)"),
        ("a.docx", zipped({"nothing": "of use"}), "Could not find main document part"),
        ("a.docx", b"only text", "not a zip file"),
        ("a.docx", pdf("text")[:200], "it is damaged, or not in PDF format"),
        ("a.epub", zipped({"mimetype": "application/epub+zip"}), "META-INF"),
        ("a.pdf", b"%PDF-1.7\n" + bytes(range(256)), "it is damaged, or not in PDF format"),
        ("a.pdf", b"RIFF\x24\x00\x00\x00WAVEfmt ", "it is damaged, or not in PDF format"),
        ("a.pdf", LOCKED, "it is protected by a password: save it without one"),
        ("a.odt", zipped({"content.xml": "<a><b></a>"}), "not in ODT format .*tag mismatch"),
        ("a.xlsx", zipped({"nothing": "of use"}), r"not in XLSX format \(There is no item"),
        ("a.pptx", zipped({"nothing": "of use"}), r"not in PPTX format \(no member"),
    ],
    ids=[
        "cut short",
        "another archive",
        "text",
        "half a PDF",
        "no book",
        "no pages",
        "a sound",
        "a password",
        *["xml", "sheet", "slides"],
    ],
)
def test_broken_office_files_are_errors(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """Neither their bytes nor what else they might be is read as the document."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError, match=f"{name} cannot be converted: .*{message}"):
        read(tmp_path / name)


@office
def test_a_flaw_in_a_pdf_is_not_shouted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("The key is 4711.").replace(b"0000000009 ", b"00000000x9 "))
    assert "4711" in read(tmp_path / "a.pdf")
    assert capfd.readouterr() == ("", "")


@office
def test_a_broken_file_in_a_directory_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.docx").write_bytes(b"broken")
    (tmp_path / "c.html").write_text("<i>" * 10_000)
    (tmp_path / "d.txt").write_text("D")
    document = open_document(tmp_path)
    for _ in range(2):
        assert text_of(document) == "AD"
        broken, empty = passed(document).skipped
        assert "b.docx cannot be converted" in broken
        assert "c.html has no text" in empty
    with pytest.raises(DocumentError, match=r"b\.docx cannot be converted"):
        text_of(open_document(tmp_path / "*"))
    for name in ("a.txt", "d.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(DocumentError, match=r"b\.docx cannot be converted"):
        text_of(open_document(tmp_path))


def test_what_a_library_says_is_cut_to_one_line(tmp_path: Path) -> None:
    (tmp_path / "b.epub").write_bytes(
        zipped({"META-INF/container.xml": f"<c><rootfile full-path='{'!' * 1000}&#10;second line'/></c>"})
    )
    with pytest.raises(DocumentError, match=r"b\.epub cannot be converted: it is damaged.*!+") as refused:
        read(tmp_path / "b.epub")
    assert len(str(refused.value)) < len(str(tmp_path)) + 300


def test_office_without_the_converter_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(docx("text"))
    code = (
        "import sys; sys.modules['mammoth'] = None\n"
        "from memagent import open_document, DocumentError\n"
        "try: open_document('a.docx')\nexcept DocumentError as error: print(error)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert process.stdout == f"a.docx needs a converter: {extra_hint('formats')}\n"


def test_jsonl_gives_the_text_of_each_row(tmp_path: Path) -> None:
    rows = [
        json.dumps({"id": 1, "text": "from text\nin two lines"}),
        json.dumps({"content": "from content"}),
        json.dumps({"text": "", "content": "beside an empty text"}),
        json.dumps("a bare string"),
        json.dumps({"other": 1}),
        "not JSON {",
        "",
        json.dumps({"text": 3}),
        "[" * 100_000,
        json.dumps({"text": "the last"}),
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\r\n".join(rows))
    expected = [
        *("from text\nin two lines", "from content", "beside an empty text", "a bare string"),
        *(rows[4], rows[5], rows[7], rows[8], "the last"),
    ]
    assert read(path) == "".join(f"{row}\n\n" for row in expected)


def test_a_jsonl_row_without_end_is_read_unchanged_and_not_held() -> None:
    block = "x" * 2**20
    blocks = iter(['{"text": "', *[block] * 64, '"}\n{"text": "next"}\n'])
    rows = row_texts(blocks)
    read = len(next(rows))
    assert length_hint(blocks) == 33, "what follows was not asked for yet"
    *others, last = rows
    assert read + len("".join(others)) == len('{"text": "') + 64 * 2**20 + len('"}\n\n')
    assert last == "next\n\n" and max(map(len, others)) == 2**20


def test_jsonl_surrogates_become_the_replacement_character(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "high \\ud83d, low \\ude00, both \\ud83d\\ude00"}\n')
    assert read(path) == "high \ufffd, low \ufffd, both 😀\n\n"


def test_text_of_a_string() -> None:
    document = text_document("naïve \r\n text \udc80", name="note")
    assert text_of(document) == "naïve \r\n text \ufffd"
    assert [source.name for source in document.sources] == ["note"]
    assert text_of(document) == text_of(document)


# Places


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {
        "b.txt": "B",
        "a.txt": "A",
        "sub/c.txt": "C",
        "sub/a.md": "D",
        "alpha/z.txt": "Z",
        ".hidden": "no",
        ".git/config": "no",
        "sub/.cache/x.txt": "no",
    }
    write_files(tmp_path, texts)
    return tmp_path


def test_a_directory_is_its_files_sorted_without_hidden_ones(folder: Path) -> None:
    document = open_document(folder)
    assert text_of(document) == "ABZDC"
    assert document.sources[0].name == str(folder / "a.txt")
    assert document.text_bytes == 5


def test_binaries_in_a_directory_are_left_out_and_named(folder: Path) -> None:
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(200)))
    (folder / "broken").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe")
    document = open_document(folder)
    assert text_of(document) == "ABZDC"
    skipped = " ".join(document.skipped)
    assert len(document.skipped) == 3
    assert "image.png is a binary file" in skipped
    assert "broken cannot be read" in skipped
    assert "pipe is not a regular file" in skipped


def test_a_glob_is_its_matches_sorted(folder: Path) -> None:
    assert text_of(open_document(folder / "*.txt")) == "AB"
    assert text_of(open_document(folder / "**" / "*.txt")) == "AZBC"
    with pytest.raises(DocumentError, match=r"no file matches .*\*\.pdf"):
        open_document(folder / "*.pdf")


@pytest.mark.parametrize("pattern", ["", "*", "**/*"])
def test_numbers_in_names_are_sorted_as_numbers(tmp_path: Path, pattern: str) -> None:
    names = ["contract2.txt", "contract010.txt", "contract10.txt", "part 2/1.txt", "part 10/1.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    document = open_document(tmp_path / pattern)
    source_names = [source.name.removeprefix(f"{tmp_path}/") for source in document.sources]
    assert source_names == names[: 3 if pattern == "*" else 5]  # that pattern does not go into folders


def test_a_name_that_looks_like_a_glob_is_a_name_first(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("yes")
    (tmp_path / "a1.txt").write_text("no")
    assert read(tmp_path / "a[1].txt") == "yes"


def test_several_paths_are_one_document_in_order_each_file_once(folder: Path) -> None:
    (folder / "link.txt").symlink_to(folder / "b.txt")
    (folder / "hard name").mkdir()
    document = open_document(
        folder / "sub" / "c.txt",
        folder / "b.txt",
        folder / "link.txt",
        folder / "sub",
        folder / "sub/../b.txt",
    )
    assert text_of(document) == "CBD"
    assert open_document(folder / ".hidden").sources[0].size_bytes == 2


def run_on_stdin(arguments: str, stdin: bytes) -> str:
    code = (
        "import sys\nfrom memagent import open_document\n"
        f"document = open_document({arguments})\n"
        "print(*[source.name for source in document.sources])\n"
        "sys.stdout.write(''.join(block.text for block in document.blocks()))"
    )
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", code], input=stdin, capture_output=True, check=True, env=environment
    )
    return done.stdout.decode()


def test_standard_input(folder: Path) -> None:
    path = str(folder / "a.txt")
    assert run_on_stdin("'-'", "naïve".encode()) == "stdin\nnaïve"
    assert run_on_stdin(f"'-', {path!r}, '-'", b"from stdin ") == f"stdin {path}\nfrom stdin A"


def test_a_closed_standard_input_is_reported() -> None:
    code = (
        "import memagent\ntry: memagent.open_document('-')\n"
        "except memagent.DocumentError as error: print(error)"
    )
    closed = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, code]
    stdout = subprocess.run(closed, capture_output=True, text=True, check=True).stdout
    assert stdout == "stdin is closed: pipe text into it, or name a file\n"


@office
def test_a_pdf_on_standard_input() -> None:
    assert "4711" in run_on_stdin("'-'", pdf("The key is 4711."))


def test_the_fingerprint_is_of_the_bytes_in_order(folder: Path) -> None:
    one, two = folder / "a.txt", folder / "b.txt"
    prints = {
        open_document(*paths).fingerprint for paths in [(one,), (two,), (one, two), (two, one), (folder,)]
    }
    assert len(prints) == 5
    assert open_document(one, two).fingerprint == open_document(folder / "*.txt").fingerprint


def test_blocks_of_a_large_file_stay_small(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_bytes("naïve".encode() * 500_000)
    blocks = [block.text for block in open_document(path).blocks()]
    assert "".join(blocks) == "naïve" * 500_000
    assert max(map(len, blocks)) <= 256 * 1024


# What is refused, and how it is said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.txt", "missing.txt cannot be read: No such file or directory"),
        ("empty folder", "no readable file in empty folder"),
        ("pipe", "pipe is not a regular file: pipe it in, and name it -"),
        ("binary.dat", "binary.dat is a binary file, not text"),
        ("folder of binaries", "no readable file in folder of binaries; left out: .*x.dat is a binary"),
        ("loop", "loop cannot be read: Too many levels of symbolic links"),
        ("n" * 5000, "n{5000} cannot be read: File name too long"),
        ("a\0b", r"'a\\x00b' is not a path"),
        ("", "'' is not a path: name a file"),
        ("two\nlines", r"two\\nlines cannot be read"),
        ("not \udcff UTF-8", r"not \\udcff UTF-8 cannot be read"),
        ("a.txt/b", "b cannot be read: Not a directory"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_refused_with_the_name_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("text")
    Path("empty folder").mkdir()
    Path("folder of binaries").mkdir()
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    for binary in ("binary.dat", "folder of binaries/x.dat"):
        Path(binary).write_bytes(bytes(range(256)) * 10)
    with pytest.raises(DocumentError, match=message) as refused:
        open_document(name)
    str(refused.value).encode()
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("text")
    (tmp_path / "secret.txt").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(DocumentError, match=r"secret\.txt cannot be read: Permission denied"):
        open_document(tmp_path / "secret.txt")
    with pytest.raises(DocumentError, match="cannot be read: Permission denied"):
        open_document(tmp_path / "closed" / "a.txt")
    (tmp_path / "a.txt").write_text("A")
    document = open_document(tmp_path)
    assert text_of(document) == "A"
    assert len(document.skipped) == 2


def test_a_file_that_vanishes_is_an_error_when_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    document = open_document(tmp_path / "a.txt")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DocumentError, match=r"a\.txt cannot be read: No such file"):
        text_of(document)
    with pytest.raises(DocumentError, match=r"a\.txt cannot be read: No such file"):
        _ = document.fingerprint


def test_no_path_at_all() -> None:
    with pytest.raises(DocumentError, match="no readable file in the arguments"):
        open_document()


# Encodings


@pytest.mark.parametrize("repeats", [1, 20, 800], ids=["short", "medium", "longer than the sample"])
@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        *(
            (language, encoding)
            for language in PROSE
            for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
        ),
        *((language, "cp1252") for language in ("en", "fr", "pt")),
        *((language, "mac_roman") for language in ("en", "fr", "pt")),
        *(("fr", "cp437"), ("fr", "cp850"), ("pt", "cp850")),
        *((language, encoding) for language in ("cs", "pl") for encoding in ("cp1250", "iso8859_2")),
        *(("ru", encoding) for encoding in ("koi8-r", "cp1251", "cp866")),
        ("el", "cp1253"),
        *(("zh", encoding) for encoding in ("gb18030", "gbk")),
        *(("ja", encoding) for encoding in ("shift_jis", "euc_jp", "iso2022_jp")),
        *(("ko", encoding) for encoding in ("cp949", "iso2022_kr")),
    ],
)
def test_encodings(tmp_path: Path, language: str, encoding: str, repeats: int) -> None:
    text = PROSE[language] * repeats
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    document = open_document(path)
    assert text_of(document) == text
    assert passed(document).replaced == {str(path): 0}


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("encoding", ["gb18030", "utf-8", "shift_jis"])
def test_a_sample_that_ends_inside_a_character(encoding: str, cut: int) -> None:
    text = PROSE["ja"].replace("\n", "") * 500
    detected_encoding = detect_encoding(text.encode(encoding)[: 60_000 - cut], whole=False)
    assert detected_encoding is not None
    assert text.encode(encoding).decode(detected_encoding) == text


def test_bad_bytes_are_replaced_and_counted_each_time_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(("é" * 1000).encode() + b"\xff\xfe" + ("é" * 1000).encode() + b"\xe2\x82")
    document = open_document(path)
    for _ in range(2):
        assert text_of(document) == "é" * 1000 + "\ufffd\ufffd" + "é" * 1000 + "\ufffd"
        assert passed(document).replaced == {str(path): 3}


def test_bad_bytes_behind_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain\n" * 100_000 + b"\xff" + b"plain\n")
    document = open_document(path)
    assert text_of(document).endswith("plain\n\ufffdplain\n")
    assert passed(document).replaced == {str(path): 1}


@pytest.mark.parametrize(
    "text", ["a\r\nb\rc\nd\u2028e\x85f", "\ufeff", "\n\n a", " b\n", "a\x1b[1mb", "n\bn" * 50]
)
def test_line_ends_and_the_like_are_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode("utf-8-sig"))
    assert read(tmp_path / "a.txt") == text


def test_an_encoding_with_escape_sequences_is_no_guess() -> None:
    text = PROSE["ja"].encode("iso2022_jp")
    assert not is_doubtful(text, detect_encoding(text) or "")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("language", ["en", "ru"])
def test_utf_16_without_a_mark_is_refused_with_advice(tmp_path: Path, language: str, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes(PROSE[language].encode(encoding))
    with pytest.raises(DocumentError, match="not text; if it is UTF-16, save it as UTF-8"):
        open_document(tmp_path / "a.txt")


@pytest.mark.parametrize("language", PROSE)
def test_a_stray_zero_byte_is_text(language: str) -> None:
    text = (PROSE[language] * 30).encode()
    middle = text.index(b"\n") + 1
    assert detect_encoding(text[:middle] + b"\x00" + text[middle:]) == "utf-8"


def test_a_few_controls_are_text_and_many_are_not() -> None:
    rng = random.Random(0)
    text = b"Nobody came to the house near the river. " * 50
    assert detect_encoding(text + b"\x01\x02") == "utf-8"
    assert detect_encoding(text + b"\x01\x02" * 200) is None
    assert detect_encoding(text + b"\x00\x00\x01") is None
    assert detect_encoding(b"\x00".join([b"some/file.txt", "größe.txt".encode(), b"x"] * 100)) is None
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 9))) for _ in range(500)]
    assert detect_encoding(b"\x00".join(words)) is None
    genes = bytes(rng.choices(b"ACGT", k=3000))
    assert detect_encoding(genes + b"\x00" + genes) == "utf-8"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        (
            "cp1252",
            "It was signed – on Monday. “The rent” is £500; it’s payable by the fifth. Deposit: £1,000.",
        ),
        (
            "cp1252",
            "O contrato foi assinado em São Paulo entre o locador e o locatário. O aluguel é de cinco mil "
            "reais por mês, até o quinto dia útil. Não é permitida a sublocação sem autorização.",
        ),
        ("cp1250", "A szerződés megkötésére Budapesten került sor az eladó és a vevő között, őszi időben."),
        (
            "cp1254",
            "Sözleşme İstanbul'da kiraya veren ile kiracı arasında yapılmıştır. Kira bedeli aylık "
            "beş bin lira olup her ayın beşinci günü ödenecektir.",
        ),
    ],
)
def test_an_encoding_is_not_taken_for_that_of_a_neighbour(encoding: str, text: str) -> None:
    for repeats in (1, 20):
        content = text.encode(encoding) * repeats
        assert content.decode(detect_encoding(content) or "ascii") == text * repeats


@pytest.mark.parametrize("declared", ["base64", "rot13", "idna", "utf-16", "undefined", "nonsense"])
def test_a_page_may_declare_nonsense(declared: str) -> None:
    page = f'<meta charset="{declared}"><p>Привет, как дела? Москва – столица.'
    assert page.encode("cp1251").decode(detect_encoding(page.encode("cp1251")) or "ascii") == page


def test_a_short_page_is_read_as_it_declares(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    for encoding, text in (("iso-8859-1", "café naïve"), ("Shift_JIS", "日本語"), ("gb2312", "中文测试")):
        head = f'<meta http-equiv="Content-Type" content="text/html; charset={encoding}">'
        page.write_bytes((head + text).encode(encoding))
        assert text in read(page)
        assert not open_document(page).sources[0].doubtful


def test_a_declared_encoding_decides_between_those_that_fit(tmp_path: Path) -> None:
    text = "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Árvíztűrő tükörfúrógép."
    page = tmp_path / "a.html"
    for encoding in ("windows-1250", "iso-8859-2"):
        page.write_bytes(f'<meta charset="{encoding}"><p>{text}</p>'.encode(encoding))
        assert text in read(page)


def test_what_is_no_text() -> None:
    rng = random.Random(0)
    for size in (1000, 5000, 65536):
        assert detect_encoding(rng.randbytes(size)) is None
    assert detect_encoding(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00\x01" + bytes(200)) is None
    assert detect_encoding(zipped({"a.txt": "text"})) is None
    samples = b"".join(value.to_bytes(2, "little") for value in range(0, 60000, 7))
    assert detect_encoding(samples) is None
