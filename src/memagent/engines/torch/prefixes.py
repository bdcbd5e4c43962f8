"""Find token sequences that begin alike: attempts at one example read the same chunk before they differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

Families = list[tuple[int, list[int]]]
"""The length of each family's common prefix, and the indices of its members."""


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the sequences' common prefix."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # comparing slices is far faster than comparing tokens
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def group_by_beginning(prompts: Sequence[Sequence[int]]) -> Families:
    """Group prompts into families by their common prefixes.

    The grouping is the one that leaves the fewest tokens to compute if each family's prefix is computed once.
    If every prompt opens with the same words, the prompts that share a chunk are a family, rather than all of
    them. A prefix never includes a prompt's last token, since each prompt needs the logits after it. Families
    are in the order of their first members; a prompt that is like no other is a family by itself.
    """
    order = sorted(range(len(prompts)), key=lambda index: (tuple(prompts[index]), index))
    ordered = [prompts[index] for index in order]
    common = [min(common_length(one, other), len(one) - 1) for one, other in pairwise(ordered)]

    @cache
    def divide(begin: int, end: int, above: int) -> _Parts:
        """The best grouping of sorted prompts `begin` to `end`, which may share `above` with others."""
        if end - begin == 1:
            return _Parts(above, [begin], [])
        depth = min(common[begin : end - 1])
        borders = [place for place in range(begin + 1, end) if common[place - 1] == depth]
        branches = [*pairwise((begin, *borders, end))]
        closed = _join([divide(*branch, above) for branch in branches])
        opened = _join([divide(*branch, depth) for branch in branches])
        if opened.saved - depth > closed.saved:
            return _Parts(opened.saved - depth, [], [*opened.families, (depth, opened.left)])
        return closed

    parts = divide(0, len(order), 0) if order else _join([])
    alone = [(len(ordered[place]) - 1, [place]) for place in parts.left]
    families = [
        (shared, sorted(order[place] for place in places)) for shared, places in alone + parts.families
    ]
    return sorted(families, key=lambda family: family[1][0])


class _Parts(NamedTuple):
    """The tokens saved; the prompts left to a wider family; the families."""

    saved: int
    left: list[int]
    families: Families


def _join(parts: Sequence[_Parts]) -> _Parts:
    return _Parts(
        sum(part.saved for part in parts),
        [place for part in parts for place in part.left],
        [family for part in parts for family in part.families],
    )
