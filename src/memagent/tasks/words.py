"""The words that tasks are made of, and RULER's tasks of counting them.

Words are those of `wonderwords`, which RULER uses too, and coined ones. `cwe` asks for the ten most common
words of a list, `fwe` for the three most common coded words. Repeats, list form and frequencies are RULER's
(arXiv 2404.06654), without its worked example before `cwe`. When a list runs out of words, compounds follow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from math import pi
from string import ascii_lowercase

from memagent.errors import SettingsError, extra_hint
from memagent.tasks.recipe import Draft, Pieces, Recipe, Task, digits
from memagent.types import Example

COMMON_WORDS = 10
CODED_LETTERS = 6
CODED_ANSWERS = 3
CODED_NOISE = "..."
ALPHA = 2.0  # a coded word's frequency falls with this power of its rank
_ZETA = pi**2 / 6  # the sum of all rank ** -ALPHA
_SHORT_TOKENS = 4096
_COMMON_ANSWER_TOKENS = 120
_CODED_ANSWER_TOKENS = 50


def tasks() -> list[Task]:
    """The two tasks, `cwe` and `fwe`."""
    return [
        Task("cwe", make_common, "string_match_all", _COMMON_ANSWER_TOKENS),
        Task("fwe", make_coded, "string_match_all", _CODED_ANSWER_TOKENS),
    ]


def make_common(recipe: Recipe, index: int) -> Example:
    """One example of `cwe`. Raises `SettingsError` if the length leaves no room for the common words."""
    draft = Draft("cwe", _COMMON_ANSWER_TOKENS, recipe, index)
    problem = (
        "The text is a numbered list of words, and some words stand in it more often than the others. "
        f"Which {COMMON_WORDS} words are the most common?"
    )
    often, seldom = (6, 1) if (recipe.length_tokens or 0) < _SHORT_TOKENS else (30, 3)
    words = distinct_words(draft.content)
    common = [next(words) for _ in range(COMMON_WORDS)]
    others = Pieces(words)

    def build(size: int) -> str:
        listed = common * often + list(others.first(size)) * seldom
        draft.order.shuffle(listed)
        return " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))

    def weigh(size: int) -> float:
        entries = COMMON_WORDS * often + size * seldom
        return others.characters(size) * seldom + entries * 2 + digits(entries)

    document, tokens, size = draft.fit(problem, build, weigh)
    if size == 0:
        raise draft.too_short()
    return draft.example(problem, document, tuple(common), tokens)


def make_coded(recipe: Recipe, index: int) -> Example:
    """One example of `fwe`. Raises `SettingsError` if the length is too small for three clear winners."""
    draft = Draft("fwe", _CODED_ANSWER_TOKENS, recipe, index)
    problem = (
        f"The text is made of coded words and dots. Leave the dots '{CODED_NOISE}' aside: "
        f"which {CODED_ANSWERS} coded words occur most often?"
    )
    size = (recipe.length_tokens or 0) // 50
    coded = [CODED_NOISE, *coin_words(draft.content, max(size - 1, 0), CODED_LETTERS, ascii_lowercase)]

    def build(size: int) -> str:
        text = [word for word, count in zip(coded, _frequencies(size, len(coded)), strict=True)
                for _ in range(count)]  # fmt: skip
        draft.order.shuffle(text)
        return " ".join(text)

    document, tokens, size = draft.fit(problem, build)
    counts = _frequencies(size, len(coded))
    if len(counts) < CODED_ANSWERS + 2 or counts[CODED_ANSWERS] == counts[CODED_ANSWERS + 1]:
        raise draft.too_short()
    return draft.example(problem, document, tuple(coded[1 : CODED_ANSWERS + 1]), tokens)


def _frequencies(size: int, ranks: int) -> list[int]:
    """How often the word of each rank occurs among about `size` words: a zeta distribution."""
    return [int(size * rank**-ALPHA / _ZETA) for rank in range(1, ranks + 1)]


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
    coined: dict[str, None] = {}
    while len(coined) < count:
        coined["".join(source.choices(alphabet, k=letters))] = None
    return list(coined)


@cache
def _list(category: str) -> tuple[str, ...]:
    try:
        from wonderwords import RandomWord  # type: ignore[import-untyped]  # it reads its lists on import
    except ImportError as error:
        raise SettingsError(f"this task needs a package: {extra_hint('eval')}") from error
    return tuple(sorted(set(RandomWord().filter(include_categories=(category,)))))
