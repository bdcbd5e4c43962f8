"""The passes of a read over its document: the first cuts it into chunks, others read the same chunks again.

Only an outline of each chunk is kept in memory; its text is read again for each pass.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace

from memagent.concurrency import drain, in_thread
from memagent.documents.chunking import cut_again, split
from memagent.documents.opening import Pass
from memagent.errors import DocumentError
from memagent.reading.ranking import Screen
from memagent.types import Chunk, TokenCounter

reached: ContextVar[tuple[int, int]] = ContextVar("reached", default=(0, -1))
"""Of the read in this task: which part of its passes it is in, and the index of the latest chunk handed out.

Each read, and each chunk that is asked about beside others, runs in a task of its own, with its context.
"""


class Passes:
    """The passes over one document. All but the first may run side by side.

    Args:
        blocks: the pass over the document's blocks that the first pass uses.
        chunk_tokens: the size of a chunk.
        count_tokens: counts the tokens of a text.
        on_chunk: called with each chunk before it is handed out, and whether its turn had come before; also
            with blank chunks at the beginning, which are never handed out.
        on_pass: called with the number of chunks of a further pass when it begins.
        on_passed_over: called with each chunk that is passed over.
        exact: whether chunks are cut exactly at their size.
    """

    def __init__(
        self,
        blocks: Pass,
        chunk_tokens: int,
        count_tokens: TokenCounter,
        on_chunk: Callable[[Chunk, bool], None] = lambda _chunk, _again: None,
        on_pass: Callable[[int], None] = lambda _chunks: None,
        on_passed_over: Callable[[Chunk], None] = lambda _chunk: None,
        *,
        exact: bool = False,
    ) -> None:
        self._document = blocks.document
        self._plan = in_thread(split(blocks, chunk_tokens, count_tokens, exact=exact), blocks.may_convert)
        self._on_chunk, self._on_pass, self._on_passed_over = on_chunk, on_pass, on_passed_over
        self._readable: list[Chunk] = []  # outlines, from the first chunk with text on
        self._behind: set[int] = set()  # handed out, or passed over
        self._ahead: deque[Chunk] = deque()  # cut, for `first` to hand out

    def first(self) -> AsyncGenerator[Chunk, None]:
        """The chunks, as they are cut. Raises `DocumentError` if none of them has text."""
        return self._hand_out(self._cut())

    async def screen(self, screen: Screen, memory: Callable[[], str]) -> AsyncGenerator[Chunk, None]:
        """The chunks related to the problem, or to the memory as it is when the next chunk is asked for.

        All chunks are cut and looked at before the first is yielded. Raises `DocumentError` if none has text.
        """
        async with aclosing(self._cut()) as chunks:
            async for chunk in chunks:
                await asyncio.to_thread(screen.look, chunk.shown)
        async with aclosing(self._at(range(len(self._readable)))) as chunks:
            async for chunk in chunks:
                if await asyncio.to_thread(screen.relates, chunk.shown, memory()):
                    self._hand(chunk)
                    yield chunk
                else:
                    self._behind.add(chunk.index)
                    self._on_passed_over(chunk)

    async def is_within(self, tokens: int) -> bool:
        """Whether all chunks together have at most so many tokens. Call it once, before any is handed out.

        Raises `DocumentError` if none has text.
        """
        async with aclosing(self._cut()) as chunks:
            async for chunk in chunks:
                self._ahead.append(chunk)
                tokens -= chunk.tokens
                if tokens < 0:
                    return False
        return True

    async def count(self) -> int:
        """The number of chunks; cuts what has not been cut. Raises `DocumentError` if none has text."""
        await drain(self._cut())
        return len(self._readable)

    async def again(self, indices: Collection[int] | None = None) -> AsyncGenerator[Chunk, None]:
        """A further pass, in order, over all chunks or those at these indices, which are below `count`."""
        count = await self.count()
        indices = range(count) if indices is None else indices
        self._on_pass(len(indices))
        async with aclosing(self.only(indices)) as chunks:
            async for chunk in chunks:
                yield chunk

    def only(self, indices: Collection[int]) -> AsyncGenerator[Chunk, None]:
        """The chunks with these indices, which are below `count`, in order, as part of a pass."""
        return self._hand_out(self._at(sorted(indices)))

    async def looked_through(self) -> AsyncGenerator[Chunk, None]:
        """All chunks, to be looked at without a model: no callback is called."""
        async with aclosing(self._at(range(await self.count()))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def left_out(self) -> bool:
        """Whether there are chunks that were neither handed out nor passed over."""
        if len(self._behind) < len(self._readable):
            return True
        async with aclosing(self._cut()) as rest:
            return await anext(rest, None) is not None

    async def _at(self, indices: Sequence[int]) -> AsyncGenerator[Chunk, None]:
        blocks = self._document.blocks()
        try:
            chunks = cut_again(blocks, [self._readable[index] for index in indices])
            async for chunk in in_thread(chunks, blocks.may_convert):
                yield chunk
        finally:
            blocks.close()

    async def _hand_out(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
        """The chunks, each noted as it is handed out."""
        part, _ = reached.get()
        reached.set((part + 1, -1))
        async with aclosing(chunks):
            async for chunk in chunks:
                self._hand(chunk)
                yield chunk

    def _hand(self, chunk: Chunk) -> None:
        part, _ = reached.get()
        reached.set((part, chunk.index))
        self._on_chunk(chunk, chunk.index in self._behind)
        self._behind.add(chunk.index)

    async def _cut(self) -> AsyncGenerator[Chunk, None]:
        """Cut what has not been cut yet, after what was cut ahead."""
        while self._ahead:
            yield self._ahead.popleft()
        async for chunk in self._plan:
            if self._readable or chunk.text.strip():
                self._readable.append(replace(chunk, text=""))
                yield chunk
            else:
                self._on_chunk(chunk, False)
        if not self._readable:
            names = ", ".join(source.name for source in self._document.sources)
            raise DocumentError(f"{names} has no text")
