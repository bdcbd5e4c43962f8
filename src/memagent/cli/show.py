"""`memagent show`: print how a memory grew, from its journal."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from memagent.cli.flags import PATH
from memagent.cli.messages import harmless, say, warn
from memagent.documents.opening import Document, open_document
from memagent.errors import DocumentError, JournalError
from memagent.reading.journal import read_journal
from memagent.settings import user_cache_path

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@click.command()
@click.argument("trace", type=PATH, metavar="[TRACE]", required=False)
@click.option("--chunks", is_flag=True, help="with the text of each chunk, where the document is as it was")
@click.pass_obj
def command(console: Console, trace: Path | None, chunks: bool) -> int:
    """Print what each step added to the memory (+) and removed from it (-).

    TRACE is a journal, as `ask --trace` writes it; without it, the newest one in the cache is shown.
    """
    path = trace or _newest()
    if trace is None:
        warn(console, f"journal: {path}")
    memory, lines, answered = "", 0, False
    texts: _Texts | None = None
    for line in read_journal(path):
        lines += 1
        match line["type"]:
            case "header":
                memory = line.get("memory", "")
                _print_header(line)
                texts = _texts(line, console) if chunks else None
            case "overflow":
                _print("a chunk did not fit the model's window and was split", "yellow")
            case "conversation":
                _print_step(line, memory, texts)
                memory = line["memory"]
            case "answer":
                answered = True
                _print(f"answer: {line['answer']}", "bold")
    if not lines:
        warn(console, f"{path} is empty")
    elif not answered:
        warn(console, "the read is not finished: run memagent ask with --resume to continue")
    return 0


def _newest() -> Path:
    folder = user_cache_path() / "journals"
    journals = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not journals:
        raise JournalError(f"there is no journal in {folder}: name one that ask --trace has written")
    return journals[-1]


def _print(text: str, style: str = "") -> None:
    """Print a line to stdout, in colour on a terminal."""
    out = Console(soft_wrap=True, highlight=False)
    if not out.is_terminal:
        say(text)
        return
    with out.capture() as captured:
        out.print(Text(harmless(text), style=style))
    say(captured.get().removesuffix("\n"))


def _print_header(line: Mapping[str, Any]) -> None:
    _print(f"problem: {line['problem']}", "bold")
    budgets = ", ".join(f"{name} {value}" for name, value in line["budgets"].items())
    _print(f"document: {', '.join(line['document']['sources'])}")
    _print(f"{line['model']}, {line['workflow']}, {budgets}\n", "dim")


def _print_step(line: Mapping[str, Any], before: str, texts: _Texts | None) -> None:
    usage, cut = line["usage"], ", cut" if line["finish_reason"] == "length" else ""
    cost = f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens{cut}, {line['seconds']:.1f} s"
    if line["kind"] == "answer":
        _print(f"answering: {cost}", "dim")
        return
    if line["span"] is None:
        _print(f"no chunk: {cost}", "cyan")
    else:
        start, end = line["span"]
        _print(f"chunk {line['chunk_index'] + 1} [{start:,}, {end:,}) of {line['source']}: {cost}", "cyan")
        if texts is not None:
            _print("".join(f"  | {part}\n" for part in texts.at(start, end).splitlines()).removesuffix("\n"))
    changed = False
    for mark, sentence in _changes(before, line["memory"]):
        changed = True
        _print(f"  {mark} {sentence}", "green" if mark == "+" else "red")
    if not changed:
        _print("  unchanged", "dim")
    if line["enough"]:
        _print("  enough is known", "yellow")


def _changes(before: str, after: str) -> Iterator[tuple[str, str]]:
    """The sentences that were removed and added, in order."""
    old, new = _sentences(before), _sentences(after)
    for tag, i, j, k, m in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (("-", sentence) for sentence in old[i:j])
            yield from (("+", sentence) for sentence in new[k:m])


def _sentences(text: str) -> list[str]:
    return [json.dumps(part, ensure_ascii=False)[1:-1] for part in _SENTENCE_END.split(text) if part.strip()]


class _Texts:
    """The text of a document by character spans; it holds little more than the span that is asked for."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._blocks = iter(document.blocks())
        self._held, self._start = "", 0

    def at(self, start: int, end: int) -> str:
        """The text of a span. Spans in rising order are read once."""
        if start < self._start:
            self._blocks, self._held, self._start = iter(self._document.blocks()), "", 0
        while self._start + len(self._held) < end and (block := next(self._blocks, None)) is not None:
            self._held += block[1]
            gone = min(start - self._start, len(self._held))
            self._held, self._start = self._held[gone:], self._start + gone
        return self._held[start - self._start : end - self._start]


def _texts(header: Mapping[str, Any], console: Console) -> _Texts | None:
    """The texts of a journal's document, if it is still there and the same."""
    recorded = header["document"]
    try:
        document = open_document(*recorded["sources"])
        if document.fingerprint == recorded["sha256"]:
            return _Texts(document)
        warn(console, "the document has changed since: only the places of the chunks are shown")
    except DocumentError as error:
        warn(console, f"only the places of the chunks are shown: {error}")
    return None
