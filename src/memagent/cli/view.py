"""`memagent view`: a read as one HTML file, which shows how its memory grew."""

from __future__ import annotations

import base64
import gzip
import html
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console

from memagent.cli.flags import PATH
from memagent.cli.journals import DocumentText, document_text, newest_journal
from memagent.cli.messages import say, warn
from memagent.documents.chunking import split
from memagent.documents.tokens import estimate_tokens
from memagent.errors import DocumentError, JournalError, SettingsError
from memagent.evaluation.retention import NOTES_APART
from memagent.reading.journal import read_journal
from memagent.reading.sources import Provenance, Sources, Statement, located, statements_of
from memagent.reading.workflows import workflows
from memagent.server.page import bound_page
from memagent.storage import written_whole
from memagent.types import Completion, Conversation

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
    if header is None:
        raise JournalError(f"{path} is empty")
    text = None if without_text else document_text(header, console)
    with written_whole(out) as place, place.open("wb") as file:
        _write(file, path, text)
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


def _write(file: IO[bytes], path: Path, text: DocumentText | None) -> None:
    head, tail = bound_page()
    file.write(head.replace(_BEGINNING, _BEGINNING + _MARK, 1).encode())
    name = html.escape(path.name, quote=True)
    file.write(
        f'<script type="text/plain" id="embedded-journal" data-name="{name}">'.encode("utf-8", "replace")
    )
    _pack(file, (json.dumps(line).encode() + b"\n" for line in _told(path, text)))
    file.write(b"</script>\n")
    if text:
        file.write(b'<script type="text/plain" id="embedded-text">')
        _pack(file, (block.text.encode("utf-8", "replace") for block in text.document.blocks()))
        file.write(b"</script>\n")
    file.write(tail.encode())


def _pack(file: IO[bytes], pieces: Iterable[bytes]) -> None:
    """Write bytes compressed with gzip and encoded in base64."""
    with tempfile.TemporaryFile() as whole:
        with gzip.GzipFile(fileobj=whole, mode="wb", compresslevel=6, mtime=0) as packed:
            packed.writelines(pieces)
        whole.seek(0)
        while block := whole.read(3 * _MIB):
            file.write(base64.b64encode(block))


def _told(path: Path, text: DocumentText | None) -> Iterator[dict[str, Any]]:
    """The lines of a journal that the page shows, and the sources of the answer."""
    answer = None
    for line in read_journal(path):
        if line["type"] != "reply":
            yield line
        if line["type"] == "answer" and line.get("found", True):
            answer = line["answer"]
    if text and answer is not None:
        yield {"type": "statements", "statements": _sourced(path, text, answer)}


def _sourced(path: Path, text: DocumentText, answer: str) -> list[dict[str, Any]]:
    """The statements of the answer with their sources, each with its place in the whole document (`at`)."""
    try:
        statements = _statements(path, text, answer)
    except DocumentError as error:
        raise DocumentError(f"{error}; --without-text leaves the text out of the page") from error
    offsets = _offsets(text)
    told = [asdict(it) for it in statements]
    for source in filter(None, (it["source"] for it in told)):
        source["at"] = offsets[source["file"]] + source["start"]
    return told


def _offsets(text: DocumentText) -> dict[str, int]:
    """Where each file's text begins in the document."""
    offsets: dict[str, int] = {}
    end = 0
    for block in text.document.blocks():
        offsets.setdefault(block.source.name, end)
        end += len(block.text)
    return offsets


def _statements(path: Path, text: DocumentText, answer: str) -> tuple[Statement, ...]:
    """Find the statements as a read with `cite` does, but only look for those in the last memory."""
    header = next(read_journal(path))
    workflow = workflows().get(header["workflow"])
    if workflow and workflow.provenance:
        return _told_by_memory(path, workflow.provenance(), answer)
    provenance = Provenance()
    if header["workflow"] not in NOTES_APART:
        for line, brought in _bringing(path):
            start, end = line["span"]
            provenance.chunk(text.at(start, end, line["chunk_index"]))
            provenance.update(_conversation(line, "\n".join(brought)))
    if provenance.memory:
        return provenance.answer(answer)
    bare = [Statement(it, None) for it in statements_of(answer)]
    chunk_tokens = header["budgets"]["chunk_tokens"]
    return located(bare, split(text.document, chunk_tokens, estimate_tokens))


def _told_by_memory(path: Path, provenance: Sources, answer: str) -> tuple[Statement, ...]:
    """The statements of an answer from a memory that names its sources itself."""
    for line in read_journal(path):
        if line["type"] == "conversation" and line["span"] is not None:
            provenance.update(_conversation(line, line["memory"]))
    return provenance.answer(answer)


def _bringing(path: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The steps that introduced statements of the last memory, each with those introduced so far."""
    first: dict[str, int] = {}
    lines: dict[int, dict[str, Any]] = {}
    memory, last = None, list[str]()
    for number, line in enumerate(read_journal(path)):
        if line["type"] != "conversation" or line["span"] is None or line["memory"] == memory:
            continue
        memory = line["memory"]
        last = statements_of(memory)
        for statement in last:
            if statement not in first:
                first[statement] = number
                lines[number] = {**line, "memory": ""}
    numbers = sorted({first[it] for it in last})
    for number in numbers:
        yield lines[number], [it for it in last if first[it] <= number]


def _conversation(line: dict[str, Any], memory: str) -> Conversation:
    return Conversation(
        kind="update",
        chunk_index=line["chunk_index"],
        messages=(),
        completion=Completion(""),
        memory=memory,
        span=(line["span"][0], line["span"][1]),
        source=line["source"],
    )
