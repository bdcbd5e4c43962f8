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
from memagent.cli.journals import DocumentText, document_text, newest_journal
from memagent.cli.messages import harmless, say, warn
from memagent.reading.journal import read_journal

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@click.command(short_help="Show how the memory of a read grew.")
@click.argument("trace", type=PATH, metavar="[TRACE]", required=False)
@click.option("--chunks", is_flag=True, help="with the text of each chunk, where the document is as it was")
@click.pass_obj
def command(console: Console, trace: Path | None, chunks: bool) -> int:
    """Print what each step added to the memory (+) and removed from it (-).

    TRACE is a journal, as `ask --trace` writes it; without it, the newest one in the cache is shown.
    """
    path = trace or newest_journal()
    if trace is None:
        warn(console, f"journal: {path}")
    memory, lines, answered = "", 0, False
    texts: DocumentText | None = None
    for line in read_journal(path):
        lines += 1
        match line["type"]:
            case "header":
                memory = line.get("memory", "")
                _print_header(line)
                texts = document_text(line, console) if chunks else None
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


def _print_step(line: Mapping[str, Any], before: str, texts: DocumentText | None) -> None:
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
            _print(
                "".join(f"  | {part}\n" for part in texts.at(start, end).text.splitlines()).removesuffix("\n")
            )
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
