"""The same name written differently: spellings of a field that hardly differ are taken for one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from memagent.reading.tally.values import find_all, fold, load, meet

MIN_LIKENESS = 95.0
"""How alike two names are, in percent (Levenshtein ratio of `rapidfuzz`), that are taken for the same."""

MAX_NAMES = 2000
"""More names of a field are only compared as `fold` compares them."""

_LONGEST = 80  # characters: what is longer is no name


def settle_names(
    texts: Sequence[str | None], quotes: Sequence[str]
) -> tuple[list[str | None], dict[str, str]]:
    """The name that each row of a field counts by, and every text that is taken for another name. Blocks."""
    wholes = whole_names(texts, quotes)
    same = same_names(whole for whole in wholes if whole)
    names = [whole and same.get(whole, whole) for whole in wholes]
    taken = {text: name for text, name in zip(texts, names, strict=True) if text and name and text != name}
    return names, taken


def same_names(texts: Iterable[str]) -> dict[str, str]:
    """For each text that is written differently, the way in which it is written most. Blocks.

    Names that differ in a digit are never the same.
    """
    counts = Counter(texts)
    groups: dict[str, list[str]] = {}
    for text, _ in counts.most_common():
        groups.setdefault(fold(text) or text, []).append(text)
    heads = list[str]()
    for folded in list(groups):
        if head := _nearest(folded, heads) if len(groups) <= MAX_NAMES else None:
            groups[head] += groups.pop(folded)
        else:
            heads.append(folded)
    return {text: texts[0] for texts in groups.values() for text in texts[1:]}


def whole_names(texts: Sequence[str | None], quotes: Sequence[str]) -> list[str | None]:
    """The names of a field's rows, those that are cut short as other rows have them whole. Blocks.

    "Saw" is "Saw 6" if as many rows or more have that name, and this row's quote says it instead.
    """
    counts = Counter(text for text in texts if text)
    if len(counts) > MAX_NAMES:
        return list(texts)
    words = {name: f" {fold(name)} " for name in counts}
    longer = {
        name: [
            other
            for other, number in counts.items()
            if words[name] != words[other] and words[name] in words[other] and number >= counts[name]
        ]
        for name in counts
    }
    return [text and _whole(text, longer[text], quote) for text, quote in zip(texts, quotes, strict=True)]


def _whole(name: str, longer: Iterable[str], quote: str) -> str:
    """The only one of these longer names that stands wherever this one does; else this one."""
    spans = find_all("text", name, quote)
    wholes = [
        other
        for other in longer
        if (others := find_all("text", other, quote))
        and all(any(meet(span, whole) for whole in others) for span in spans)
    ]
    return wholes[0] if len(wholes) == 1 else name


def _nearest(name: str, others: list[str]) -> str | None:
    """The name that this one is the same as; None if there is none."""
    if len(name) > _LONGEST:
        return None
    alike = load("rapidfuzz.process").extract(
        name, others, scorer=load("rapidfuzz.fuzz").ratio, score_cutoff=MIN_LIKENESS, limit=3
    )
    digits = re.findall(r"\d+", name)
    return next((other for other, _, _ in alike if re.findall(r"\d+", other) == digits), None)
