"""Passes over a document: the same chunks each time, and a progress that counts each of them once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memagent import (
    Chunk,
    Document,
    DocumentError,
    ReadSettings,
    ScriptedEngine,
    open_document,
    text_document,
)
from memagent.documents.tokens import estimate_tokens
from memagent.reading.passes import Passes
from memagent.reading.read import Read

TEXT = "\n \n" * 200 + "".join(f"Sentence {number} is about é and 漢字. " for number in range(2000))


def passes_over(document: Document, calls: list[object]) -> Passes:
    def on_chunk(chunk: Chunk, again: bool) -> None:
        calls.append((chunk.index, again))

    return Passes(document.blocks(), 100, estimate_tokens, on_chunk, calls.append)


async def collect(chunks: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in chunks]


@pytest.fixture
def folder(tmp_path: Path) -> Document:
    """Many files: some share a chunk, some have many, one has pages."""
    for number in range(6):
        text = f"File {number}.\n" + "Some words in a line.\n" * (number * 60 % 130)
        (tmp_path / f"{number}.txt").write_text(text, "utf-8")
    (tmp_path / "7.txt").write_text(TEXT, "utf-8")
    return open_document(tmp_path)


def test_chunks_come_again_as_they_were(folder: Document) -> None:
    async def compared(document: Document) -> None:
        passes = passes_over(document, [])
        first = await collect(passes.first())
        count = await passes.count()
        assert len(first) == count > 8
        assert await collect(passes.again()) == first
        assert await collect(passes.again([3, count - 1, 0])) == [first[0], first[3], first[-1]]
        assert await collect(passes.again([])) == []
        both = await asyncio.gather(collect(passes.only(range(4))), collect(passes.only(range(4, count))))
        assert both[0] + both[1] == first, "side by side"

    asyncio.run(compared(folder))
    asyncio.run(compared(text_document(TEXT)))


def test_what_was_cut_in_part_is_cut_to_its_end_when_it_is_read_again() -> None:
    async def compared() -> None:
        calls: list[object] = []
        passes = passes_over(text_document(TEXT), calls)
        first = passes.first()
        beginning = [await anext(first), await anext(first)]
        await first.aclose()
        assert await passes.left_out()
        again = await collect(passes.again())
        assert again[:2] == beginning and "".join(chunk.text for chunk in again).strip() == TEXT.strip()
        assert not await passes.left_out()
        blank = beginning[0].index
        assert calls[: blank + 2] == [(number, False) for number in range(blank + 2)]
        assert calls[blank + 2 : blank + 6] == [
            len(again), (blank, True), (blank + 1, True), (blank + 2, False)
        ]  # fmt: skip

    asyncio.run(compared())


def test_a_document_that_changes_between_passes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "it.txt"
    path.write_text(TEXT, "utf-8")

    async def changed() -> None:
        passes = passes_over(open_document(path), [])
        await collect(passes.first())
        path.write_text(TEXT.replace("about", "above"), "utf-8")
        with pytest.raises(DocumentError, match="changed"):
            await collect(passes.again())

    asyncio.run(changed())


def test_a_document_without_text_is_an_error_in_any_pass() -> None:
    for way in (Passes.first, Passes.again):
        with pytest.raises(DocumentError, match="has no text"):
            asyncio.run(collect(way(passes_over(text_document(" \n" * 500), []))))


def test_progress_counts_each_chunk_once_and_tells_of_the_pass() -> None:
    replies = iter(["MEMORY\nAda came at noon."])
    engine = ScriptedEngine(lambda messages: next(replies, "UNCHANGED"))
    settings = ReadSettings(workflow="parallel", chunk_tokens=300)
    once = Read("What?", text_document(TEXT), engine, settings.replace(rounds=1))
    read = Read("What?", text_document(TEXT), engine, settings)

    async def ended(read: Read) -> list[tuple[int, float | None, float | None]]:
        return [
            (progress.passes, progress.fraction_of_pass, progress.seconds_left)
            async for _ in read
            if (progress := read.progress)
        ]

    asyncio.run(ended(once))
    replies = iter(["MEMORY\nAda came at noon."])
    calls = asyncio.run(ended(read))
    now = read.progress
    assert (now.chunks, now.document_tokens) == (once.progress.chunks, once.progress.document_tokens)
    assert now.fraction == 1.0 and now.passes == 2 and now.reread == now.to_reread > 20
    assert read.result.chunks == once.result.chunks and not read.stopped_early
    fractions = [fraction for passes, fraction, _ in calls if passes == 2]
    assert fractions == sorted(fractions) and fractions[0] is not None and fractions[0] < 0.2
    assert all(seconds is not None and seconds >= 0 for passes, _, seconds in calls if passes == 2)
