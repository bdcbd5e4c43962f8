"""RULER's tasks of lines hidden in text: eight needle tasks, and variable tracking.

The form of the needle, the haystacks, the kinds and numbers of keys and values, the forty depths and the four
hops are RULER's (arXiv 2404.06654); the questions are in our own words. Unlike in RULER, no key or variable
occurs twice, essays begin again when they run out, making a chain always ends, and no worked example comes
before the text, since its names could be taken for answers.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, pairwise
from string import ascii_uppercase
from typing import Literal

from memagent.tasks.recipe import ABSENT_ANSWERS, Draft, Pieces, Recipe, Task
from memagent.tasks.words import coin_words, compound
from memagent.types import Example

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS = tuple(round(100 * step / 39) for step in range(40))  # in percent of the sentences

HOPS = 4
NAME_LETTERS = 5

_ANSWER_TOKENS = 128
_CHAIN_ANSWER_TOKENS = 30

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
    """The eight tasks of needles, and `vt`."""
    needles = [
        Task(
            name,
            partial(make, name, variant),
            "string_match_all",
            _ANSWER_TOKENS,
            corpus="essays" if variant.haystack == "essay" else None,
            can_be_absent=True,
        )
        for name, variant in VARIANTS.items()
    ]
    return [*needles, Task("vt", make_chain, "string_match_all", _CHAIN_ANSWER_TOKENS)]


def make(name: str, needles: Needles, recipe: Recipe, index: int) -> Example:
    """One example with needles. Raises `SettingsError` if the length leaves no room for the needles."""
    draft = Draft(name, _ANSWER_TOKENS, recipe, index)
    source = draft.content
    keys: dict[str, list[str]] = {}
    while len(keys) < needles.keys:
        keys.setdefault(draw(needles.key, source), [])
    for values in keys.values():
        values += [draw(needles.value, source) for _ in range(needles.values)]
    queried = source.sample(list(keys), needles.queries)
    problem = _problem(needles, queried)
    texts = {
        key: [NEEDLE.format(kind=needles.value, key=key, value=value) for value in values]
        for key, values in keys.items()
    }
    sought = {text for key in queried for text in texts[key]}
    hidden = list(chain.from_iterable(texts.values()))
    draft.order.shuffle(hidden)
    if draft.absent:
        hidden = [text for text in hidden if text not in sought]
    build, pieces = _builder(needles, recipe, source, keys, hidden)
    document, tokens, _ = draft.fit(problem, build, pieces.characters)
    haystack = recipe.corpora.essays().label if needles.haystack == "essay" else ""
    if draft.absent:  # the scorer requires all answers, so there is one wording
        return draft.example(problem, document, ABSENT_ANSWERS[:1], tokens, haystack=haystack)
    answers = tuple(value for key in queried for value in keys[key])
    evidence = tuple(text for text in hidden if text in sought)
    return draft.example(problem, document, answers, tokens, evidence, haystack)


def _problem(needles: Needles, queried: Sequence[str]) -> str:
    kind = {"numbers": "number", "uuids": "UUID", "words": "word"}[needles.value]
    names = queried[0] if len(queried) == 1 else f"{', '.join(queried[:-1])} and {queried[-1]}"
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
            positions = [min(size, essays.start(sentences * depth // 100)) for depth in depths]
            return " ".join(insert(words.first(size), hidden, positions))

        return among_essays, words
    like = like_needles(needles, random.Random(source.getrandbits(64)), keys)
    lines = Pieces(cycle([NOISE]) if needles.haystack == "noise" else like)
    return _hide_among(lines, hidden, seed), lines


def _hide_among(lines: Pieces, hidden: Sequence[str], seed: int) -> Callable[[int], str]:
    """A function from a number of lines to the document that hides others at random positions among them."""

    def build(size: int) -> str:
        positions = random.Random(seed).sample(range(max(size, len(hidden))), len(hidden))
        return "\n".join(insert(lines.first(size), hidden, sorted(positions)))

    return build


def like_needles(needles: Needles, source: random.Random, keys: Container[str]) -> Iterator[str]:
    """An endless supply of needles with other keys."""
    while True:
        if (key := draw(needles.key, source)) not in keys:
            yield NEEDLE.format(kind=needles.value, key=key, value=draw(needles.value, source))


def insert(texts: Sequence[str], hidden: Sequence[str], positions: Sequence[int]) -> list[str]:
    """The texts, with each hidden one inserted before the text at its position. Positions must ascend."""
    merged: list[str] = []
    last = 0
    for position, text in zip(positions, hidden, strict=True):
        merged += texts[last:position]
        merged.append(text)
        last = max(last, position)
    return merged + list(texts[last:])


def make_chain(recipe: Recipe, index: int) -> Example:
    """One example of `vt`. Raises `SettingsError` if the length leaves no room for the chain."""
    draft = Draft("vt", _CHAIN_ANSWER_TOKENS, recipe, index)
    source = draft.content
    names = coin_words(source, HOPS + 1, NAME_LETTERS, ascii_uppercase)
    value = source.randint(10_000, 99_998)
    lines = [f"VAR {names[0]} = {value}"]
    lines += [f"VAR {name} = VAR {before}" for before, name in pairwise(names)]
    problem = (
        f"Which {len(names)} variables in the text have the value {value}, "
        "given directly or through other variables? List all of their names."
    )
    build = _hide_among(Pieces(cycle([NOISE])), lines, source.getrandbits(64))
    document, tokens, _ = draft.fit(problem, build)
    return draft.example(problem, document, tuple(names), tokens, tuple(lines))
