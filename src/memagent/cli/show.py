"""`memagent show`: print how a memory grew, from its journal."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from memagent.cli.flags import PATH
from memagent.cli.journals import Spans, document_of, newest_journal
from memagent.cli.memories import say_changes, say_styled
from memagent.cli.messages import warn
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer, Header, Overflow
from memagent.types import Conversation


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
    spans: Spans | None = None
    for line in read_journal(path):
        lines += 1
        match line:
            case Header():
                memory = line.memory
                _print_header(line)
                document = document_of(line, console) if chunks else None
                spans = Spans(document) if document else None
            case Overflow():
                say_styled("a chunk did not fit the model's window and was split", "yellow")
            case Conversation():
                _print_step(line, memory, spans)
                memory = line.memory
            case Answer():
                answered = True
                say_styled(f"answer: {line.answer}", "bold")
    if not lines:
        warn(console, f"{path} is empty")
    elif not answered:
        warn(console, "the read is not finished: run memagent ask with --resume to continue")
    return 0


def _print_header(header: Header) -> None:
    say_styled(f"problem: {header.problem}", "bold")
    budgets = ", ".join(f"{name} {value}" for name, value in header.budgets.items())
    say_styled(f"document: {', '.join(header.sources)}")
    say_styled(f"{header.model}, {header.workflow}, {budgets}\n", "dim")


def _print_step(step: Conversation, before: str, spans: Spans | None) -> None:
    usage, cut = step.completion.usage, ", cut" if step.completion.finish_reason == "length" else ""
    cost = f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens{cut}, {step.seconds:.1f} s"
    if step.kind == "answer":
        say_styled(f"answering: {cost}", "dim")
        return
    if step.span is None or step.chunk_index is None:
        say_styled(f"no chunk: {cost}", "cyan")
    else:
        start, end = step.span
        place = f"chunk {step.chunk_index + 1} [{start:,}, {end:,}) of {step.source}"
        say_styled(f"{place}: {cost}", "cyan")
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
