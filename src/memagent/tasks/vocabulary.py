"""The words that tasks are made of: those of `wonderwords`, which RULER uses too, and coined ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from memagent.errors import SettingsError, extra_hint


@cache
def words() -> tuple[str, ...]:
    """All nouns, adjectives and verbs, each once, sorted."""
    return tuple(sorted({*_list("noun"), *_list("adjective"), *_list("verb")}))


def compound(source: random.Random) -> str:
    """An adjective and a noun with a hyphen: one of some 6 million."""
    return f"{source.choice(_list('adjective'))}-{source.choice(_list('noun'))}"


def distinct_words(source: random.Random) -> Iterator[str]:
    """An endless supply of distinct words: the whole list in random order, then compounds."""
    yield from source.sample(words(), len(words()))
    seen = set(words())
    while True:
        word = compound(source)
        if word not in seen:
            seen.add(word)
            yield word


def coin_words(source: random.Random, count: int, letters: int, alphabet: str) -> list[str]:
    """`count` different words of random letters, in the order in which they came up."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(source.choices(alphabet, k=letters))] = None
    return list(found)


@cache
def _list(category: str) -> tuple[str, ...]:
    try:
        from wonderwords import RandomWord  # type: ignore[import-untyped]  # it reads its lists on import
    except ImportError as error:
        raise SettingsError(f"this task needs a package: {extra_hint('eval')}") from error
    return tuple(sorted(set(RandomWord().filter(include_categories=(category,)))))
