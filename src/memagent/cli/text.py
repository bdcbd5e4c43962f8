"""`memagent text`: what a model is shown of documents."""

from __future__ import annotations

import click

from memagent.cli.flags import complete_files, tokenizer_flag
from memagent.cli.messages import print_text, say, warn_left_out
from memagent.documents.chunking import split
from memagent.documents.opening import open_document
from memagent.reading.budgets import MIN_CHUNK_TOKENS, Budgets
from memagent.types import Chunk, TokenCounter


@click.command(short_help="Print what a model is shown of documents.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=complete_files)
@click.option("--chunks", is_flag=True, help="also say where each chunk begins, and show repeated heads")
@click.option("--chunk-tokens", type=click.IntRange(MIN_CHUNK_TOKENS), default=Budgets().chunk_tokens,
              show_default=True, metavar="N", help="the size of a chunk")  # fmt: skip
@tokenizer_flag
@click.option("--follow-links", is_flag=True, help="also read files outside a folder that are linked from it")
def command(
    paths: tuple[str, ...],
    chunks: bool,
    chunk_tokens: int,
    count_tokens: TokenCounter,
    follow_links: bool,
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
        for block in blocks:
            print_text(block.text)
    warn_left_out((*document.skipped, *blocks.skipped))


def _border(chunk: Chunk) -> str:
    """The line above a chunk: its number, its place and its size."""
    sources = ", ".join(dict.fromkeys(part.source for part in chunk.parts))
    pages = [part.page for part in chunk.parts if part.page]
    on = f", pages {pages[0]} to {pages[-1]}" if len(pages) > 1 else f", page {pages[0]}" if pages else ""
    place = f"characters {chunk.start:,} to {chunk.end:,}"
    return f"=== chunk {chunk.index + 1}: {sources}{on}, {place}, {chunk.tokens:,} tokens ==="
