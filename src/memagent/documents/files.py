"""One file of a document: its format, and its bytes, checked for changes since the first look.

A file is open only while one of its blocks is read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import zlib
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple, Self

from memagent.documents.encodings import detect_encoding, is_doubtful
from memagent.documents.paths import escape_path, read_error
from memagent.errors import DocumentError, extra_hint
from memagent.plugins import plugins

_FORMATS = {
    **dict.fromkeys((".txt", ".text", ".md", ".csv", ".tsv", ".log"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".json", ".geojson"), "json"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **{".pdf": "pdf", ".docx": "docx", ".pptx": "pptx", ".xlsx": "xlsx", ".epub": "epub"},
    **{".docm": "docx", ".pptm": "pptx", ".xlsm": "xlsx"},  # with macros
    **{".odt": "odt", ".rtf": "rtf", ".mbox": "mbox", ".ipynb": "ipynb"},
    **dict.fromkeys((".eml", ".mht", ".mhtml"), "eml"),
}
_MAGIC = {b"%PDF-": "pdf", b"{\\rtf": "rtf"}
_CONVERTERS = {"docx": "mammoth", "pptx": "pptx", "xlsx": "openpyxl", "rtf": "striprtf"}
_ADVICE = {
    **dict.fromkeys((".doc", ".pages", ".wpd", ".mobi", ".azw", ".azw3"), "save it as DOCX or PDF first"),
    **dict.fromkeys((".xls", ".xlsb", ".ods", ".numbers"), "save it as XLSX or CSV first"),
    **dict.fromkeys((".ppt", ".odp", ".key"), "save it as PPTX or PDF first"),
    ".msg": "save it as EML first",
    **dict.fromkeys((".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar"), "unpack it first"),
}  # fmt: skip
_log = logging.getLogger(__name__)
BLOCK_BYTES = 256 * 1024
_SAMPLE_BYTES = 64 * 1024
_ZIP = b"PK\x03\x04"
_GZIP = b"\x1f\x8b\x08"
_COARSE_NS = 2_000_000_000  # a file changed this recently may change again with the same times
_MAX_UNPACKED, _USUAL_UNPACKED = 200, 64 * 2**20  # times the packed size; bytes that are always allowed


class UnusableError(DocumentError):
    """A file from which no text can be read: an error if it was named, left out if found in a directory."""


class NoTextError(UnusableError):
    """A file that has no text at all: empty, blank, a picture, a program."""


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """One file of a document, or text in memory. `encoding` is "" for formats that carry their own.

    `name` is the path as given, `title` what the model is shown of it. `named` says that the user named the
    file or a pattern for it, rather than a directory that holds it. `gzipped` bytes are unpacked first. A
    `doubtful` encoding is a guess from a short text.
    `size_bytes` bytes are read from byte `start` on. `start` is 0 except for plain text whose beginning is
    already known; that beginning has `characters_before` characters. `beginning` is a checksum of the file's
    first bytes, if they were looked at.
    """

    name: str
    origin: Path | bytes | IO[bytes] = field(repr=False)
    format: str
    encoding: str
    size_bytes: int
    named: bool = True
    gzipped: bool = False
    doubtful: bool = False
    title: str = ""
    start: int = 0
    characters_before: int = 0
    beginning: int | None = None


@dataclass(frozen=True, slots=True)
class FileState:
    """A file's size in bytes and its times: while they stay the same, so do its bytes.

    A file that was changed a moment ago is recorded without its times, since another change might not show in
    them. Such a state equals no later state of the file.
    """

    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, origin: Path | bytes | IO[bytes]) -> Self:
        """The state of a file as it is now. Raises `OSError`."""
        if isinstance(origin, bytes):
            return cls(len(origin), 0, 0)
        status = origin.stat() if isinstance(origin, Path) else os.fstat(origin.fileno())
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def to_keep(self) -> FileState:
        """The state to compare with a later one, to be called as soon as it is known."""
        recent = max(self.mtime_ns, self.ctime_ns) > time.time_ns() - _COARSE_NS
        return FileState(self.size, 0, 0) if recent else self


class Fingerprint(NamedTuple):
    """A file's state when it was read, the SHA-256 of its bytes, and a checksum of each block of them."""

    state: FileState
    sha256: bytes
    blocks: array[int]


