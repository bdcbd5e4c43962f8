"""Files while they are read: changes, packed ones, empty ones, descriptors; and what a URL is told."""

from __future__ import annotations

import gzip
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from files import PROSE, docx, passed, pdf, read, text_of
from memagent import DocumentError, open_document, text_document
from memagent.documents.files import FileState, has_changed, look_at, take_fingerprint
from memagent.documents.paths import escape_path, unescape_path

BLOCK = 256 * 1024


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A text of six blocks."""
    path = tmp_path / "large.txt"
    path.write_text("".join(f"Line {number} of a text.\n" for number in range(70_000)))
    return path


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("会議\u3000議事録.txt", "会議\u3000議事録.txt"),
        ("9.41\u202fAM\xa0PM", "9.41\u202fAM\xa0PM"),
        ("a\nb\x1b\u202e\u2028\udcff", r"a\nb\x1b\u202e\u2028\udcff"),
        (r"a\nb\x1b\c", r"a\\nb\\x1b\c"),
        ("\U000e0001\U0010fffe", r"\U000e0001\U0010fffe"),
        ("\\\u200d\\", "\\\\\\u200d\\"),
    ],
    ids=ascii,
)
def test_a_path_is_shown_with_its_spaces_and_found_again(path: str, shown: str) -> None:
    assert escape_path(path) == shown
    assert unescape_path(shown) == path
    assert unescape_path(r"\xyz \U00110000") == r"\xyz \U00110000", "not made by it"


# A document that changes


@pytest.mark.parametrize("known", [True, False], ids=["fingerprint taken", "no fingerprint"])
def test_a_change_is_found_before_it_is_read(large: Path, known: bool) -> None:
    document = open_document(large)
    if known:
        assert document.fingerprint
    blocks = iter(document.blocks())
    before = next(blocks).text
    with large.open("r+b") as file:
        file.seek(4 * BLOCK)
        file.write(b"Changed")
    with pytest.raises(DocumentError, match=r"large\.txt changed while it was read: start again"):
        before += "".join(block.text for block in blocks)
    assert "Changed" not in before


def test_a_change_that_leaves_size_and_time_alone(large: Path) -> None:
    document = open_document(large)
    assert document.fingerprint
    times = large.stat().st_atime_ns, large.stat().st_mtime_ns
    with large.open("r+b") as file:
        file.write(b"X")
    os.utime(large, ns=times)
    with pytest.raises(DocumentError, match="changed while it was read"):
        text_of(document)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("replacement", ["longer text", "pipe", "zeros", "loop", "folder", "nothing"])
def test_what_takes_the_place_of_a_file_is_not_read_for_it(
    replacement: str, known: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The red key hangs in the hall.\n" * 20)
    document = open_document(path)
    if known:
        assert document.fingerprint
    path.unlink()
    if replacement == "longer text":
        path.write_text("The blue key is lost.\n" * 40)
    elif replacement == "pipe":
        os.mkfifo(path)  # nobody writes to it: whoever waits for that waits for ever
    elif replacement == "folder":
        path.mkdir()
    elif replacement != "nothing":
        path.symlink_to("/dev/zero" if replacement == "zeros" else path)
    with pytest.raises(DocumentError, match=r"a\.txt (changed while it was read|cannot be read)"):
        text_of(document)


def test_what_is_added_while_it_is_read_is_left_out(large: Path) -> None:
    document = open_document(large)
    fingerprint, whole = document.fingerprint, large.read_text()
    blocks = iter(document.blocks())
    text = next(blocks).text
    with large.open("a") as file:
        file.write("more" * 100_000)
    assert text + "".join(block.text for block in blocks) == whole
    assert document.fingerprint == fingerprint
    assert open_document(large).fingerprint != fingerprint


def test_a_file_that_is_cut_off_while_it_is_read(large: Path) -> None:
    blocks = iter(open_document(large).blocks())
    next(blocks)
    os.truncate(large, BLOCK + 10)
    with pytest.raises(DocumentError, match="changed while it was read"):
        list(blocks)
    document = open_document(large)
    os.truncate(large, 10)
    with pytest.raises(DocumentError, match="changed while it was read"):
        _ = document.fingerprint


def test_a_file_that_is_only_touched(large: Path) -> None:
    document = open_document(large)
    blocks = iter(document.blocks())
    text = next(blocks).text
    large.touch()
    assert text + "".join(block.text for block in blocks) == large.read_text()


def test_the_state_of_a_file_shows_what_size_and_time_hide(large: Path) -> None:
    before, times = FileState.of(large), (large.stat().st_atime_ns, large.stat().st_mtime_ns)
    assert FileState.of(large) == before
    for _ in range(10_000):  # until the clock of this file system has ticked
        with large.open("r+b") as file:
            file.write(b"X")
        os.utime(large, ns=times)
        if (now := FileState.of(large)) != before:
            break
    assert now != before
    assert (now.size, now.mtime_ns) == (before.size, before.mtime_ns)


def test_no_times_are_kept_of_a_file_that_was_just_written(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = FileState.of(large)
    assert state.to_keep() == FileState(state.size, 0, 0)
    monkeypatch.setattr("memagent.documents.files._COARSE_NS", 0)
    assert state.to_keep() == state


def test_the_bytes_of_a_file_are_compared_only_if_its_state_differs(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memagent.documents.files._COARSE_NS", 0)
    source = look_at(large, "large.txt", named=True)
    fingerprint = take_fingerprint(source)
    assert not has_changed(source, fingerprint._replace(sha256=b"of other bytes"))
    os.utime(large, (1, 1))
    assert not has_changed(source, fingerprint)
    assert has_changed(source, fingerprint._replace(sha256=b"of other bytes"))
    with large.open("ab") as file:
        file.write(b"more")
    assert has_changed(source, fingerprint)


def test_passes_know_nothing_of_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xff\xfe " * 100 + "é".encode() * 1000)
    (tmp_path / "b.docx").write_bytes(b"broken")
    document = open_document(tmp_path)
    passes = [passed(document) for _ in range(2)]
    blocks = document.blocks()
    iterator = iter(blocks)
    next(iterator)
    for one in passes:
        assert one.replaced == {str(tmp_path / "a.txt"): 200}
        assert len(one.skipped) == 1
    assert blocks.skipped == ()
    assert document.skipped == ()


def test_the_fingerprint_is_taken_once_by_many_threads(large: Path) -> None:
    document = open_document(large)
    fingerprints: list[str] = []
    threads = [threading.Thread(target=lambda: fingerprints.append(document.fingerprint)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fingerprints == [document.fingerprint] * 8
    large.unlink()
    assert document.fingerprint == fingerprints[0]


# What has no text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "empty.txt is empty"),
        ("blank.txt", b" \n\t\r\n", "blank.txt has no text"),
        ("mark.txt", b"\xef\xbb\xbf", "mark.txt has no text"),
        ("blank.txt", b" " * 5 * BLOCK, "blank.txt has no text"),
        ("none.jsonl", b"\n\n", "none.jsonl has no text"),
        ("none.html", b"<p><img src=x><script>x</script>", "none.html has no text"),
        ("none.docx", docx(""), "none.docx has no text"),
        ("none.txt.gz", gzip.compress(b""), "none.txt.gz has no text"),
    ],
)
def test_a_file_without_text_is_an_error_or_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / "sub" / name
    path.parent.mkdir()
    path.write_bytes(content)
    for target in (path, path.parent):
        with pytest.raises(DocumentError, match=message):
            read(target)
    (path.parent / "z.txt").write_text("text")
    document = open_document(path.parent)
    assert text_of(document) == "text"
    assert message in " ".join((*document.skipped, *passed(document).skipped))


def test_however_long_a_blank_file_is_it_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_bytes(b" " * 70 * BLOCK)
    with pytest.raises(DocumentError, match=r"blank\.txt has no text"):
        read(tmp_path / "blank.txt")


def test_white_space_around_text_is_kept(tmp_path: Path) -> None:
    text = " \n" * BLOCK + "text" + "\n " * BLOCK
    (tmp_path / "a.txt").write_text(text)
    assert read(tmp_path / "a.txt") == text


def test_text_in_memory_may_be_empty() -> None:
    assert text_of(text_document("")) == ""
    assert text_of(text_document(" \n")) == " \n"


# Packed files


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("language", ["en", "ja"])
def test_a_packed_text(tmp_path: Path, language: str, members: int) -> None:
    text = PROSE[language] * 5000
    path = tmp_path / "a.txt.gz"
    size = -(-len(text) // members)
    parts = [text[start : start + size].encode() for start in range(0, len(text), size)]
    path.write_bytes(b"".join(map(gzip.compress, parts)))
    document = open_document(path)
    assert text_of(document) == text
    assert document.text_bytes is None
    assert max(len(block.text) for block in document.blocks()) <= BLOCK


def test_packed_pages_and_rows(tmp_path: Path) -> None:
    (tmp_path / "a.html.gz").write_bytes(gzip.compress(b"<p>one<p>two"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}'))
    assert read(tmp_path) == "one\n\ntwo\nthree\n\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt.gz", gzip.compress(os.urandom(3000) * 3)[:2000], "is a binary file"),
        (
            "a.txt.gz",
            gzip.compress(PROSE["en"].encode() * 900)[:-300],
            "a.txt.gz is damaged: it ends too early",
        ),
        ("a.txt.gz", gzip.compress(b"text")[:-4] + b"size", "a.txt.gz is damaged: it cannot be unpacked"),
        ("a.txt.gz", gzip.compress(b"text") + b"rest", "a.txt.gz is damaged: it cannot be unpacked"),
        ("a.pdf.gz", gzip.compress(pdf("text")), "a.pdf.gz is a gzipped PDF file: unpack it first"),
        ("a.tar.gz", gzip.compress(b"a.txt" + bytes(600)), "a.tar.gz is a binary file: unpack it first"),
        ("a.zip", b"PK\x03\x04" + bytes(100), "a.zip is a binary file: unpack it first"),
        ("report", b"PK\x03\x04" + bytes(100), r"report is a binary file, not text.*must end in \.docx"),
        ("a.doc", b"\xd0\xcf\x11\xe0" + bytes(100), "a.doc is a binary file: save it as DOCX or PDF first"),
        ("a.ods", b"PK\x03\x04" + bytes(100), "a.ods is a binary file: save it as XLSX or CSV first"),
    ],
)
def test_what_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DocumentError, match=message):
        read(tmp_path / name)


def test_a_packed_bomb_is_refused_before_it_fills_anything(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"A bomb. " * 12_000_000))
    length = 0
    with pytest.raises(DocumentError, match=r"a\.txt\.gz unpacks to over 64 MiB: unpack it first"):
        for block in open_document(tmp_path / "a.txt.gz").blocks():
            length += len(block.text)
            assert len(block.text) <= BLOCK
    assert length <= 64 * 2**20


def test_a_packed_file_of_a_folder_that_is_damaged_late_is_left_out_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(os.urandom(BLOCK).hex().encode())[:-9])
    (tmp_path / "b.txt").write_text("sound")
    blocks = open_document(tmp_path).blocks()
    assert "".join(block.text for block in blocks) == "sound"
    assert blocks.skipped == (f"{tmp_path}/a.txt.gz is damaged: it ends too early",)


# Descriptors and standard input


MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from memagent import open_document
document = open_document(sys.argv[1])
reads = [iter(document.blocks()) for _ in range(1000)]
lengths = [0] * 1000
for _ in range(20):
    for number, blocks in enumerate(reads):
        block = next(blocks, None)
        lengths[number] += len(block.text) if block else 0
print(*set(lengths))
"""


