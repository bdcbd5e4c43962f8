"""`memagent show`: print how a memory grew, from its journal."""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from memagent.reading.journal import read_lines

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show",
        help="print how the memory grew, chunk by chunk",
        description="Print a journal: what each step added to the memory (+) and removed from it (-).",
    )
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a journal, as `ask --trace` writes it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the journal to stdout. Raises `JournalError` if it is none."""
    out = Console(soft_wrap=True, highlight=False)
    memory, lines, answered = "", 0, False
    for line, _ in read_lines(options.trace):
        lines += 1
        if line["type"] == "header":
            _print_header(out, line)
        elif line["type"] == "overflow":
            out.print(Text("a chunk did not fit the model's window and was split", style="yellow"))
        elif line["type"] == "conversation":
            _print_step(out, line, memory)
            memory = line["memory"]
        else:
            answered = True
            out.print(Text(f"answer: {line['answer']}", style="bold"))
    if not lines:
        console.print(f"{options.trace} is empty", style="yellow", markup=False)
    elif not answered:
        console.print("the read is not finished: `memagent ask` with --resume goes on", style="yellow")
    return 0


def _print_header(out: Console, line: dict[str, Any]) -> None:
    out.print(Text(f"problem: {line['problem']}", style="bold"))
    budgets = ", ".join(f"{name} {value}" for name, value in line["budgets"].items())
    out.print(Text(f"document: {', '.join(line['document']['sources'])}"))
    out.print(Text(f"{line['model']}, {line['workflow']}, {budgets}\n", style="dim"))


def _print_step(out: Console, line: dict[str, Any], before: str) -> None:
    usage, cut = line["usage"], ", cut" if line["finish_reason"] == "length" else ""
    cost = f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens{cut}, {line['seconds']:.1f} s"
    if line["kind"] == "answer":
        out.print(Text(f"answering: {cost}", style="dim"))
        return
    start, end = line["span"]
    place = f"chunk {line['chunk_index'] + 1} [{start:,}, {end:,}) of {line['source']}: {cost}"
    out.print(Text(place, style="cyan"))
    changed = False
    for mark, sentence in _changes(before, line["memory"]):
        changed = True
        out.print(Text(f"  {mark} {sentence}", style="green" if mark == "+" else "red"))
    if not changed:
        out.print(Text("  unchanged", style="dim"))
    if line["enough"]:
        out.print(Text("  enough is known", style="yellow"))


def _changes(before: str, after: str) -> Iterator[tuple[str, str]]:
    """The sentences that were removed and added, in order."""
    old, new = _sentences(before), _sentences(after)
    for tag, i, j, k, m in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (("-", sentence) for sentence in old[i:j])
            yield from (("+", sentence) for sentence in new[k:m])


def _sentences(text: str) -> list[str]:
    return [json.dumps(part, ensure_ascii=False)[1:-1] for part in _SENTENCE_END.split(text) if part.strip()]