@cache
def package_formats() -> Mapping[str, EntryPoint]:
    """The formats that installed packages add; one named as a format of ours is left out with a warning."""
    added = dict(plugins("formats"))
    for name in added.keys() & {suffix[1:] for suffix in _FORMATS}:
        _log.warning(
            "the format %s of the package %s is left out: memagent reads it itself",
            name,
            added.pop(name).value,
        )
    return added


def look_at(origin: Path | IO[bytes], name: str, named: bool) -> DocumentFile:
    """Identify a file by its name, size and first bytes. Raises `DocumentError` if it cannot be read."""
    try:
        if isinstance(origin, Path) and origin.exists() and not origin.is_file():
            raise DocumentError(f"{name} is not a regular file: pipe it in, and name it -")
        size = FileState.of(origin).size
        sample = bytes_at(origin, 0, _SAMPLE_BYTES)
    except OSError as error:
        raise read_error(name, error) from error
    if not sample:
        raise NoTextError(f"{name} is empty")
    if len(sample) > size:
        raise DocumentError(f"{name} has no fixed size: pipe it in, and name it -")
    suffix, beginning = Path(name).suffix.lower(), zlib.crc32(sample)
    whole = size <= len(sample)
    gzipped = sample.startswith(_GZIP)
    if gzipped:
        suffix = Path(Path(name).stem).suffix.lower()
        sample, whole = next(unpack(name, size, iter((sample,))), b"")[:_SAMPLE_BYTES], False
    kinds = (kind for magic, kind in _MAGIC.items() if sample.startswith(magic))
    of_package = suffix[1:] if suffix[1:] in package_formats() else "text"
    kind = next(kinds, None) or _FORMATS.get(suffix, of_package)
    encoding: str | None = ""
    if kind in ("text", "json", "jsonl", "html"):
        encoding = detect_encoding(sample, whole)
    elif gzipped:
        raise DocumentError(f"{name} is a gzipped {kind.upper()} file: unpack it first (gunzip)")
    elif (module := _CONVERTERS.get(kind)) and find_spec(module) is None:
        raise DocumentError(f"{name} needs a converter: {extra_hint('formats')}")
    if encoding is None:
        if suffix in _ADVICE:
            raise UnusableError(f"{name} is a binary file: {_ADVICE[suffix]}")
        hint = ""
        if sample.startswith(_ZIP):
            hint = "; an office file's or a book's name must end in .docx, .epub and so on"
        elif (0 in sample[::2]) != (0 in sample[1::2]):  # all zero bytes are the same halves of pairs
            hint = "; if it is UTF-16, save it as UTF-8"
        raise NoTextError(f"{name} is a binary file, not text{hint}")
    doubtful = is_doubtful(sample, encoding) if encoding else False
    return DocumentFile(
        name, origin, kind, encoding, size, named, gzipped, doubtful, title=name, beginning=beginning
    )