@pytest.mark.slow
def test_a_thousand_reads_with_256_descriptors(large: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MANY, large], capture_output=True, check=True)
    assert done.stdout.split() == [str(large.stat().st_size).encode()]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_no_copy_of_standard_input_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "from memagent import open_document\ndocument = open_document('-')\n"
        "for _ in range(2): print(next(iter(document.blocks())).text, flush=True)\n"
        "import time\ntime.sleep(60)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"private")
        process.stdin.close()
        assert [process.stdout.readline() for _ in range(2)] == [b"private\n"] * 2
        process.send_signal(number)
    assert list(tmp_path.iterdir()) == []


def test_reads_side_by_side_are_the_same(large: Path) -> None:
    document = open_document(large)
    passes = [iter(document.blocks()) for _ in range(5)]
    texts = [""] * 5
    order = random.Random(0)
    while passes and any(texts[number] is not None for number in range(5)):
        number = order.randrange(5)
        block = next(passes[number], None)
        if block is None:
            break
        texts[number] += block.text
    for number, blocks in enumerate(passes):
        texts[number] += "".join(block.text for block in blocks)
    assert set(texts) == {large.read_text()}


def test_a_file_of_no_fixed_size_is_to_be_piped() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    with pytest.raises(DocumentError, match="/proc/self/status has no fixed size: pipe it in, and name it -"):
        open_document("/proc/self/status")


