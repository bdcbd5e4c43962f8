"""Open anything readable as one stream of text, block by block.

Text files keep their exact text: only a byte-order mark is dropped, and undecodable bytes become U+FFFD and
are counted. Not supported: OCR, archives, and anything that has to be downloaded.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

from memagent.documents.conversion import convert_blocks, is_cached
from memagent.documents.converters import HTML, PAGED
from memagent.documents.converters.text import PAGE_END, REMARK
from memagent.documents.files import (
    DocumentFile,
    Fingerprint,
    NoTextError,
    UnusableError,
    check_bytes,
    look_at,
    take_fingerprint,
    unpack,
)
from memagent.documents.jsonl import row_texts, unescape
from memagent.documents.marks import PUBLIC, mark_of
from memagent.documents.markup import markdown_of
from memagent.documents.paths import escape_path, find_files, keep_input
from memagent.errors import DocumentError
from memagent.text import sendable

_MAX_BLANK = 64  # blocks of white space held back until text follows


class Block(NamedTuple):
    """A piece of a document's text, from one source and one page (counted from 1; None without pages)."""

    source: DocumentFile
    text: str
    page: int | None


@dataclass(eq=False)
class Document:
    """Several sources read as one text, in order; `skipped` says which files were left out, and why.

    The model is shown the title of each source if there are several, or if the document is `titled`. An
    example has the same `mark` on every machine. Passes may run at the same time, in any threads.
    """

    sources: tuple[DocumentFile, ...]
    skipped: tuple[str, ...] = ()
    titled: bool = False
    is_example: bool = False
    _fingerprints: dict[int, Fingerprint] = field(default_factory=dict, init=False, repr=False)
    _unusable: dict[int, UnusableError] = field(default_factory=dict, init=False, repr=False)
    _sound: set[int] = field(default_factory=set, init=False, repr=False)  # gzip files that unpack
    _fingerprinting: Lock = field(default_factory=Lock, init=False, repr=False)
    _converting: Lock = field(default_factory=Lock, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the fingerprints taken so far, so that another machine refuses files that differ."""
        values = (self.sources, self.skipped, self.titled, self.is_example)
        return Document, values, {"_fingerprints": dict(self._fingerprints)}

    @property
    def text_bytes(self) -> int | None:
        """The size of the files if it is about that of the text; None if a format hides the text's length."""
        plain = all(source.format == "text" and not source.gzipped for source in self.sources)
        return sum(source.size_bytes for source in self.sources) if plain else None

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of the contents of all sources, which the first call reads. Raises `DocumentError`."""
        digest = sha256()
        for number in range(len(self.sources)):
            digest.update(self._fingerprint(number).sha256)
        return digest.hexdigest()

    @property
    def mark(self) -> str:
        """The letters that mark the delimiters around its text. Blocks; raises what `fingerprint` raises."""
        return mark_of(self.fingerprint, PUBLIC if self.is_example else None)

    def blocks(self) -> Pass:
        """A pass over the text."""
        return Pass(self)

    def unnamed(self) -> Document:
        """The same document, from which sources without text are left out even if the user named them."""
        return replace(self, sources=tuple(replace(source, named=False) for source in self.sources))

    def _needs_no_conversion(self, number: int) -> bool:
        source = self.sources[number]
        if source.encoding or isinstance(source.origin, bytes) or number in self._unusable:
            return True
        try:
            return is_cached(source, self._fingerprint(number))
        except DocumentError:  # raised when the source is read
            return False

    def _fingerprint(self, number: int) -> Fingerprint:
        if number not in self._fingerprints:
            with self._fingerprinting:  # only one of several readers reads the whole file
                if number not in self._fingerprints:
                    self._fingerprints[number] = take_fingerprint(self.sources[number])
        return self._fingerprints[number]


class Pass:
    """One pass over the text of a document, and what it left out. Iterate it once.

    `skipped` says what was left out so far, and why: unusable files of a directory, and parts of files.
    `replaced` counts, for each source begun so far, the characters that could not be decoded.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.sources = document.sources
        self.skipped: tuple[str, ...] = ()
        self.replaced: dict[str, int] = {}
        self._number = 0  # of the source being read
        self._at_hand = 0  # how many of the first sources are known to need no further conversion
        self._stopped = Event()

    @cached_property
    def mark(self) -> str:
        """The document's mark. A resumed read that had another sets it first."""
        return self.document.mark

    def __iter__(self) -> Iterator[Block]:
        """The text in pieces of at most about 256 KiB, a new one for each page.

        Raises `DocumentError` for a file that changed, can no longer be read, cannot be converted, or has no
        text. A file of a directory that cannot be converted or has no text is left out, unless all are.
        """
        failed: list[UnusableError] = []
        for number, source in enumerate(self.sources):
            self._number = number
            texts = self._with_text(source, self._texts(number, source))
            try:
                if known := self.document._unusable.get(number):
                    raise type(known)(*known.args)
                first = next(texts, None)
            except UnusableError as error:
                self.document._unusable[number] = error
                if source.named:
                    raise
                failed.append(error)
                self.skipped += (str(error),)
                continue
            self.replaced[source.name] = 0
            for block in chain([first] if first else [], texts):
                self.replaced[source.name] += block.text.count("\ufffd")
                yield block
        if failed and not self.replaced:
            raise failed[0]

    def retitle(self, titles: Iterable[str]) -> None:
        """Show the model these titles: those from before the files were renamed. Call it before iterating."""
        self.sources = tuple(
            replace(source, title=title) for source, title in zip(self.sources, titles, strict=True)
        )

    def may_convert(self) -> bool:
        """Whether a file still to be read must be converted first, which may take minutes. Blocks.

        The files ahead are checked too: a chunk may span several.
        """
        sources = self.document.sources
        self._at_hand = max(self._at_hand, self._number)
        while self._at_hand < len(sources) and self.document._needs_no_conversion(self._at_hand):
            self._at_hand += 1
        return self._at_hand < len(sources) or not self.document._needs_no_conversion(self._number)

    def close(self) -> None:
        """Stop, and end a conversion that is running. May be called from any thread."""
        self._stopped.set()

    def _with_text(self, source: DocumentFile, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks. Raises `NoTextError` if all of them are blank, mostly before yielding anything."""
        is_blank, pending = True, list[Block]()
        for block in blocks:
            is_blank = is_blank and not block.text.strip()
            pending.append(block)
            if not is_blank or len(pending) > _MAX_BLANK:
                yield from pending
                pending.clear()
        if is_blank and not isinstance(source.origin, bytes):
            advice = " (scanned? run OCR first)" if source.format == "pdf" else ""
            raise NoTextError(f"{source.name} has no text{advice}")
        yield from pending

    def _texts(self, number: int, source: DocumentFile) -> Iterator[Block]:
        raw = self._bytes(number, source)
        if source.gzipped:
            if number not in self.document._sound:  # damage is found before any of its text is paid for
                for _ in unpack(source.name, source.size_bytes, self._bytes(number, source)):
                    pass
                self.document._sound.add(number)
            raw = unpack(source.name, source.size_bytes, raw)
        texts: Iterator[str] = codecs.iterdecode(raw, source.encoding or "utf-8", "replace")
        if not source.encoding:
            texts = self._take_remarks(source, texts)
        if source.format in PAGED:
            yield from _split_pages(source, texts)
            return
        if source.format == "jsonl":
            texts = row_texts(texts)
        elif source.format == "json":
            texts = unescape(texts)
        elif source.format == "html" or source.format in HTML:
            texts = map(sendable, markdown_of(texts, source.name))
        for text in texts:
            yield Block(source, text, None)

    def _bytes(self, number: int, source: DocumentFile) -> Iterator[bytes]:
        if isinstance(source.origin, bytes):
            return iter((source.origin,))
        fingerprint = self.document._fingerprint(number)
        if source.encoding:
            return check_bytes(source, fingerprint)
        return convert_blocks(source, fingerprint, self.document._converting, self._stopped)

    def _take_remarks(self, source: DocumentFile, texts: Iterable[str]) -> Iterator[str]:
        """The converted text without the remarks in it, which go to `skipped`."""
        remark: str | None = None
        for text in texts:
            for turned, piece in enumerate(text.split(REMARK)):
                if turned and remark is not None:
                    self.skipped += (f"{source.name}: {remark}",)
                    remark = None
                elif turned:
                    remark = ""
                if remark is not None:
                    remark += piece
                elif piece:
                    yield piece


def _split_pages(source: DocumentFile, texts: Iterable[str]) -> Iterator[Block]:
    """Split the text at the form feeds that end pages."""
    page = 1
    for text in texts:
        for turned, piece in enumerate(text.split(PAGE_END)):
            page += turned > 0
            if piece:
                yield Block(source, piece, page)


def open_document(*paths: str | os.PathLike[str], follow_links: bool = False) -> Document:
    """Find the files and look at their beginnings, without reading them whole.

    Each path is a file, a directory (its files, in natural order, hidden ones left out), a glob pattern, or
    "-" for standard input. A file named twice is read once. With `follow_links`, files outside a directory
    that are linked from it are read too.

    Raises `DocumentError` if nothing is found, a file cannot be read, or a named file is binary or empty.
    """
    files: dict[object, DocumentFile] = {}
    skipped: list[str] = []
    for path in paths:
        if os.fspath(path) == "-":
            files["-"] = files.get("-") or look_at(keep_input(), "stdin", named=True)
            continue
        for file in find_files(path, follow_links):
            real = os.path.realpath(file.path)
            if real in files:
                continue
            if file.refusal:
                skipped.append(file.refusal)
                continue
            try:
                files[real] = look_at(file.path, escape_path(file.path), file.named)
            except DocumentError as error:
                if file.named:
                    raise
                skipped.append(str(error))
    if not files:
        others = f"; left out: {skipped[0]}" if skipped else ""
        raise DocumentError(
            f"no readable file in {', '.join(map(escape_path, paths)) or 'the arguments'}{others}"
        )
    return Document(_title(tuple(files.values())), tuple(skipped))


def text_document(text: str, name: str = "text", is_example: bool = False) -> Document:
    """A document from a string."""
    content = sendable(text).encode()
    source = DocumentFile(name, content, "text", "utf-8", len(content), title=name)
    return Document((source,), is_example=is_example)


def characters_of(source: DocumentFile) -> int:
    """How many characters the text of a source has. Blocks; raises `DocumentError`."""
    return sum(len(block.text) for block in Document((source,)).blocks()._texts(0, source))


def _title(sources: tuple[DocumentFile, ...]) -> tuple[DocumentFile, ...]:
    """The sources, each titled with its path relative to the folder that holds all of them."""
    files = [Path(os.path.abspath(source.origin)) for source in sources if isinstance(source.origin, Path)]  # noqa: PTH100
    if not files:
        return sources
    top = os.path.commonpath([file.parent for file in files])
    return tuple(
        replace(source, title=escape_path(os.path.relpath(source.origin, top)))
        if isinstance(source.origin, Path)
        else source
        for source in sources
    )
