"""Find a client's own words in one long text: around its tags, or at the end that the client names."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise

from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, is_within
from memagent.reading.workflows.whole import LEFT_OUT
from memagent.types import TokenCounter

_NAME = r"[A-Za-z][\w:.-]*"
_TAG = re.compile(
    rf"^[ \t]*<(?P<opens>{_NAME})(?:[ \t][^<>\n]*)?>"
    rf"|^[ \t]*</(?P<closes>{_NAME})>|</(?P<ends>{_NAME})>[ \t]*$",
    re.MULTILINE,
)
_UNITS = (r"\n[ \t\r]*\n\s*", r"\n\s*", r"(?<=[.!?])\s+|(?<=[。！？])", r"\s+", r"(?<=.)")


def around_tags(text: str, budget_tokens: int, count_tokens: TokenCounter) -> str:
    """What stands around the tags of a text, such as <document> and </document>, if it fits the budget.

    A tag begins a line; one that closes may end a line instead. The first and the last one in the text have
    to be a pair, with no mention of its name and no closing tag around it: so nothing between them can end
    them or pose as them, and no other pair can be meant. Without such a pair, the result is empty.
    """
    text = text.strip()
    characters = budget_tokens * MAX_CHARACTERS_PER_TOKEN
    skipped = max(0, len(text) - characters)
    first = next(_TAG.finditer(text[:characters]), None)
    *_, last = [None, *_TAG.finditer(text[skipped:])]
    name = first and first["opens"]
    if not (first and last and name and name in (last["closes"], last["ends"])):
        return ""
    before, after = text[: first.start()].strip(), text[skipped + last.end() :].strip()
    around = LEFT_OUT.join(filter(None, (before, after)))
    others = re.search(rf"</|<{re.escape(name)}(?![\w:.-])", around)
    return around if not others and is_within(around, budget_tokens, count_tokens) else ""


def take_end(text: str, limit_tokens: int, count_tokens: TokenCounter, at_end: bool) -> str:
    """The outer paragraphs that fit the limit, or if none does, lines, sentences, words or characters."""
    limit = max(1, limit_tokens)
    characters = limit * MAX_CHARACTERS_PER_TOKEN
    text = text.strip()
    near = text[-characters:] if at_end else text[:characters]
    for unit in _UNITS:
        cuts = [0, *(match.end() for match in re.finditer(unit, near) if match.end() < len(near)), len(near)]
        pieces = [near[start:end] for start, end in pairwise(cuts)]
        if outer := _take_outer(pieces, limit, count_tokens, at_end):
            return outer
    return near[-1:] if at_end else near[:1]


def _take_outer(pieces: list[str], limit_tokens: int, count_tokens: TokenCounter, at_end: bool) -> str:
    def take(number: int) -> str:
        return "".join(pieces[len(pieces) - number :] if at_end else pieces[:number]).strip()

    numbers = range(1, len(pieces) + 1)
    return take(bisect_right(numbers, limit_tokens, key=lambda number: count_tokens(take(number))))
