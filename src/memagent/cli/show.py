"""`memagent show`: print how a memory grew, from its journal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from memagent.cli.flags import PATH
from memagent.cli.journals import DocumentText, document_text, newest_journal
from memagent.cli.memories import say_changes, say_styled
from memagent.cli.messages import warn
from memagent.reading.journal import read_journal


@click.command(short_help="Show how the memory of a read grew.")
@click.argument("trace", type=PATH, metavar="[TRACE]", required=False)
@click.option(
    "--chunks", is_flag=True, help="also print the text of each chunk, if the document is unchanged"
)
@click.pass_obj
def command(console: Console, trace: Path | None, chunks: bool) -> int:
    """Print what each step added to the memory (+) and removed from it (-).

    TRACE is a journal written by `ask --trace`; the default is the newest one in the cache.
    """
    path = trace or newest_journal(console)
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
                say_styled("a chunk did not fit the model's window and was split", "yellow")
            case "conversation":
                _print_step(line, memory, texts)
                memory = line["memory"]
            case "answer":
                answered = True
                say_styled(f"answer: {line['answer']}", "bold")
    if not lines:
        warn(console, f"{path} is empty")
    elif not answered:
        warn(console, "the read is not finished: run memagent ask with --resume to continue")
    return 0


def _print_header(line: Mapping[str, Any]) -> None:
    say_styled(f"problem: {line['problem']}", "bold")
    budgets = ", ".join(f"{name} {value}" for name, value in line["budgets"].items())
    say_styled(f"document: {', '.join(line['document']['sources'])}")
    say_styled(f"{line['model']}, {line['workflow']}, {budgets}\n", "dim")


def _print_step(line: Mapping[str, Any], before: str, texts: DocumentText | None) -> None:
    usage, cut = line["usage"], ", cut" if line["finish_reason"] == "length" else ""
    cost = f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens{cut}, {line['seconds']:.1f} s"
    if line["kind"] == "answer":
        say_styled(f"answering: {cost}", "dim")
        return
    if line["span"] is None:
        say_styled(f"no chunk: {cost}", "cyan")
    else:
        start, end = line["span"]
        place = f"chunk {line['chunk_index'] + 1} [{start:,}, {end:,}) of {line['source']}"
        say_styled(f"{place}: {cost}", "cyan")
        if texts is not None:
            say_styled(
                "".join(f"  | {part}\n" for part in texts.at(start, end).text.splitlines()).removesuffix("\n")
            )
    if line.get("unused"):
        say_styled("  asked ahead, not used: the memory has changed since", "dim")
        return
    if not say_changes(before, line["memory"], "  "):
        ignored = " ".join(line.get("ignored", "").split())
        say_styled(f"  unchanged: {ignored!r}" if ignored else "  unchanged", "dim")
    if line["enough"]:
        say_styled("  enough is known", "yellow")