# Places


@pytest.mark.parametrize(
    "url", ["https://example.org/a/b.html?x=1", "http://[::1", "ftp://x/y", "file:///etc/hosts"]
)
def test_a_url_is_to_be_downloaded_first(url: str) -> None:
    with pytest.raises(DocumentError) as refused:
        open_document(url)
    assert str(refused.value) == f"{url} is a URL: download it first, and name the file"


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder with links to a file and a folder outside, to one of its own, and to itself."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for subfolder in (folder / "sub", outside / "deep"):
        subfolder.mkdir(parents=True)
    (folder / "a.txt").write_text("A")
    (folder / "sub" / "b.txt").write_text("B")
    (outside / "secret.txt").write_text("S")
    (outside / "deep" / "secret.txt").write_text("D")
    (folder / "inside.txt").symlink_to(folder / "a.txt")
    (folder / "out.txt").symlink_to(outside / "secret.txt")
    (folder / "outdir").symlink_to(outside / "deep")
    for name in ("loop", "sub/loop", "sub/loop2"):
        (folder / name).symlink_to(folder)
    return folder


@pytest.mark.slow
def test_a_full_disk_is_reported_and_does_not_prevent_the_start() -> None:
    """Neither the folder for passing files nor any other can be written."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "from memagent.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    ask = ["ask", "What?", "-", "--base-url", "http://127.0.0.1:9/v1", "--retries", "0"]
    for words, exit_code, message in ((["--version"], 0, ""), (ask, 4, "set TMPDIR to a folder with")):
        run = subprocess.run(
            [sys.executable, "-c", code, *words], input="A key.", capture_output=True, text=True
        )
        assert (run.returncode, "Traceback" in run.stderr, message in run.stderr) == (
            exit_code,
            False,
            True,
        ), run


def test_links_in_a_circle_and_what_is_no_file_are_named(linked: Path) -> None:
    for name, to in (("first", "second"), ("second", "first"), ("own", "own"), ("lost", "nowhere")):
        (linked / name).symlink_to(to)
    os.mkfifo(linked / "pipe.txt")
    (linked / "zeros.txt").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(linked / "socket.txt"))  # its path must be short
        document = open_document(linked, follow_links=True)
    assert text_of(document) == "ASDB"
    circles = [message for message in document.skipped if "Too many levels" in message]
    assert (len(circles), len(document.skipped)) == (3, 7)
    assert text_of(open_document(linked)) == "AB"
    for name in ("first", "own"):
        with pytest.raises(DocumentError, match="Too many levels"):
            open_document(linked / name)


def test_links_that_lead_out_are_named_and_not_followed(linked: Path) -> None:
    document = open_document(linked)
    assert text_of(document) == "AB"
    assert sorted(document.skipped) == [
        f"{linked / name} is a link that leads out of {linked}: set `follow_links`"
        for name in ("out.txt", "outdir")
    ]
    assert text_of(open_document(linked, follow_links=True)) == "ASDB"
    assert text_of(open_document(linked / "out.txt")) == "S"


def test_loops_under_two_stars_end(linked: Path) -> None:
    started = time.monotonic()
    assert text_of(open_document(linked / "**" / "*.txt")) == "AB"
    assert text_of(open_document(linked / "**")) == "AB"
    assert text_of(open_document(linked / "**" / "b*", follow_links=True)) == "B"
    assert text_of(open_document(linked / "**" / "*.txt", follow_links=True)) == "ASDB"
    assert time.monotonic() - started < 5


def test_two_stars_and_hidden_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.md", "x/y/b.md", "x/.h/c.md", ".g/d.md", "x/y/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(Path(name).stem)
    monkeypatch.chdir(tmp_path)
    assert text_of(open_document("**/*.md")) == "ab"
    assert text_of(open_document("x/**/y/*")) == "be"
    assert text_of(open_document("**/.h/*.md")) == "c"
    Path("x", ".env").write_text("h")
    assert text_of(open_document("**/.env")) == "h"
    assert text_of(open_document("**/y/**/*.txt")) == "e"
    assert [source.name for source in open_document("**/*.md").sources] == ["a.md", "x/y/b.md"]
    with pytest.raises(DocumentError, match=r"no file matches x/\*\*/z"):
        open_document("x/**/z")