def bytes_at(origin: Path | bytes | IO[bytes], offset: int, size: int) -> bytes:
    """Read up to `size` bytes at `offset`. Raises `OSError`."""
    if isinstance(origin, bytes):
        return origin[offset : offset + size]
    if not isinstance(origin, Path):
        return os.pread(origin.fileno(), size, offset)
    with open_file(origin) as file:
        file.seek(offset)
        return file.read(size)


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading. Raises `OSError`.

    The file may have become a pipe: opening it does not wait, and seeking in it is an error.
    """
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def take_fingerprint(source: DocumentFile) -> Fingerprint:
    """Read a whole file for its fingerprint. Raises `DocumentError` if it cannot be read or has changed."""
    state, digest, blocks = state_of(source).to_keep(), hashlib.sha256(), array("I")
    for block in _raw(source):
        if not blocks and source.beginning not in (None, zlib.crc32(block[:_SAMPLE_BYTES])):
            raise change_error(source)
        digest.update(block)
        blocks.append(zlib.crc32(block))
    return Fingerprint(state, digest.digest(), blocks)


def state_of(source: DocumentFile) -> FileState:
    """The state of a file as it is now. Raises `DocumentError` if it cannot be read."""
    try:
        return FileState.of(source.origin)
    except OSError as error:
        raise read_error(source.name, error) from error


def prefix_digests(source: DocumentFile, ends: Collection[int]) -> dict[int, str]:
    """SHA-256, in hex, of the bytes before each of these offsets; offsets past the end have none. Blocks.

    Raises `DocumentError` if the file cannot be read or has become shorter.
    """
    digest, offset, digests = hashlib.sha256(), 0, dict[int, str]()
    for block in _raw(source):
        for end in sorted(end for end in ends if offset < end <= offset + len(block)):
            part = digest.copy()
            part.update(block[: end - offset])
            digests[end] = part.hexdigest()
        digest.update(block)
        offset += len(block)
    return digests


def check_bytes(source: DocumentFile, fingerprint: Fingerprint) -> Iterator[bytes]:
    """The bytes of a file in blocks, each checked against the fingerprint.

    Raises `DocumentError` if the file has changed; what was appended since is left out.
    """
    for block, checksum in zip(_raw(source), fingerprint.blocks, strict=True):
        if zlib.crc32(block) != checksum:
            raise change_error(source)
        yield block


def has_changed(source: DocumentFile, fingerprint: Fingerprint) -> bool:
    """Whether a file no longer has this fingerprint. Its bytes are compared only if its state differs.

    Raises `DocumentError` if it cannot be read.
    """
    now = state_of(source)
    if now == fingerprint.state:
        return False
    return now.size != source.size_bytes or take_fingerprint(source).sha256 != fingerprint.sha256


def change_error(source: DocumentFile) -> DocumentError:
    """The error for a file that has changed."""
    return DocumentError(f"{source.name} changed while it was read: start again once it no longer changes")


def unpack(name: str, size_bytes: int, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a gzip file of this size, in blocks of at most 256 KiB.

    Raises `UnusableError` for a damaged file, and for one that unpacks to an absurd size.
    """
    most = max(_USUAL_UNPACKED, size_bytes * _MAX_UNPACKED)
    length, unpacker = 0, None
    try:
        for block in blocks:
            while block:
                unpacker = unpacker or zlib.decompressobj(31)
                text = unpacker.decompress(block, BLOCK_BYTES)
                length += len(text)
                if length > most:
                    raise UnusableError(f"{name} unpacks to over {most // 2**20} MiB: unpack it first")
                yield text
                block = unpacker.unconsumed_tail
                if unpacker.eof:  # another member may follow
                    block, unpacker = unpacker.unused_data, None
    except zlib.error as error:
        raise UnusableError(f"{name} is damaged: it cannot be unpacked ({error})") from error
    if unpacker is not None:
        raise UnusableError(f"{name} is damaged: it ends too early")


def _raw(source: DocumentFile) -> Iterator[bytes]:
    """The bytes that the file had when it was first looked at. Raises `DocumentError`."""
    for offset in range(0, source.size_bytes, BLOCK_BYTES):
        size = min(BLOCK_BYTES, source.size_bytes - offset)
        try:
            block = bytes_at(source.origin, source.start + offset, size)
        except OSError as error:
            raise read_error(source.name, error) from error
        if len(block) < size:
            raise change_error(source)
        yield block


def brief(message: str) -> str:
    """The first line of a library's message, shortened to fit an error message."""
    lines = message.strip().splitlines()
    return escape_path(lines[0][:200]) if lines else ""
