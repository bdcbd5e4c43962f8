"""The chunks of a document without their text, and the same chunks again: no token is counted twice.

An outline takes some hundred bytes a chunk, whatever the chunk's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from memagent.documents.opening import Block
from memagent.errors import DocumentError
from memagent.types import Chunk


def outline_of(chunk: Chunk) -> Chunk:
    """A chunk without its text."""
    return replace(chunk, text="")


def cut_again(blocks: Iterable[Block], outlines: Iterable[Chunk]) -> Iterator[Chunk]:
    """The chunks of these outlines, which are in order, cut from a new pass over their document.

    About a chunk and a block of text are held at a time. Raises `DocumentError` for a document that is
    shorter than it was.
    """
    stream, held, start = iter(blocks), "", 0  # `held` begins at `start` of the document
    for outline in outlines:
        while start + len(held) < outline.end:
            block = next(stream, None)
            if block is None:
                raise DocumentError(f"{outline.source} is shorter than it was when it was read first")
            passed = min(max(outline.start - start, 0), len(held))
            held, start = held[passed:] + block.text, start + passed
        yield replace(outline, text=held[outline.start - start : outline.end - start])
