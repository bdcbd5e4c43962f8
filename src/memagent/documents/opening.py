"""Open anything readable as one stream of text, block by block.

Files keep their exact text: only a byte-order mark is dropped, and undecodable bytes become
U+FFFD and are counted. HTML, office and PDF files are converted to Markdown, whole, in memory.
Leaves out: OCR, archives, and anything that has to be fetched.
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import IO, Literal

from memagent.documents.encodings import detect_encoding
from memagent.documents.formats import html_to_markdown, office_to_markdown
from memagent.errors import DocumentError, extra_hint

Format = Literal["text", "jsonl", "html", "pdf", "docx", "pptx", "xlsx", "epub"]
_FORMATS: dict[str, Format] = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **{".pdf": "pdf", ".docx": "docx", ".pptx": "pptx", ".xlsx": "xlsx", ".epub": "epub"},
}
_SAMPLE_BYTES = 64 * 1024
_BLOCK_BYTES = 256 * 1024
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a document, or text in memory. `encoding` is "" for formats that carry their own.

    `named` tells that the user named it, or a pattern for it, rather than a directory it is in.
    """

    name: str
    origin: Path | bytes = field(repr=False)
    format: Format
    encoding: str
    size_bytes: int
    named: bool = True


@dataclass
class Document:
    """Several sources read as one text, in order.

    `skipped` says which files of a directory were left out, and why; `replaced` counts, for each source that
    was read, the characters that could not be decoded. Both are complete once `blocks` has been read.
    """

    sources: tuple[Source, ...]
    skipped: tuple[str, ...] = ()
    replaced: dict[str, int] = field(default_factory=dict)
    _spooled: IO[bytes] | None = None

    @property
    def size_bytes(self) -> int:
        """The size of all files together, for progress."""
        return sum(source.size_bytes for source in self.sources)

    @property
    def text_bytes(self) -> int | None:
        """The size where it is about that of the text; None where a format hides the text's length."""
        return self.size_bytes if all(source.format == "text" for source in self.sources) else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the bytes of all sources, in order; names do not count."""
        digest = hashlib.sha256()
        for source in self.sources:
            with _opened(source) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def blocks(self) -> Iterator[tuple[Source, str]]:
        """The text in pieces of at most some 256 KiB for text files, each with its source.

        Raises `DocumentError` for a file that can no longer be read or cannot be converted; one of a
        directory that cannot be converted is left out, unless all of them are.
        """
        failed: list[DocumentError] = []
        for source in self.sources:
            try:
                texts = _read(source)
            except DocumentError as error:
                if source.named:
                    raise
                failed.append(error)
                self.skipped = tuple(dict.fromkeys((*self.skipped, str(error))))
                continue
            self.replaced[source.name] = 0
            for text in texts:
                self.replaced[source.name] += text.count("\ufffd")
                yield source, text
        if failed and len(failed) == len(self.sources):
            raise failed[0]


def open_document(*paths: str | os.PathLike[str]) -> Document:
    """Find and look at the files, without reading them through.

    Each path is a file, a directory (its files, sorted, hidden ones left out), a glob pattern, or
    "-" for standard input. A file named twice is read once.

    Raises `DocumentError` if nothing is found, a file cannot be read, or a named file is binary.
    """
    found: dict[str, Source] = {}
    skipped: list[str] = []
    spooled: IO[bytes] | None = None
    for path in paths:
        if os.fspath(path) == "-":
            if spooled is None:
                spooled = _spool_stdin()
                found[spooled.name] = _look_at(Path(spooled.name), "stdin", named=True)
            continue
        for file, named in _files(path):
            real = os.path.realpath(file)
            if real in found:
                continue
            try:
                found[real] = _look_at(file, _shown(file), named)
            except DocumentError as error:
                if named:
                    raise
                skipped.append(str(error))
    if not found:
        reason = f"; left out: {skipped[0]}" if skipped else ""
        raise DocumentError(f"no readable file in {', '.join(map(_shown, paths)) or 'the arguments'}{reason}")
    return Document(tuple(found.values()), tuple(skipped), _spooled=spooled)


def text_document(text: str, name: str = "text") -> Document:
    """A document from a string."""
    content = _sendable(text).encode()
    return Document((Source(name, content, "text", "utf-8", len(content)),))


def _spool_stdin() -> IO[bytes]:
    """Copy standard input to a temporary file, which lives as long as the returned handle."""
    spooled = tempfile.NamedTemporaryFile(prefix="memagent-")  # noqa: SIM115 the document keeps it
    shutil.copyfileobj(sys.stdin.buffer, spooled)
    spooled.flush()
    return spooled


def _files(path: str | os.PathLike[str]) -> Iterator[tuple[Path, bool]]:
    """The files that a path stands for, and whether the user named each of them."""
    given = Path(path)
    if not os.fspath(path) or "\0" in str(given):
        raise DocumentError(f"'{_shown(path)}' is not a path: name a file, a directory, a pattern or -")
    try:
        if given.is_dir():
            yield from ((file, False) for file in _walk(given))
        elif given.exists() or not glob.has_magic(str(given)):
            yield given, True
        else:
            matches = sorted(glob.glob(str(given), recursive=True))  # noqa: PTH207
            if not matches:
                raise DocumentError(f"no file matches {_shown(given)}")
            yield from ((Path(match), True) for match in matches if Path(match).is_file())
    except OSError as error:
        raise _unreadable(_shown(path), error) from error


def _walk(given: Path) -> Iterator[Path]:
    """The files below a directory, sorted, hidden ones left out; and folders that cannot be listed."""
    closed: list[Path] = []
    for folder, subfolders, names in os.walk(
        given, onerror=lambda error: closed.append(Path(error.filename))
    ):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))
    yield from closed


def _shown(path: str | os.PathLike[str]) -> str:
    """A path for people and for JSON: on one line, and without what no encoding has."""
    return "".join(it if it.isprintable() else ascii(it)[1:-1] for it in os.fspath(path))


def _unreadable(name: str, error: OSError) -> DocumentError:
    return DocumentError(f"{name} cannot be read: {error.strerror or error}")


def _look_at(path: Path, name: str, named: bool) -> Source:
    try:
        if path.exists() and not path.is_file():
            raise DocumentError(f"{name} is not a regular file: pipe a stream in, and name it -")
        size = path.stat().st_size
        with path.open("rb") as file:
            sample = file.read(_SAMPLE_BYTES)
    except OSError as error:
        raise _unreadable(name, error) from error
    kind = "pdf" if sample.startswith(b"%PDF-") else _FORMATS.get(path.suffix.lower(), "text")
    if kind not in ("text", "jsonl", "html"):
        if find_spec("markitdown") is None:
            raise DocumentError(f"{name} needs a converter: {extra_hint('formats')}")
        return Source(name, path, kind, "", size, named)
    encoding = detect_encoding(sample, whole=size <= len(sample))
    if encoding is None:
        raise DocumentError(f"{name} is a binary file, not text")
    return Source(name, path, kind, encoding, size, named)


def _opened(source: Source) -> BufferedReader | BytesIO:
    if isinstance(source.origin, bytes):
        return BytesIO(source.origin)
    try:
        return source.origin.open("rb")
    except OSError as error:
        raise _unreadable(source.name, error) from error


def _read(source: Source) -> Iterator[str]:
    """The text of a source; it is converted here, and read as the text is asked for."""
    if source.format == "text":
        return _decoded(source)
    if source.format == "jsonl":
        return _rows(source)
    return iter((_converted(source),))


def _decoded(source: Source) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(source.encoding)(errors="replace")
    try:
        with _opened(source) as file:
            while block := file.read(_BLOCK_BYTES):
                if text := decoder.decode(block):
                    yield text
        if rest := decoder.decode(b"", final=True):
            yield rest
    except OSError as error:
        raise _unreadable(source.name, error) from error


def _rows(source: Source) -> Iterator[str]:
    """The text of each row of a JSONL file, a blank line between rows."""
    for line in _lines(_decoded(source)):
        if line.strip():
            yield _row_text(line.strip()) + "\n\n"


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    rest: list[str] = []
    for block in blocks:
        *lines, last = block.split("\n")
        for line in lines:
            yield "".join(rest) + line
            rest = []
        rest.append(last)
    yield "".join(rest)


def _row_text(line: str) -> str:
    """A row's `text` or `content`, or the row itself when it is text; else the line as it is."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if isinstance(row, dict):
        row = row.get("text", row.get("content"))
    return _sendable(row) if isinstance(row, str) else line


def _sendable(text: str) -> str:
    """The text without lone surrogates, which no encoding has."""
    return _SURROGATES.sub("\ufffd", text)


def _converted(source: Source) -> str:
    try:
        if source.format == "html":
            return _sendable(html_to_markdown("".join(_decoded(source))))
        with _opened(source) as file:
            return _sendable(office_to_markdown(file, source.format))
    except DocumentError:
        raise
    except Exception as error:  # each format's library raises its own, recursion included
        raise DocumentError(f"{source.name} cannot be converted: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {_shown(lines[0][:200])}" if lines else type(error).__name__
