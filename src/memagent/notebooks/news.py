"""What a notebook has not yet read of a document, judged by the bytes. Everything here blocks.

A file whose bytes were read before is skipped, wherever it is now; one in the state in which it was read is
skipped without reading it. A plain-text file in UTF-8 that has only
grown since is read from the line at which it grew. Any other change makes it a new file.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from memagent.documents.files import BLOCK_BYTES, DocumentFile, FileState, bytes_at, prefix_digests, state_of
from memagent.documents.opening import Document, characters_of, text_document
from memagent.errors import SettingsError

_UTF8 = ("utf-8", "utf-8-sig")
_MAX_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Portion:
    """The bytes of a file that were read together, from `start` to `end`.

    `sha256`, in hex, is that of all bytes before `end`. `path` is empty for a text that is not a file. The
    times are those of the file's state; 0 if none were kept.
    """

    name: str
    path: str
    sha256: str
    start: int
    end: int
    mtime_ns: int = 0
    ctime_ns: int = 0

    @property
    def state(self) -> FileState:
        """The state of the file when it was read."""
        return FileState(self.end, self.mtime_ns, self.ctime_ns)


@dataclass(frozen=True, slots=True)
class News:
    """What to read: a document, with a portion for each of its sources; `known` names what to skip."""

    document: Document
    portions: tuple[Portion, ...]
    known: tuple[str, ...] = ()


def news_of(document: Document, read: Iterable[Portion]) -> News:
    """The parts of a document that have not been read. Raises `DocumentError`."""
    seen: set[str] = set()
    by_path: defaultdict[str, list[Portion]] = defaultdict(list)
    for portion in read:
        seen.add(portion.sha256)
        by_path[portion.path].append(portion)
    sources: list[DocumentFile] = []
    fresh: list[Portion] = []
    known: list[str] = []
    for source in document.sources:
        path, whole, now = _path_of(source), source.size_bytes, state_of(source)
        kept = now.to_keep()
        if path and any(it.state == now for it in by_path[path]):
            known.append(source.name)
            continue
        earlier = [it for it in by_path[path] if path and it.end < whole]
        digests = prefix_digests(source, {whole, *(it.end for it in earlier)})
        grown = [it.end for it in earlier if digests.get(it.end) == it.sha256]
        start = _line_start(source, max(grown)) if grown else 0
        if digests[whole] in seen or (grown and _is_blank(source, max(grown))):
            known.append(source.name)
            continue
        seen.add(digests[whole])
        sources.append(_slice(source, start, whole))
        times = kept.mtime_ns, kept.ctime_ns
        fresh.append(Portion(source.name, path, digests[whole], start, whole, *times))
    return News(_title(document, sources), tuple(fresh), tuple(known))


def same_again(document: Document, portions: Sequence[Portion]) -> News | None:
    """The same portions again, or None if the document lacks one of them. Raises `DocumentError`."""
    by_path: defaultdict[str, list[DocumentFile]] = defaultdict(list)
    for source in document.sources:
        by_path[_path_of(source)].append(source)
    sources: list[DocumentFile] = []
    for portion in portions:
        for source in by_path[portion.path]:
            fits = source.encoding or source.size_bytes == portion.end  # what is converted is read whole
            if fits and prefix_digests(source, {portion.end}).get(portion.end) == portion.sha256:
                sources.append(_slice(source, portion.start, portion.end))
                break
        else:
            return None
    return News(_title(document, sources), tuple(portions))


def note_document(text: str) -> Document:
    """A note as a document that shows the model its date. Raises `SettingsError` for an empty note."""
    if not text.strip():
        raise SettingsError("the note is empty: write something into it")
    note = text_document(text, f"note of {datetime.now().astimezone():%Y-%m-%d}")
    return Document(note.sources, titled=True)


def _title(document: Document, sources: Sequence[DocumentFile]) -> Document:
    """A document of some sources that shows the model the name of a file even if there is only one."""
    return Document(tuple(sources), document.skipped, document.titled or any(map(_path_of, sources)))


def _path_of(source: DocumentFile) -> str:
    return os.path.realpath(source.origin) if isinstance(source.origin, Path) else ""


def _slice(source: DocumentFile, start: int, end: int) -> DocumentFile:
    if (start, end) == (0, source.size_bytes):
        return source
    rest = replace(source, start=start, size_bytes=end - start, beginning=None)
    if not start:
        return rest
    before = characters_of(replace(source, size_bytes=start, beginning=None))
    rest = replace(rest, characters_before=before, title=f"{source.title} (continued)")
    return replace(rest, named=False)  # it is no error if it has no new text


def _line_start(source: DocumentFile, place: int) -> int:
    """The start of the line that contains a place; 0, for the whole file, if that cannot be told."""
    if source.format not in ("text", "jsonl") or source.gzipped or source.encoding not in _UTF8:
        return 0
    before = bytes_at(source.origin, max(0, place - _MAX_LINE_BYTES), min(place, _MAX_LINE_BYTES))
    end = before.rfind(b"\n")
    return place - len(before) + end + 1 if end >= 0 else 0


def _is_blank(source: DocumentFile, place: int) -> bool:
    for start in range(place, source.size_bytes, BLOCK_BYTES):
        if bytes_at(source.origin, start, min(BLOCK_BYTES, source.size_bytes - start)).strip():
            return False
    return True
