"""`memagent show` and `memagent view`: how a memory grew, from a journal, on the terminal or as a page."""

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

from memagent.cli.flags import PATH
from memagent.cli.follow_up import header_of, newest_journal, reopen
from memagent.cli.messages import say, say_changes, say_styled, warn
from memagent.cli.progress import describe_verdict
from memagent.documents.opening import Document
from memagent.errors import DocumentError, SettingsError
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer, Header, Line, Overflow, RecordedReply, to_json
from memagent.reading.locating import find_sources
from memagent.reading.sources import Statement, statements_of
from memagent.server.page import bound_page
from memagent.storage import write_in_place
from memagent.types import Conversation

_ENCODING, _BYTES = "utf-32-le", 4  # a character
_BEGINNING = "<!doctype html>"
_OURS = (_BEGINNING + "<!-- made by memagent view -->").encode()  # so that no other file is overwritten
_MIB = 2**20

_trace = click.argument("trace", type=PATH, metavar="[TRACE]", required=False)


class Spans:
    """The text of a document by character span, in a file, since it may be large."""

    def __init__(self, document: Document) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this does
        for block in document.blocks():
            self._file.write(block.text.encode(_ENCODING, "surrogatepass"))

    def text(self, start: int, end: int) -> str:
        """The characters from `start` to `end`."""
        self._file.seek(_BYTES * start)
        return self._file.read(_BYTES * (end - start)).decode(_ENCODING, "surrogatepass")


@click.command(short_help="Show how the memory of a read grew.")
@_trace
@click.option(
    "--chunks", is_flag=True, help="also print the text of each chunk, if the document is unchanged"
)
def show(trace: Path | None, chunks: bool) -> None:
    """Print what each step added to the memory (+) and removed from it (-).

    TRACE is a journal written by `ask --trace`; the default is the newest one in the cache.
    """
    path = trace or newest_journal()
    memory, answered, line = "", False, None
    spans: Spans | None = None
    for line in read_journal(path):
        match line:
            case Header():
                memory = line.memory
                say_styled(f"problem: {line.problem}", "bold")
                budgets = ", ".join(f"{name} {value}" for name, value in line.budgets.items())
                say_styled(f"document: {', '.join(line.sources)}")
                say_styled(f"{line.model}, {line.workflow}, {budgets}\n", "dim")
                document = _document_of(line) if chunks else None
                spans = Spans(document) if document else None
            case Overflow():
                say_styled("a chunk did not fit the model's window and was split", "yellow")
            case Conversation():
                _print_step(line, memory, spans)
                memory = line.memory
            case Answer():
                answered = True
                say_styled(f"answer: {line.answer}", "bold")
    if line is None:
        warn(f"{path} is empty")
    elif not answered:
        warn("the read is not finished: run memagent ask with --resume to continue")


def _print_step(step: Conversation, before: str, spans: Spans | None) -> None:
    usage, cut = step.completion.usage, ", cut" if step.completion.finish_reason == "length" else ""
    tokens = f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens{cut}"
    cost = f"{tokens}, {step.seconds:.1f} s{describe_verdict(step)}"
    if step.kind == "answer":
        say_styled(f"answering: {cost}", "dim")
        return
    if step.span is None or step.chunk_index is None:
        say_styled(f"no chunk: {cost}", "cyan")
    else:
        start, end = step.span
        label = f"chunk {step.chunk_index + 1} [{start:,}, {end:,}) of {step.source}"
        say_styled(f"{label}: {cost}", "cyan")
        if spans is not None:
            say_styled("\n".join(f"  | {part}" for part in spans.text(start, end).splitlines()))
    if step.unused:
        say_styled("  asked ahead, not used: the memory has changed since", "dim")
        return
    if not say_changes(before, step.memory, "  "):
        ignored = " ".join(step.ignored.split())
        say_styled(f"  unchanged: {ignored!r}" if ignored else "  unchanged", "dim")
    if step.enough:
        say_styled("  enough is known", "yellow")


@click.command(short_help="Make a page of a journal, to open in a browser.")
@_trace
@click.option("--out", type=PATH, metavar="FILE", help="where the page goes (TRACE.html)")
@click.option("--without-text", is_flag=True, help="leave the text of the document out of the page")
def view(trace: Path | None, out: Path | None, without_text: bool) -> None:
    """Make a page of a read: its memory step by step, each chunk beside it, and the answer's sources.

    TRACE is a journal written by `ask --trace`; the default is the newest one in the cache. The page is a
    single HTML file, which needs no server and fetches nothing. It contains the text of the document, if that
    is unchanged.
    """
    path = trace or newest_journal()
    out = out or Path(f"{path.stem}.html")
    if out.exists():
        with out.open("rb") as file:
            if file.read(len(_OURS)) != _OURS:
                raise SettingsError(
                    f"{out} exists and is not a page of memagent: name another file with --out"
                )
    header = header_of(path)
    document = None if without_text else _document_of(header)
    with write_in_place(out) as temporary, temporary.open("wb") as file:
        _write(file, path, document)
    say(str(out))
    warn(f"{out.stat().st_size / _MIB:.1f} MiB; open it in a browser")


def _write(file: IO[bytes], path: Path, document: Document | None) -> None:
    head, tail = bound_page()
    file.write(_OURS + head.removeprefix(_BEGINNING).encode())
    script = f'<script type="text/plain" id="embedded-journal" data-name="{html.escape(path.name)}">'
    file.write(script.encode("utf-8", "replace"))
    _pack(file, (json.dumps(to_json(line)).encode() + b"\n" for line in _tell(path, document)))
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
            case RecordedReply():
                continue
            case _:
                yield line


def _find_sources(answer: str, header: Header, document: Document) -> tuple[Statement, ...]:
    """The statements of an answer with their sources, which were not looked for when it was made."""
    bare = [Statement(text, None) for text in statements_of(answer)]
    try:
        return find_sources(bare, header.problem, document, header.budgets["chunk_tokens"])
    except DocumentError as error:
        raise DocumentError(f"{error}; --without-text leaves the text out of the page") from error


def _document_of(header: Header) -> Document | None:
    """A journal's document; if it is missing or has changed, None and a warning."""
    try:
        if document := reopen(header):
            return document
        warn("the document has changed since: only the places of the chunks are shown")
    except DocumentError as error:
        warn(f"only the places of the chunks are shown: {error}")
    return None
