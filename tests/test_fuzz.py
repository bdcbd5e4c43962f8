"""Odd documents: each ends in an answer, or in an error that names the file on one line."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from files import PROSE, docx, epub, pdf, zipped
from memagent import DocumentError, Message, ScriptedEngine, Settings, aread
from memagent.settings import ReadSettings

SECONDS = 20  # for one document; a thousand times what it takes

Make = Callable[[random.Random], bytes]

ENCODINGS = (
    "utf-8",
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "cp1252",
    "gb18030",
    "shift_jis",
    "koi8-r",
)
MARKS = (
    b"",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xfe\xff",
    b"\xff\xfe\x00\x00",
    b"\x00\x00\xfe\xff",
    b"%PDF-",
    b"PK\x03\x04",
)
SUFFIXES = (
    "",
    ".txt",
    ".md",
    ".html",
    ".HTM",
    ".xhtml",
    ".jsonl",
    ".ndjson",
    ".csv",
    ".xml",
    ".tar.gz",
    ".",
    ". ",
    ".txt~",
)
OFFICE = (".pdf", ".docx", ".pptx", ".xlsx", ".epub", ".PDF")
NAMES = (
    *(
        b"plain",
        b"with space",
        b" leading",
        b"-rf",
        b"--help",
        b"new\nline",
        b"tab\t",
        b"quote'\"",
        b"[a-z]*?",
        b"~",
        b"$HOME",
    ),
    *(
        "naïve".encode(),
        "日本語".encode(),
        "😀👩🏽\u200d💻".encode(),
        "e\u0301".encode(),
        "\u202eoverride".encode(),
        b"\xff\xfe",
        b"caf\xe9",
    ),
    *(b"%s%d{memory}", b"<b>", b"\x1b[31mred", b"\x7f", b"a" * 180, b"CON", b"..."),
)


MONOTONOUS = (
    *("\u0301", "\u200d", "\ufe0f", "👩🏽\u200d💻", "🇫🇷", " ", "\n", "\r\n", "\r", "\t", "\u3000", "\x0c"),
    *(
        "x",
        "漢",
        "a,",
        "\U000e0041",
        "\u202e",
        "</memory>",
        "<|im_start|>",
        "{memory}",
        "<",
        "\u1160",
        "\ufeff",
        ".",
    ),
)


def any_bytes(rng: random.Random) -> bytes:
    alphabet = rng.choice(
        (range(256), range(128), range(32, 127), range(128, 256), (0, 10, 65), (13, 10), range(0x80, 0xC0))
    )
    return bytes(rng.choices(alphabet, k=rng.choice((0, 1, 2, 3, 10, 100, 3000))))


def prose(rng: random.Random) -> str:
    return rng.choice(list(PROSE.values())) * rng.choice((1, 3, 30))


def encoded(rng: random.Random) -> bytes:
    content = prose(rng).encode(rng.choice(ENCODINGS), "replace")
    return content[: rng.randrange(len(content) + 1)] if rng.random() < 0.5 else content


def mixed(rng: random.Random) -> bytes:
    return b"".join(encoded(rng) for _ in range(rng.randint(2, 4)))


def damaged(rng: random.Random) -> bytes:
    content = bytearray(encoded(rng))
    for _ in range(min(len(content), rng.choice((1, 5, 100)))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content)


def marked(rng: random.Random) -> bytes:
    return rng.choice(MARKS) + rng.choice((any_bytes, encoded))(rng)


def monotonous(rng: random.Random) -> bytes:
    piece = rng.choice(MONOTONOUS)
    return (piece * rng.choice((1, 7, 1000, 5000))).encode(rng.choice(("utf-8", "utf-16", "utf-16-le")))


def surrogates(rng: random.Random) -> bytes:
    letters = [chr(rng.randrange(0xD800, 0xE000)) if rng.random() < 0.5 else "x" for _ in range(50)]
    return "".join(letters).encode(rng.choice(("utf-8", "utf-16-le")), "surrogatepass")


def rows(rng: random.Random) -> bytes:
    def value(depth: int) -> object:
        kind = rng.randrange(7 if depth < 4 else 5)
        if kind == 5:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        if kind == 6:
            return {rng.choice(("text", "content", "x")): value(depth + 1) for _ in range(rng.randrange(4))}
        return (None, rng.random(), prose(rng), "\ud800 lone", True)[kind]

    lines = [json.dumps(value(0)) for _ in range(rng.randrange(8))]
    lines += rng.sample(
        ["[" * 3000, '{"text": "unfinished', "NaN", "1e999", "{}", '"\\ud800"', "9" * 5000, "\x00"], 2
    )
    rng.shuffle(lines)
    return rng.choice(("\n", "\r\n", "\n\n", "\r")).join(lines).encode()


def soup(rng: random.Random) -> bytes:
    pieces = [
        *(
            "<div>",
            "</div>",
            "<p",
            "<table><tr>",
            "</td>",
            "<script>",
            "<style>x",
            "<!--",
            "-->",
            "<![CDATA[",
            "&#xD800;",
        ),
        *(
            "&amp",
            "&#99999999;",
            "<a href='",
            "<pre>\n",
            "<li>",
            "<ol start='x'>",
            "<td colspan='9e9'>",
            "text ",
            "\x00",
            "<?",
            "<!",
        ),
        *(
            "<img src=x onerror=y>",
            "<br/>",
            "<h1>",
            "<h9>",
            "<code>`",
            "<textarea>",
            "<svg>",
            "</",
            "<>",
            "é",
            "\n",
        ),
    ]
    return "".join(rng.choices(pieces, k=rng.choice((1, 20, 400)))).encode(rng.choice(("utf-8", "utf-16")))


def office(rng: random.Random) -> bytes:
    whole = rng.choice((docx("A key.", "B"), epub("A key."), pdf("A key."), zipped({"a": "b"}), zipped({})))
    content = bytearray(whole)
    match rng.randrange(4):
        case 0:
            return whole
        case 1:
            return whole[: rng.randrange(len(whole))]
        case 2:
            for _ in range(rng.choice((1, 10, 200))):
                content[rng.randrange(len(content))] = rng.randrange(256)
            return bytes(content)
        case _:
            return whole[:4] + any_bytes(rng)


MAKERS: tuple[Make, ...] = (any_bytes, encoded, mixed, damaged, marked, monotonous, surrogates, rows, soup)


@contextmanager
def limited(seconds: int, what: str) -> Iterator[None]:
    """Fail, rather than hang, when the block takes longer."""

    def late(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{what} took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def named(rng: random.Random, folder: Path, suffixes: tuple[str, ...], number: int) -> Path:
    """A path with an odd name, each in its own folder."""
    subfolder = folder / str(number)
    subfolder.mkdir()
    return subfolder / os.fsdecode(rng.choice(NAMES) + rng.choice(suffixes).encode())


def reply(messages: tuple[Message, ...]) -> str:
    """A memory of the prompt's own words; the last of them as the answer."""
    return " ".join(messages[-1].content.split()[8:-30]) or "nothing"


