"""Which chunks are most relevant to a question: BM25 in one pass, which holds no text.

Words are compared by their stems (English endings only); in scripts without spaces, pairs of characters are.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator

from memagent.reading.wording import words
from memagent.types import Chunk

_ENDING = re.compile(r"(?<=[a-z]{3})(?:ies|y|ing|ed|es|e|s)$")
_SATURATION, _LENGTH_WEIGHT = 1.5, 0.75  # the usual k1 and b


def stems(text: str) -> list[str]:
    """The stems of a text's words."""
    return [_ENDING.sub("", word) for word in words(text)]


async def best_places(question: str, chunks: AsyncIterator[Chunk], most: int) -> list[int]:
    """The places, in order, of the `most` chunks most relevant to a question; the first win ties."""
    wanted = set(stems(question))
    lengths: list[int] = []
    counts: list[Counter[str]] = []
    async for chunk in chunks:
        length, found = await asyncio.to_thread(_tally, chunk.shown, wanted)
        lengths.append(length)
        counts.append(found)
    scores = _scores(lengths, counts)
    best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:most]
    return sorted(best)


def weight(chunks: int, holding: int) -> float:
    """BM25's weight of a word that `holding` of the chunks have: the rarer, the higher."""
    return math.log(1 + (chunks - holding + 0.5) / (holding + 0.5))


def _tally(text: str, wanted: set[str]) -> tuple[int, Counter[str]]:
    found = stems(text)
    return len(found), Counter(word for word in found if word in wanted)


def _scores(lengths: list[int], counts: list[Counter[str]]) -> list[float]:
    """The BM25 score of each chunk, from its length in words and its counts of the question's words."""
    mean = sum(lengths) / max(len(lengths), 1) or 1.0
    holding = Counter(word for found in counts for word in found)
    weights = {it: weight(len(counts), n) for it, n in holding.items()}
    return [
        sum(
            weights[word] * n * (_SATURATION + 1)
            / (n + _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * length / mean))
            for word, n in sorted(found.items())
        )
        for length, found in zip(lengths, counts, strict=True)
    ]  # fmt: skip
