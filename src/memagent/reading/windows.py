"""Windows in a text without sentences, such as a transcript: the stretches with most of the wanted words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from memagent.documents.tokens import UNSPACED
from memagent.reading.ranking import placed_stems
from memagent.reading.sources import Span

MAX_SENTENCE = 600
"""How many characters a sentence may have; of those of Wikipedia, one in 400 has more."""

_WINDOW = 200  # characters
_BREAK = re.compile(rf"\s|[{UNSPACED}]")


def windows(text: str, span: Span, weights: Mapping[str, float], most: int) -> list[Span]:
    """At most so many windows of a span of a text, in order: those whose wanted words weigh most.

    Each reaches to both sides of its words, whole words only; none overlaps another. A span that may be a
    sentence by its length is the only one.

    Args:
        text: the text.
        span: where in the text to look.
        weights: the wanted words, by their stems, with their weights.
        most: how many windows.
    """
    start, end = span
    if end - start <= MAX_SENTENCE:
        return [span]
    spots = [
        (stem, start + first, start + last)
        for stem, first, last in placed_stems(text[start:end])
        if stem in weights
    ]
    chosen: list[Span] = []
    for _, (first, last) in sorted(
        _clusters(spots, weights), key=lambda cluster: (-cluster[0], cluster[1][1] - cluster[1][0])
    ):
        if len(chosen) < most and all(last <= one or other <= first for one, other in chosen):
            chosen.append((first, last))
    chosen.sort()
    ends = [*(first for first, _ in chosen), end][1:]
    widened: list[Span] = []
    for cluster, high in zip(chosen, ends, strict=True):
        widened.append(_widen(text, cluster, (widened[-1][1] if widened else start, high)))
    return widened


def _clusters(
    spots: Sequence[tuple[str, int, int]], weights: Mapping[str, float]
) -> list[tuple[float, Span]]:
    """For each wanted word, the weight of it and those behind it within a window, and their span."""
    clusters = []
    for index, (_, start, end) in enumerate(spots):
        known = dict[str, float]()
        for stem, _, last in spots[index:]:
            if last - start > _WINDOW:
                break
            if stem not in known:
                known[stem], end = weights[stem], last
        clusters.append((sum(known.values()), (start, end)))
    return clusters


def _widen(text: str, cluster: Span, limits: Span) -> Span:
    """A span with as many words on either side as a window and its limits have room for."""
    (start, end), (low, high) = cluster, limits
    first = max(low, start - (_WINDOW - (end - start)) // 2)
    last = min(high, first + _WINDOW)
    first = max(low, min(start, last - _WINDOW))
    while low < first < start and not _BREAK.search(text, first - 1, first + 1):
        first += 1
    while end < last < high and not _BREAK.search(text, last - 1, last + 1):
        last -= 1
    window = text[first:last]
    return first + len(window) - len(window.lstrip()), last - len(window) + len(window.rstrip())
