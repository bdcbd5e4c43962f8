"""`memagent text`, and dry runs of `ask`: what a model would be shown, and what it would cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby, repeat

import click

from memagent.cli.flags import complete_files, tokenizer_flag
from memagent.cli.messages import describe, print_text, say, say_json, warn_left_out, warn_undecoded
from memagent.cli.models import open_to_count
from memagent.documents.chunking import split
from memagent.documents.opening import Document, open_document
from memagent.reading.api import forecast
from memagent.reading.budgets import MIN_CHUNK_TOKENS, Budgets
from memagent.reading.workflows import choose_workflow
from memagent.settings import Settings
from memagent.types import ESTIMATE, Chunk, Spent, TokenCounter


@click.command(short_help="Print what a model is shown of documents.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=complete_files)
@click.option("--chunks", is_flag=True, help="also say where each chunk begins, and show repeated heads")
@click.option("--chunk-tokens", type=click.IntRange(MIN_CHUNK_TOKENS), default=Budgets().chunk_tokens,
              show_default=True, metavar="N", help="the size of a chunk")  # fmt: skip
@tokenizer_flag
@click.option("--follow-links", is_flag=True, help="also read files outside a folder that are linked from it")
def text(
    paths: tuple[str, ...], chunks: bool, chunk_tokens: int, count_tokens: TokenCounter, follow_links: bool
) -> None:
    """Print the text of files or folders as a model is shown it, without asking one.

    A read with another model may cut its chunks elsewhere: their size is counted with its own tokenizer.
    """
    document = open_document(*paths, follow_links=follow_links)
    blocks = document.blocks()
    if chunks:
        for chunk in split(blocks, chunk_tokens, count_tokens):
            say(_border(chunk))
            print_text(chunk.shown if chunk.shown.endswith("\n") else chunk.shown + "\n")
    else:
        several, last = len(document.sources) > 1, "\n"
        for name, of_file in groupby(blocks, key=lambda block: block.source.name):
            if several:
                say(f"=== {name} ===" if last.endswith("\n") else f"\n=== {name} ===")
            for block in of_file:
                print_text(last := block.text)
    warn_left_out((*document.skipped, *blocks.skipped))
    warn_undecoded(blocks.replaced)


def _border(chunk: Chunk) -> str:
    """The line above a chunk: its number, its characters and its size."""
    sources = ", ".join(dict.fromkeys(part.source for part in chunk.parts))
    pages = [part.page for part in chunk.parts if part.page]
    on = f", pages {pages[0]} to {pages[-1]}" if len(pages) > 1 else f", page {pages[0]}" if pages else ""
    span = f"characters {chunk.start:,} to {chunk.end:,}"
    return f"=== chunk {chunk.index + 1}: {sources}{on}, {span}, {chunk.tokens:,} tokens ==="


async def dry_run_questions(
    questions: Sequence[str], document: Document, settings: Settings, as_json: bool
) -> tuple[str, ...]:
    """Print the files, the chunks, and the cost of all questions; return the files left out.

    An endpoint is asked for its window; a local model is loaded to count with; where there is neither, tokens
    are estimated. Raises `MemAgentError`.
    """
    blocks = document.blocks()
    characters: Counter[str] = Counter()

    def count_characters() -> None:
        for block in blocks:
            characters[block.source.name] += len(block.text)

    await asyncio.to_thread(count_characters)
    async with open_to_count(settings.engine) as engine:
        model = engine.model
        chosen, workflow = choose_workflow(settings.read, model.trained)
        longest = await asyncio.to_thread(lambda: max(questions, key=model.count_tokens))
        # The longest question stands for all, unless each has passages of its own.
        times = Counter(questions) if workflow.selects else {longest: len(questions)}
        most = Spent()
        for question, count in times.items():
            read = await forecast(question, document, model, settings.read)
            most = sum(repeat(read.spent, count), most)
    estimated = model.tokenizer == ESTIMATE
    if as_json:
        say_json(
            {
                "files": [{"name": name, "characters": count} for name, count in characters.items()],
                "model": model.name,
                "window_tokens": model.window_tokens,
                "workflow": chosen,
                "questions": len(questions),
                "chunks": read.chunks,
                "document_tokens": read.document_tokens,
                **asdict(most),
                "estimated": estimated,
            }
        )
        return blocks.skipped
    for name, count in characters.items():
        say(f"{name}: {count:,} characters of text")
    window = (
        f"{model.window_tokens:,} tokens" if model.window_tokens else "unknown: the endpoint does not say"
    )
    say(f"model: {model.name}, window {window}")
    chunks = "1 chunk" if read.chunks == 1 else f"{read.chunks:,} chunks"
    say(f"workflow: {chosen}, {chunks}, {read.document_tokens:,} tokens")
    say("\n".join(describe_bound(most, " for all questions" if len(questions) > 1 else "", estimated)))
    max_calls = settings.read.max_calls
    if max_calls and most.calls > max_calls * len(questions):
        say(f"--max-calls {max_calls} may stop it")
    return blocks.skipped


def describe_bound(most: Spent, for_all: str, estimated: bool) -> Iterator[str]:
    """Describe a bound, in lines."""
    calls = "1 call" if most.calls == 1 else f"{most.calls:,} calls"
    yield f"at most{for_all}: {calls}, {describe(most)}"
    if estimated:
        yield (
            "token counts are estimates (--tokenizer names the model's own): chunks that prove too long for "
            "the window take more calls"
        )
