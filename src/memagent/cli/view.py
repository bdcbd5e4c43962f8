"""`memagent view`: a read as one HTML file, which shows how its memory grew."""

from __future__ import annotations

import base64
import gzip
import html
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import click
from rich.console import Console

from memagent.cli.flags import PATH
from memagent.cli.journals import document_of, newest_journal
from memagent.cli.messages import say, warn
from memagent.documents.opening import Document
from memagent.errors import DocumentError, JournalError, SettingsError
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer, Header, Line, Reply, to_json
from memagent.reading.nearest import find_sources
from memagent.reading.sources import Statement, statements_of
from memagent.server.page import bound_page
from memagent.storage import write_in_place

_BEGINNING = "<!doctype html>"
_MARK = "<!-- made by memagent view -->"
_MIB = 2**20


@click.command(short_help="Make a page of a journal, to open in a browser.")
@click.argument("trace", type=PATH, metavar="[TRACE]", required=False)
@click.option("--out", type=PATH, metavar="FILE", help="where the page goes (TRACE.html)")
@click.option("--without-text", is_flag=True, help="leave the text of the document out of the page")
@click.pass_obj
def command(console: Console, trace: Path | None, out: Path | None, without_text: bool) -> int:
    """Make a page of a read: its memory step by step, each chunk beside it, and the answer's sources.

    TRACE is a journal written by `ask --trace`; the default is the newest one in the cache. The page is a
    single HTML file, which needs no server and fetches nothing. It contains the text of the document, if that
    is unchanged.
    """
    path = trace or newest_journal(console)
    out = out or Path(f"{path.stem}.html")
    _check_ours(out)
    header = next(read_journal(path), None)
    if not isinstance(header, Header):
        raise JournalError(f"{path} is empty")
    document = None if without_text else document_of(header, console)
    with write_in_place(out) as place, place.open("wb") as file:
        _write(file, path, document)
    say(str(out))
    warn(console, f"{out.stat().st_size / _MIB:.1f} MiB; open it in a browser")
    return 0


def _check_ours(out: Path) -> None:
    """Raise `SettingsError` rather than overwrite a file that this command did not make."""
    if not out.exists():
        return
    with out.open("rb") as file:
        ours = file.read(len(_BEGINNING + _MARK)) == (_BEGINNING + _MARK).encode()
    if not ours:
        raise SettingsError(f"{out} exists and is not a page of memagent: name another file with --out")


def _write(file: IO[bytes], path: Path, document: Document | None) -> None:
    head, tail = bound_page()
    file.write(head.replace(_BEGINNING, _BEGINNING + _MARK, 1).encode())
    name = html.escape(path.name, quote=True)
    file.write(
        f'<script type="text/plain" id="embedded-journal" data-name="{name}">'.encode("utf-8", "replace")
    )
    _pack(file, (json.dumps(to_json(it)).encode() + b"\n" for it in _tell(path, document)))
    file.write(b"</script>\n")
    if document:
        file.write(b'<script type="text/plain" id="embedded-text">')
        _pack(file, (block.text.encode("utf-8", "replace") for block in document.blocks()))
        file.write(b"</script>\n")
    file.write(tail.encode())


def _pack(file: IO[bytes], pieces: Iterable[bytes]) -> None:
    with tempfile.TemporaryFile() as whole:
        with gzip.GzipFile(fileobj=whole, mode="wb", compresslevel=6, mtime=0) as packed:
            packed.writelines(pieces)
        whole.seek(0)
        while block := whole.read(3 * _MIB):
            file.write(base64.b64encode(block))


def _tell(path: Path, document: Document | None) -> Iterator[Line]:
    """The lines of a journal that the page shows; the answer has its sources if there is a text to show."""
    header: Header | None = None
    for line in read_journal(path):
        match line:
            case Header():
                header = line
                yield line
            case Answer() if not document:
                yield replace(line, statements=None)
            case Answer(found=True, statements=None) if header and document:
                yield replace(line, statements=_find_sources(line.answer, header, document))
            case Reply():
                continue
            case _:
                yield line


def _find_sources(answer: str, header: Header, document: Document) -> tuple[Statement, ...]:
    """The statements of an answer whose sources were not looked for when it was made."""
    bare = [Statement(it, None) for it in statements_of(answer)]
    try:
        return find_sources(bare, header.problem, document, header.budgets["chunk_tokens"])
    except DocumentError as error:
        raise DocumentError(f"{error}; --without-text leaves the text out of the page") from error
