"""Outlines, which are chunks without their text, and the same chunks cut again without counting tokens.

An outline takes a few hundred bytes a chunk, whatever the chunk's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from memagent.documents.opening import Block
from memagent.errors import DocumentError
from memagent.types import Chunk


def cut_again(blocks: Iterable[Block], outlines: Iterable[Chunk]) -> Iterator[Chunk]:
    """Cut the chunks of these outlines, given in order, from a new pass over their document.

    Holds about one chunk and one block of text at a time. Raises `DocumentError` if the document has become
    shorter.
    """
    stream, held, start = iter(blocks), "", 0  # `held` begins at offset `start` of the document
    for outline in outlines:
        while start + len(held) < outline.end:
            block = next(stream, None)
            if block is None:
                raise DocumentError(f"{outline.source} is shorter than when it was first read")
            passed = min(max(outline.start - start, 0), len(held))
            held, start = held[passed:] + block.text, start + passed
        yield replace(outline, text=held[outline.start - start : outline.end - start])
