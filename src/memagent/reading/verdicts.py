"""A verdict: the model's own say whether a chunk helps, as the log-odds of one token."""

from __future__ import annotations

import math
from collections.abc import Mapping

YES, NO = "Yes", "No"
"""The words of a verdict."""


def log_odds(alternatives: Mapping[str, float]) -> float | None:
    """Log P(Yes) - log P(No), from the likeliest first tokens of a reply; None if neither word is among them.

    A word that is missing counts as likely as the least likely of the tokens.
    """
    log_probs = {word: _log_sum(alternatives, word) for word in (YES, NO)}
    if all(value == -math.inf for value in log_probs.values()):
        return None
    least = min(alternatives.values())
    return max(log_probs[YES], least) - max(log_probs[NO], least)


def _log_sum(alternatives: Mapping[str, float], word: str) -> float:
    """The log of the probability of a word, however it is written."""
    same = [value for token, value in alternatives.items() if token.strip().lower() == word.lower()]
    top = max(same, default=-math.inf)
    return top if top == -math.inf else top + math.log(sum(math.exp(value - top) for value in same))
