"""Which token sequences begin alike: attempts at one example read the same chunk before they differ."""

from __future__ import annotations

from collections.abc import Sequence


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both sequences begin with."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # comparing slices is far faster than walking
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_beginnings(prompts: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """The prompts in families: how many tokens a family begins with in common, and its members' indices.

    A family keeps each prompt's last token apart, since what follows it differs. The words that every
    prompt opens with make no family: a prompt joins one only if at least half of the common tokens stay
    common. Families come in the order of their first members, and a prompt that is like no other is a
    family by itself.
    """
    families: list[tuple[int, list[int]]] = []
    for index in sorted(range(len(prompts)), key=lambda index: (tuple(prompts[index]), index)):
        prompt = prompts[index]
        if families:
            shared, members = families[-1]
            common = min(common_length(prompts[members[0]], prompt), shared, len(prompt) - 1)
            if common and 2 * common >= shared:
                members.append(index)
                families[-1] = (common, members)
                continue
        families.append((len(prompt) - 1, [index]))
    for _, members in families:
        members.sort()
    return sorted(families, key=lambda family: family[1][0])
