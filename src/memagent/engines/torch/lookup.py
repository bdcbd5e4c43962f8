"""Prompt lookup decoding: guess a reply's next tokens from where its last ones occurred before.

A rewritten memory is mostly copied, and copies can be guessed. The model checks several guessed tokens in one
pass, which costs little more than a pass for one; what is sampled stays the same. The idea is Saxena's
(Prompt Lookup Decoding, 2023), a kind of speculative decoding (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Iterable

MATCHED = 2
"""How many of the last tokens must have occurred together before."""

_FIRST, _MOST = 4, 16  # guessed tokens


class Lookup:
    """The tokens of one call so far, prompt and reply, and the guesses that they allow.

    It guesses more tokens while guesses come true, and fewer when they do not, so that a reply that copies
    nothing costs little.
    """

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self._ids: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}
        self._reach = _FIRST
        self.extend(prompt_ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Append tokens."""
        for token_id in ids:
            if len(self._ids) >= MATCHED:  # a later place replaces an earlier one
                self._follows[tuple(self._ids[-MATCHED:])] = len(self._ids)
            self._ids.append(token_id)

    def guess(self, most: int) -> list[int]:
        """Guess the next tokens, at most `most`; none if the last ones are new."""
        place = self._follows.get(tuple(self._ids[-MATCHED:]))
        return self._ids[place : place + min(self._reach, most)] if place is not None and most > 0 else []

    def learn(self, guessed: int, true: int) -> None:
        """Note that `true` of `guessed` guessed tokens came true."""
        if guessed:
            self._reach = min(2 * self._reach, _MOST) if true == guessed else max(1, true)
