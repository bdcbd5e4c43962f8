"""Which questions ask for something to be counted up, over everything that a document has of a kind."""

from __future__ import annotations

import re

_COUNTING = re.compile(
    r"\b(?:how (?:many|often)|how much .*\b(?:each|every|all|total)|(?:in|the|sub) ?total|altogether"
    r"|(?:sum|number) of|(?:average|mean|median) \w+|count (?:the|all|how)"
    r"|list (?:all|every|each|of all)|rank|top \d+|wh(?:ich|o) .*\b(?:most|least|highest|lowest)"
    r"|(?:for|per|by|to|of) each|wie (?:viele|oft)|insgesamt|combien|cuánt[oa]s)\b",
    re.IGNORECASE,
)


def asks_to_count(question: str) -> bool:
    """Whether a question asks for a count, a sum, an average, a ranking, or a list of all, by its words."""
    return _COUNTING.search(question) is not None
