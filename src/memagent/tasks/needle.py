"""RULER's eight needle tasks: sentences with magic values, hidden in text that may look like them.

The form of the needle, the haystacks, the kinds and numbers of keys and values, and the forty depths
are RULER's (arXiv 2404.06654); the question is in our own words. Unlike RULER, no key occurs twice,
and essays begin again when they run out.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Literal

from memagent.tasks.lengths import Pieces
from memagent.tasks.recipe import ABSENT_ANSWERS, Draft, Recipe, Task
from memagent.tasks.vocabulary import compound
from memagent.types import Example

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS = tuple(round(100 * step / 39) for step in range(40))  # in percent of the sentences

_ANSWER_TOKENS = 128

Kind = Literal["words", "numbers", "uuids"]


@dataclass(frozen=True, slots=True)
class Needles:
    """What is hidden where: `keys` keys with `values` values each; `queries` of the keys are asked for."""

    haystack: Literal["noise", "essay", "needle"]
    key: Kind = "words"
    value: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


VARIANTS = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles("essay"),
    "niah_single_3": Needles("essay", value="uuids"),
    "niah_multikey_1": Needles("essay", keys=4),
    "niah_multikey_2": Needles("needle"),
    "niah_multikey_3": Needles("needle", key="uuids", value="uuids"),
    "niah_multivalue": Needles("essay", values=4),
    "niah_multiquery": Needles("essay", keys=4, queries=4),
}


def tasks() -> list[Task]:
    """The eight tasks."""
    return [
        Task(
            name,
            partial(make, name, needles),
            "string_match_all",
            _ANSWER_TOKENS,
            corpus="essays" if needles.haystack == "essay" else None,
            can_be_absent=True,
        )
        for name, needles in VARIANTS.items()
    ]


def make(name: str, needles: Needles, recipe: Recipe, index: int) -> Example:
    """One example. Raises `SettingsError` if the length leaves no room for the needles."""
    draft = Draft(name, _ANSWER_TOKENS, recipe, index)
    source = draft.content
    keys: dict[str, list[str]] = {}
    while len(keys) < needles.keys:
        keys.setdefault(draw(needles.key, source), [])
    for values in keys.values():
        values += [draw(needles.value, source) for _ in range(needles.values)]
    asked = source.sample(list(keys), needles.queries)
    problem = _problem(needles, asked)
    sought = {text for key in asked for text in _sentences(needles, key, keys[key])}
    hidden = [text for key, values in keys.items() for text in _sentences(needles, key, values)]
    draft.order.shuffle(hidden)
    if draft.absent:
        hidden = [text for text in hidden if text not in sought]
    build, pieces = _builder(needles, recipe, source, keys, hidden)
    document, tokens, _ = draft.fit(problem, build, pieces.characters)
    haystack = recipe.corpora.essays().label if needles.haystack == "essay" else ""
    if draft.absent:  # the scorer wants all answers, so there is one wording
        return draft.example(problem, document, ABSENT_ANSWERS[:1], tokens, haystack=haystack)
    answers = tuple(value for key in asked for value in keys[key])
    evidence = tuple(text for text in hidden if text in sought)
    return draft.example(problem, document, answers, tokens, evidence, haystack)


def _sentences(needles: Needles, key: str, values: Sequence[str]) -> list[str]:
    return [NEEDLE.format(kind=needles.value, key=key, value=value) for value in values]


def _problem(needles: Needles, asked: Sequence[str]) -> str:
    kind = {"numbers": "number", "uuids": "UUID", "words": "word"}[needles.value]
    names = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
    if needles.queries * needles.values == 1:
        return f"Which special magic {kind} does the text give for {names}?"
    return f"Which special magic {kind}s does the text give for {names}? List every one of them."


def draw(kind: Kind, source: random.Random) -> str:
    """A random key or value: a compound word, seven digits, or a version 4 UUID."""
    if kind == "words":
        return compound(source)
    if kind == "numbers":
        return str(source.randint(10**6, 10**7 - 1))
    return str(uuid.UUID(int=source.getrandbits(128), version=4))


def _builder(
    needles: Needles, recipe: Recipe, source: random.Random, keys: Container[str], hidden: Sequence[str]
) -> tuple[Callable[[int], str], Pieces]:
    """A function from a number of pieces of haystack to the document, and the pieces.

    The pieces are words of essays, with needles between sentences, or lines. Raises `SettingsError`.
    """
    seed = source.getrandbits(64)
    if needles.haystack == "essay":
        essays = recipe.corpora.essays()
        words = Pieces(cycle(essays.words))
        depths = sorted(random.Random(seed).sample(DEPTHS, len(hidden)))

        def among_essays(size: int) -> str:
            sentences = essays.sentences_within(size)
            places = [min(size, essays.start(sentences * depth // 100)) for depth in depths]
            return " ".join(insert(words.first(size), hidden, places))

        return among_essays, words
    like = like_needles(needles, random.Random(source.getrandbits(64)), keys)
    lines = Pieces(cycle([NOISE]) if needles.haystack == "noise" else like)

    def among_lines(size: int) -> str:
        places = random.Random(seed).sample(range(max(size, len(hidden))), len(hidden))
        return "\n".join(insert(lines.first(size), hidden, sorted(places)))

    return among_lines, lines


def like_needles(needles: Needles, source: random.Random, keys: Container[str]) -> Iterator[str]:
    """An endless supply of needles with other keys."""
    while True:
        if (key := draw(needles.key, source)) not in keys:
            yield NEEDLE.format(kind=needles.value, key=key, value=draw(needles.value, source))


def insert(texts: Sequence[str], hidden: Sequence[str], places: Sequence[int]) -> list[str]:
    """The texts, with each hidden one inserted before the text at its place. Places must ascend."""
    merged: list[str] = []
    last = 0
    for place, text in zip(places, hidden, strict=True):
        merged += texts[last:place]
        merged.append(text)
        last = max(last, place)
    return merged + list(texts[last:])
