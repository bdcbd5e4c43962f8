"""One prompt with the document in it: whole, its head and tail, or the passages that BM25 ranks best.

This is what people do without a memory. Embeddings are not supported.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from pydantic import Field

from memagent.documents.cutting import cut
from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, fewest_tokens, is_within
from memagent.errors import ContextOverflowError
from memagent.prompts import AUTO, NO_UPDATE, WHOLE, Prompts
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.locating import hardly_names
from memagent.reading.ranking import best_passages
from memagent.reading.workflow import Workflow
from memagent.settings import Options, Positive
from memagent.types import ESTIMATE, Conversation, TokenCounter

_DOUBT = {"doubt": AUTO.own["doubt"]}
PROMPTS = Prompts(update=NO_UPDATE, answer=WHOLE, own=_DOUBT)
"""The document, or what is shown of it, stands in the memory's slot."""

PASSAGES_PROMPTS = Prompts(update=NO_UPDATE, answer=AUTO.answer, own=_DOUBT)
"""Passages are asked about in the words that do best on those of `notes`."""

LEFT_OUT = "\n\n[…]\n\n"
"""Marks where a part of the document was left out."""

FileHeads = Sequence[tuple[int, str]]
"""The offsets in a text at which file names stand, each with the line that has the name."""

_SHRINK = 0.8
_TRIES = 10


class Passages(Options):
    """The passages that `rag` shows."""

    passages: Positive = Field(default=16, description="how many passages rag shows the model, if they fit")
    passage_tokens: Positive = Field(default=256, description="the size of a passage")


async def full(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """The whole document in one prompt. Raises `ContextOverflowError` if the window is too small."""
    (document, _), model = await _gather(chunks, memory), reading.model
    if model.window_tokens:
        # An estimate must not refuse what might fit.
        fewest = model.tokenizer == ESTIMATE
        tokens = await asyncio.to_thread(fewest_tokens if fewest else model.count_tokens, document)
        if tokens > model.window_tokens:
            raise ContextOverflowError(
                f"the document has {'at least ' if fewest else ''}{tokens:,} tokens, the model's window "
                f"{model.window_tokens:,}: read it with another `workflow`"
            )
    yield await _answer_from(reading, document)


async def truncate(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """The head and the tail of the document, half each, as much as fits the window."""
    document, heads = await _gather(chunks, memory)
    yield await _answer_within(
        reading, lambda room: head_and_tail(document, room, reading.model.count_tokens, heads)
    )


async def rag(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """The passages that BM25 ranks best for the problem, in the document's order."""
    document, heads = await _gather(chunks, memory)
    options, count = reading.settings.of(Passages), reading.model.count_tokens

    def rank() -> tuple[list[str], list[int], list[str]]:
        pieces = list(cut([document], options.passage_tokens, count))
        passages = [piece.text for piece in pieces]
        starts = accumulate(map(len, passages), initial=0)
        above = [
            _head_above(heads, start) + piece.columns for start, piece in zip(starts, pieces, strict=False)
        ]
        return passages, best_passages(reading.problem, passages, options.passages), above

    passages, best, above = await asyncio.to_thread(rank)
    yield await _answer_within(reading, lambda room: _select(passages, best, above, room, count))


def head_and_tail(text: str, room_tokens: int, count_tokens: TokenCounter, heads: FileHeads = ()) -> str:
    """`text` if it has at most `room_tokens`, else its beginning and its end, about half of that each.

    The end is preceded by the name of its file, if that is among the `heads`.
    """
    if is_within(text, room_tokens, count_tokens):
        return text
    half = (room_tokens - count_tokens(LEFT_OUT)) // 2
    longest = range(1, min(len(text), half * MAX_CHARACTERS_PER_TOKEN) + 1)
    head = bisect_right(longest, half, key=lambda length: count_tokens(text[:length]))
    tail = bisect_right(longest, half, key=lambda length: count_tokens(text[-length:]))
    start = len(text) - tail
    return text[:head] + LEFT_OUT + _head_above(heads, start) + text[start:]


async def _gather(chunks: Chunks, memory: str) -> tuple[str, FileHeads]:
    """The text of chunks, after a memory to start from, and where in it the names of files stand."""
    texts = [f"{memory}\n\n" if memory else ""]
    heads: list[tuple[int, str]] = []
    length, file = len(texts[0]), ("", 0)
    async for chunk in chunks:
        for part in chunk.parts:
            if part.head and (part.source, part.offset) != file:  # otherwise the file continues
                head, file = part.head.lstrip("\n"), (part.source, part.offset)
                texts.append("" if texts[-1].endswith("\n") or not length else "\n")
                length += len(texts[-1])
                heads.append((length, head))
                texts.append(head)
                length += len(head)
            texts.append(chunk.text_of(part))
            length += len(texts[-1])
    return "".join(texts), heads


def _head_above(heads: FileHeads, offset: int) -> str:
    """The line with the name of the file that an offset is in, unless it stands right there."""
    above = bisect_right(heads, offset, key=lambda head: head[0])
    return heads[above - 1][1] if above and heads[above - 1][0] != offset else ""


async def _answer_within(reading: Reading, text: Callable[[int], str]) -> Conversation:
    """Answer from the text that fits, with less of it each time the model says that it is too long."""
    room_tokens = await reading.count_room()
    for _ in range(_TRIES):
        excerpt = await asyncio.to_thread(text, room_tokens)
        try:
            return await _answer_from(reading, excerpt)
        except ContextOverflowError:
            room_tokens = int(room_tokens * _SHRINK)
    return await _answer_from(reading, await asyncio.to_thread(text, room_tokens))


async def _answer_from(reading: Reading, text: str) -> Conversation:
    """Answer from a text; it is doubtful if no passage of it has much of what the problem says."""
    doubtful = await asyncio.to_thread(hardly_names, text, reading.problem)
    return await reading.answer(text, doubtful=doubtful)


def _select(
    passages: Sequence[str], best: Sequence[int], above: Sequence[str], room_tokens: int, count: TokenCounter
) -> str:
    """As many of the best passages as there is room for, in order, with a mark where some are left out.

    `above` holds the names of the files, and the heads of the tables, that they are in.
    """
    chosen: list[int] = []
    left, mark = room_tokens, count(LEFT_OUT)
    for number in best:
        left -= count(above[number] + passages[number]) + mark
        if left < 0:
            break
        chosen.append(number)
    if best and not chosen:
        return above[best[0]] + head_and_tail(passages[best[0]], room_tokens, count)
    parts: list[str] = []
    before = -1
    for number in sorted(chosen):
        parts += [LEFT_OUT, above[number]] if number != before + 1 else []
        parts.append(passages[number])
        before = number
    return "".join(parts)


FULL = Workflow(full, PROMPTS)
TRUNCATE = Workflow(truncate, PROMPTS)
RAG = Workflow(rag, PASSAGES_PROMPTS, selects=True, options=(Passages,))
