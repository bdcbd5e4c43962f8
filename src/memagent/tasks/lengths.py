"""Make a document of a given length in tokens while counting its text only about once.

Counting 3.5M tokens takes seconds. So `fit` extrapolates the size from small documents to larger ones,
and a long text is counted block by block, which keeps the tokenizer in its caches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from memagent.types import TokenCounter

_BLOCK_CHARACTERS = 1 << 16
_MIN_SHARE = 0.985  # with the problem and the answer's room, this keeps the promised 2%
_AIM_SHARE = 0.993
_FIRST_SIZE = 32
_PROBES = (256, 16)  # a long document is first measured at these fractions of its length
_MIN_PROBE_TOKENS = 2048


class Pieces:
    """The first texts of an endless source, kept together with their total number of characters."""

    def __init__(self, source: Iterator[str]) -> None:
        self._source = source
        self._texts: list[str] = []
        self._ends = [0]

    def first(self, count: int) -> Sequence[str]:
        """The first `count` texts."""
        self._grow(count)
        return self._texts[:count]

    def characters(self, count: int) -> int:
        """The number of characters in the first `count` texts, plus one separator for each."""
        self._grow(count)
        return self._ends[count]

    def _grow(self, count: int) -> None:
        while len(self._texts) < count:
            text = next(self._source)
            self._texts.append(text)
            self._ends.append(self._ends[-1] + len(text) + 1)


def count_long(text: str, count_tokens: TokenCounter) -> int:
    """Count the tokens of a text of any length.

    A text of over 65,536 characters is counted in blocks that begin at a space, where most tokenizers
    begin a token anyway: the sum may differ from the exact count by one token per block (0.01%).
    """
    total = start = 0
    while len(text) - start > _BLOCK_CHARACTERS:
        limit = start + _BLOCK_CHARACTERS
        end = text.rfind(" ", start + 1, limit)
        end = end if end > start else limit
        total += count_tokens(text[start:end])
        start = end
    return total + count_tokens(text[start:])


def digits(number: int) -> int:
    """How many digits the numbers from 1 to `number` have together."""
    total, first = 0, 1
    while first <= number:
        total += number - first + 1
        first *= 10
    return total


def fit(
    build: Callable[[int], str],
    limit_tokens: int,
    count_tokens: TokenCounter,
    weigh: Callable[[int], float] = float,
) -> tuple[str, int, int] | None:
    """The document `build(size)` that comes close to `limit_tokens` without exceeding it.

    `weigh(size)` must be cheap, unbounded, and grow about as the tokens of `build(size)` do.
    Returns the document, its tokens and its size, or None if even `build(0)` is over the limit.
    The document is short by up to 1.5% or, if that is more, by less than one piece.
    """
    text = build(0)
    points = [(weigh(0), count_long(text, count_tokens))]  # weights and tokens, as they were measured
    best, over = (text, points[0][1], 0), None
    if best[1] > limit_tokens:
        return None

    def measure(size: int) -> tuple[str, int]:
        text = build(size)
        points.append((weigh(size), count_long(text, count_tokens)))
        return text, points[-1][1]

    measure(_FIRST_SIZE)
    for part in _PROBES:
        if limit_tokens // part >= _MIN_PROBE_TOKENS:
            measure(max(_FIRST_SIZE + 1, _extrapolate(points, weigh, limit_tokens / part)))
    while over is None or over - best[2] > 1:
        size = max(_extrapolate(points, weigh, limit_tokens * _AIM_SHARE), best[2] + 1)
        size = size if over is None else min(size, over - 1)
        text, tokens = measure(size)
        if tokens > limit_tokens:
            over = size
        else:
            best = (text, tokens, size)
            if tokens >= limit_tokens * _MIN_SHARE:
                break
    return best


def _extrapolate(points: Sequence[tuple[float, int]], weigh: Callable[[int], float], tokens: float) -> int:
    """The size that should have this many tokens.

    It lies on the line through the last point and an earlier one that is well apart: the rate between
    two nearly equal sizes would be noise.
    """
    weight, measured = points[-1]
    before, fewer = next(point for point in reversed(points) if point[0] <= weight / 2 or point == points[0])
    rate = max((measured - fewer) / (weight - before), 1e-6) if weight > before else 1.0
    return _greatest(weigh, weight + (tokens - measured) / rate)


def _greatest(weigh: Callable[[int], float], weight: float) -> int:
    """The largest size that weighs at most `weight`; 0 if none does."""
    high = 1
    while weigh(high) <= weight:
        high *= 2
    return max(0, bisect_right(range(high), weight, key=weigh) - 1)
