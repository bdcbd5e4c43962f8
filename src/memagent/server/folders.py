"""The folders that a user opened to an assistant: only files really inside them can be read. Blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memagent.documents.opening import Document, open_document
from memagent.documents.paths import shown, unreadable
from memagent.errors import DocumentError, SettingsError


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders with their symbolic links resolved; made by `resolve_folders`."""

    paths: tuple[Path, ...]

    def open(self, paths: Sequence[str]) -> Document:
        """Files and folders as one document. Raises `DocumentError` for what is not in the folders."""
        if not paths:
            raise DocumentError(f"what should be read? name files or folders in {self}")
        return open_document(*dict.fromkeys(map(self._real, paths)))

    def _real(self, path: str) -> Path:
        """Resolve a path, which must lead into one of the folders; a relative one starts there."""
        given = Path(path)
        if not path.strip() or "\0" in path or ".." in given.parts:
            raise DocumentError(f"'{shown(path)}' is refused: name a file or folder in {self}, without ..")
        found = False
        for folder in self.paths:
            real = Path(os.path.realpath(folder / given))  # which is `given` if that is absolute
            if not any(real.is_relative_to(it) for it in self.paths):
                continue
            found = True
            try:
                if real.exists():
                    return real
            except OSError as error:  # too long a name, or a folder that is closed to us
                raise unreadable(shown(path), error) from error
        if found:
            raise DocumentError(f"there is no file {shown(path)} in {self}")
        raise DocumentError(f"{shown(path)} is refused: it leads out of {self}")

    def __str__(self) -> str:
        return ", ".join(shown(path) for path in self.paths)


def resolve_folders(paths: Sequence[Path]) -> Folders:
    """Resolve folders. Raises `SettingsError` if there are none, or if a path is not a folder."""
    if not paths:
        raise SettingsError("which files may be read? name the folders that hold them with `folders`")
    for path in paths:
        if not path.is_dir():
            raise SettingsError(f"`folders` names {path}, which is not a folder: name one that exists")
    return Folders(tuple(Path(os.path.realpath(path)) for path in paths))
