"""Chunks by BM25 over stems, for a question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from memagent import Chunk
from memagent.reading.ranking import best_chunks, stems
from memagent.types import Part


async def chunks_of(*texts: str) -> AsyncIterator[Chunk]:
    for number, text in enumerate(texts):
        yield Chunk(number, text, 0, len(text), 1, (Part("it", 0, len(text)),))


def test_chunks_rank_by_rare_words_and_their_stems() -> None:
    texts = (
        "the gulls and the wind",
        "keys were carried",
        "the wind and the sea",
        "鑰匙在桌子上",
        "the wind",
    )

    def best(question: str, most: int) -> list[int]:
        return asyncio.run(best_chunks(question, chunks_of(*texts), most))

    assert best("Who carries the key?", 1) == [1]
    assert best("The gull?", 1) == [0]
    assert best("鑰匙在哪裡?", 1) == [3]
    assert best("zebra", 2) == [0, 1], "of equals the first"
    assert best("?", 9) == [0, 1, 2, 3, 4]
    assert stems("Carries carried carrying") == ["carr", "carri", "carry"][:1] + stems("carried carrying")
