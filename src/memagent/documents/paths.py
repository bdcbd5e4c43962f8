"""Find the files that a path, a directory or a pattern stands for.

A link that is named is followed. Inside a directory, links that lead out of it are left out unless asked
for, and no folder is walked twice, so that loops end.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, NamedTuple
from unicodedata import category

from memagent.errors import DocumentError, reason

_LIKE_ESCAPE = re.compile(r"\\(?=[\\xuUtnr]|[^ -~])")
_ESCAPE = re.compile(r"\\(?:[\\tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4})")
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]+://|https?:/")
_NUMBER = re.compile(r"(\d+)")


class MatchedFile(NamedTuple):
    """A file, and whether it was named (itself or by a pattern) rather than found in a directory.

    `refusal` says why the file must not be read; it is empty if it may be.
    """

    path: Path
    named: bool
    refusal: str = ""


def find_files(path: str | os.PathLike[str], follow_links: bool) -> Iterator[MatchedFile]:
    """The files that a path stands for.

    Raises `DocumentError` for an invalid path, a URL, and a pattern that matches nothing.
    """
    text = os.fspath(path)
    given = Path(path)
    if not text or "\0" in text:
        raise DocumentError(f"'{escape_path(path)}' is not a path: name a file, a directory, a pattern or -")
    try:
        if given.is_dir():
            yield from _walk(given, follow_links)
        elif given.exists():
            yield MatchedFile(given, named=True)
        elif _URL.match(text):
            raise DocumentError(f"{escape_path(path)} is a URL: download it first, and name the file")
        elif glob.has_magic(text):
            yield from _match_files(given, follow_links)
        else:
            yield MatchedFile(given, named=True)
    except OSError as error:
        raise read_error(escape_path(path), error) from error


def keep_input() -> IO[bytes]:
    """Standard input, copied to an unnamed file that vanishes with the process. Raises `DocumentError`."""
    if sys.stdin is None:
        raise DocumentError("stdin is closed: pipe text into it, or name a file")
    try:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 the document keeps it
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
    except OSError as error:
        raise DocumentError(
            f"stdin cannot be stored while it is read: {reason(error)}; "
            "set TMPDIR to a folder with free space"
        ) from error
    return copy


def escape_path(path: str | os.PathLike[str]) -> str:
    r"""A path for people and for JSON: unprintable characters but spaces, and lone surrogates, are escaped.

    No two paths become the same text: a backslash before what could be an escape is doubled.
    """
    text = _LIKE_ESCAPE.sub(r"\\\\", os.fspath(path))
    return "".join(
        character if character.isprintable() or category(character) == "Zs" else ascii(character)[1:-1]
        for character in text
    )


def unescape_path(text: str) -> str:
    """The path that `escape_path` made this text of."""
    return _ESCAPE.sub(lambda match: match[0].encode().decode("unicode_escape"), text)


def read_error(name: str, error: OSError) -> DocumentError:
    """The error for a file that the operating system fails to read."""
    return DocumentError(f"{name} cannot be read: {reason(error)}")


def natural(path: str | os.PathLike[str]) -> tuple[list[list[str | int]], str]:
    """The key that sorts paths as people number them, folder by folder: contract2 before contract10."""
    text = os.fspath(path)
    parts = [_NUMBER.split(part) for part in Path(text).parts]
    return [[int(piece) if piece.isdecimal() else piece for piece in part] for part in parts], text


def _walk(top: Path, follow_links: bool, hidden: bool = False) -> Iterator[MatchedFile]:
    """The files below a directory, in natural order, by default no hidden ones; then unlistable folders."""
    closed: list[Path] = []
    inside = _real(top)
    walked: set[Path] = set()
    for folder, subfolders, names in os.walk(
        top, onerror=lambda error: closed.append(Path(error.filename)), followlinks=follow_links
    ):
        real = _real(Path(folder))
        if real in walked:
            subfolders.clear()
            continue
        walked.add(real)
        links = () if follow_links else [name for name in subfolders if Path(folder, name).is_symlink()]
        visible = (name for name in subfolders if hidden or not name.startswith("."))
        subfolders[:] = sorted(visible, key=natural)
        for name in sorted({*names, *links}, key=natural):
            path = Path(folder, name)
            if name.startswith(".") and not hidden:
                continue
            if path.is_symlink() and not follow_links and not _real(path).is_relative_to(inside):
                refusal = (
                    f"{escape_path(path)} is a link that leads out of {escape_path(top)}: set `follow_links`"
                )
                yield MatchedFile(path, named=False, refusal=refusal)
            elif name not in links:
                yield MatchedFile(path, named=False)
    yield from (MatchedFile(path, named=False) for path in closed)


def _real(path: Path) -> Path:
    """Where a path leads; unlike `Path.resolve`, this does not fail on a loop of links."""
    return Path(os.path.realpath(path))


def _match_files(pattern: Path, follow_links: bool) -> Iterator[MatchedFile]:
    """The files that match a pattern, in natural order."""
    parts = pattern.parts
    if "**" in parts:
        index = parts.index("**")
        tops = glob.glob(str(Path(*parts[:index]))) if index else ["."]  # noqa: PTH207
        rest = parts[index:]
        hidden = any(part.startswith(".") for part in rest)
        entries = [
            (file if index else MatchedFile(Path(os.path.relpath(file.path)), *file[1:]))
            for top in tops
            for file in _walk(Path(top), follow_links, hidden)
            if _matches(file.path.relative_to(top).parts, rest)
        ]
        files = [file if file.refusal else file._replace(named=True) for file in entries]
    else:
        files = [MatchedFile(Path(match), named=True) for match in glob.glob(str(pattern))]  # noqa: PTH207
    if not files:
        raise DocumentError(f"no file matches {escape_path(pattern)}")
    files.sort(key=lambda file: natural(file.path))
    yield from (file for file in files if not file.path.is_dir())


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern with `**`, name by name; wildcards do not match hidden names."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        swallowed = next((n for n, name in enumerate(names) if name.startswith(".")), len(names))
        return any(_matches(names[skip:], pattern[1:]) for skip in range(swallowed + 1))
    if not names or (names[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])