def read_odd(path: Path, content: bytes, rng: random.Random) -> str:
    """How the read of such a file ends: "answer", or the kind of its refusal."""
    path.write_bytes(content)
    engine = ScriptedEngine(reply)
    settings = Settings(
        read=ReadSettings(
            workflow=rng.choice(("overwrite", "gated")),
            chunk_tokens=rng.choice((5, 50, 1000)) if len(content) < 5000 else 1000,
            memory_tokens=100,
        )
    )
    try:
        with limited(SECONDS, repr(path)):
            trajectory = asyncio.run(aread("What?", path, engine=engine, settings=settings))
    except DocumentError as error:
        message = str(error)
        message.encode()
        assert message.isprintable()
        escaped_path = "".join(
            character if character.isprintable() else ascii(character)[1:-1] for character in str(path)
        )
        assert message.startswith(escaped_path), f"{message!r} does not name {path!r}"
        return message[len(escaped_path) :][:20]
    assert trajectory.answer
    assert trajectory.error is None
    for conversation in trajectory.conversations:
        conversation.messages[-1].content.encode()
    return "answer"


@pytest.mark.parametrize("documents", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_odd_documents_end_in_an_answer_or_a_named_error(documents: int, tmp_path: Path) -> None:
    rng = random.Random(2507_02259)
    endings: Counter[str] = Counter()
    for number in range(documents):
        content = MAKERS[number % len(MAKERS)](rng)
        endings[read_odd(named(rng, tmp_path, SUFFIXES, number), content, rng)] += 1
    assert endings["answer"] > documents // 2
    assert endings[" is a binary file, n"] > documents // 20


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mammoth") is None, reason="needs memagent[formats]")
def test_odd_office_files_end_in_an_answer_or_a_named_error(tmp_path: Path) -> None:
    rng = random.Random(2026)
    endings: Counter[str] = Counter()
    for number in range(100):  # each is converted in a process of its own
        content = office(rng) if number % 4 else rng.choice(MAKERS)(rng)
        suffixes = (".docx",) if b"word/doc" in content else (".epub",) if b"META-INF" in content else OFFICE
        endings[read_odd(named(rng, tmp_path, suffixes, number), content, rng)] += 1
    assert endings["answer"] > 10
    assert endings[" cannot be converted"] > 50


def test_all_odd_files_of_a_directory_at_once(tmp_path: Path) -> None:
    rng = random.Random(7)
    for number in range(100):
        path = named(rng, tmp_path, SUFFIXES, number)
        path.write_bytes(MAKERS[number % (len(MAKERS) - 1)](rng))
    with limited(SECONDS, "the directory"):
        trajectory = asyncio.run(
            aread(
                "What?",
                tmp_path,
                engine=ScriptedEngine(reply),
                settings=Settings(),
                trace=tmp_path / "j.jsonl",
            )
        )
    assert trajectory.answer
    header, *_ = (tmp_path / "j.jsonl").read_text("utf-8").splitlines()
    assert len(json.loads(header)["document"]["sources"]) > 50
