"""Guess what a reply says next from where its last tokens stood before: prompt lookup decoding.

A rewritten memory is mostly copied, and what is copied can be guessed. A model checks several guessed tokens
in one pass, for little more than the pass of one costs; what is sampled is the same. The idea is Saxena's
(Prompt Lookup Decoding, 2023), a kind of speculative decoding (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Iterable

MATCHED = 2
"""So many tokens have to have stood together before."""

_FIRST, _MOST = 4, 16  # guessed tokens


class Lookup:
    """The tokens of one call so far, prompt and reply, and what they let one guess.

    The more guesses come true the more are made, and the other way round, so that a reply that copies
    nothing costs little.
    """

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self._ids: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}
        self._reach = _FIRST
        self.extend(prompt_ids)

    def extend(self, ids: Iterable[int]) -> None:
        """These tokens come next."""
        for token_id in ids:
            if len(self._ids) >= MATCHED:  # the last place counts
                self._follows[tuple(self._ids[-MATCHED:])] = len(self._ids)
            self._ids.append(token_id)

    def guess(self, most: int) -> list[int]:
        """What may come next, at most so many tokens; nothing where the last ones are new."""
        place = self._follows.get(tuple(self._ids[-MATCHED:]))
        return self._ids[place : place + min(self._reach, most)] if place is not None and most > 0 else []

    def learn(self, guessed: int, true: int) -> None:
        """Of so many guessed tokens, so many came true."""
        if guessed:
            self._reach = min(2 * self._reach, _MOST) if true == guessed else max(1, true)
