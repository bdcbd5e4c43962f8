"""Documents that the server reads: what clients send, and files in folders that the user opened. Blocks."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from memagent.concurrency import in_thread
from memagent.documents.files import DocumentFile, look_at
from memagent.documents.opening import Document, open_document
from memagent.documents.paths import escape_path, read_error
from memagent.errors import DocumentError, SettingsError
from memagent.storage import write_in_place

_MAX_NAME_CHARACTERS = 200
_MAX_SUFFIX_CHARACTERS = 8
_TEXT = "text"


@dataclass(frozen=True, slots=True)
class StoredContent:
    """A document that the store has already: a file, or a text, which `keep` has named as one."""

    path: Path


Content = str | bytes | StoredContent | Path
"""A text, the bytes of a file, what the store has already, or a file that stays where the user has it."""


def clean_name(name: str | None) -> str:
    """Make a file's name fit to be shown: one line, without folders, not too long."""
    last = re.split(r"[/\\]", name or "")[-1]
    printable = "".join(character if character.isprintable() else " " for character in last)
    return printable[-_MAX_NAME_CHARACTERS:].strip() or "file"


def suffix_of(name: str) -> str:
    """The suffix of a name, in lower case; "" if it cannot be a file's suffix."""
    suffix = Path(name).suffix[1:].lower()
    fits = suffix.isascii() and suffix.isalnum() and len(suffix) <= _MAX_SUFFIX_CHARACTERS
    return f".{suffix}" if fits else ""


def keep(content: Content, folder: Path, number: int, name: str) -> str:
    """Keep a document in the folder of its read, and return its path there; a user's path stays as it is."""
    if isinstance(content, Path):
        return str(content)
    is_text = isinstance(content, str) or (
        isinstance(content, StoredContent) and content.path.name.startswith(_TEXT)
    )
    path = folder / (f"{_TEXT}{number}" if is_text else f"{number}{suffix_of(name)}")
    if isinstance(content, StoredContent):
        with suppress(OSError):  # not every disk has links
            os.link(content.path, path)
            return path.name
    with write_in_place(path) as temporary:
        if isinstance(content, StoredContent):
            shutil.copyfile(content.path, temporary)
        else:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return path.name


def open_stored(folder: Path, documents: Sequence[Sequence[str]]) -> Document:
    """Open the documents of a read, given by their paths and names, as one. Raises `DocumentError`.

    The format is that of the name that the client gave; a text is plain text, whatever it begins with. Those
    of the same name are numbered, so each name means one file.
    """
    sources: dict[str, DocumentFile] = {}
    numbers = Counter[str]()
    for path, given in documents:
        name = given
        while name in sources:
            numbers[given] += 1
            name = f"({numbers[given] + 1}) {given}"
        source = (_open_text if path.startswith(_TEXT) else look_at)(folder / path, given, named=True)
        sources[name] = source if name == given else replace(source, name=name, title=name)
    return Document(tuple(sources.values()))


def _open_text(path: Path, name: str, named: bool) -> DocumentFile:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise read_error(name, error) from error
    return DocumentFile(name, path, "text", "utf-8", size, title=name, named=named)


async def encode_text(document: Document) -> AsyncGenerator[bytes, None]:
    """Yield the text, which ends with the reason where a later file cannot be read: a read ends there too."""
    has_begun = False
    with closing(document.blocks()) as blocks:
        try:
            async for block in in_thread(blocks, blocks.may_convert):
                yield block.text.encode("utf-8", "replace")
                has_begun = True
        except DocumentError as error:
            if not has_begun:
                raise
            yield f"\n\n[The text ends here: {error}]\n".encode("utf-8", "replace")


class Folders:
    """The folders that a user opened to an assistant, of which only files really inside them can be read.

    Raises `SettingsError` if there are none, or if a path is not a folder.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        if not paths:
            raise SettingsError("which files may be read? name the folders that hold them with `folders`")
        for path in paths:
            if not path.is_dir():
                raise SettingsError(f"`folders` names {path}, which is not a folder: name one that exists")
        self.paths = [Path(os.path.realpath(path)) for path in paths]

    def open(self, paths: Sequence[str]) -> Document:
        """Files and folders as one document. Raises `DocumentError` for what is not in the folders."""
        if not paths:
            raise DocumentError(f"what should be read? name files or folders in {self}")
        return open_document(*dict.fromkeys(map(self._real, paths)))

    def _real(self, path: str) -> Path:
        """Resolve a path, which must lead into one of the folders; a relative one starts there."""
        given = Path(path)
        if not path.strip() or "\0" in path or ".." in given.parts:
            raise DocumentError(
                f"'{escape_path(path)}' is refused: name a file or folder in {self}, without .."
            )
        targets = [Path(os.path.realpath(folder / given)) for folder in self.paths]  # `given` if absolute
        inside = [target for target in targets if any(target.is_relative_to(folder) for folder in self.paths)]
        if not inside:
            raise DocumentError(f"{escape_path(path)} is refused: it leads out of {self}")
        try:
            for target in inside:
                if target.exists():
                    return target
        except OSError as error:  # too long a name, or a folder that may not be read
            raise read_error(escape_path(path), error) from error
        raise DocumentError(f"there is no file {escape_path(path)} in {self}")

    def __str__(self) -> str:
        return ", ".join(escape_path(path) for path in self.paths)
