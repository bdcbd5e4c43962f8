"""RULER's variable tracking: a value passed from variable to variable, among lines of noise.

One chain of four hops, as in RULER. All names differ, and making a chain always ends (RULER's
generator may use a name twice, and may loop forever at small lengths). RULER puts a worked example
before the text; here there is none, since its names could be taken for answers.
"""

from __future__ import annotations

import random
from itertools import pairwise
from string import ascii_uppercase

from memagent.tasks.needle import NOISE, insert
from memagent.tasks.recipe import Draft, Recipe, Task
from memagent.tasks.vocabulary import coin_words
from memagent.types import Example

HOPS = 4
NAME_LETTERS = 5

_ANSWER_TOKENS = 30


def tasks() -> list[Task]:
    """The one task, `vt`."""
    return [Task("vt", make, "string_match_all", _ANSWER_TOKENS)]


def make(recipe: Recipe, index: int) -> Example:
    """One example. Raises `SettingsError` if the length leaves no room for the chain."""
    draft = Draft("vt", _ANSWER_TOKENS, recipe, index)
    source = draft.content
    names = coin_words(source, HOPS + 1, NAME_LETTERS, ascii_uppercase)
    value = source.randint(10_000, 99_998)
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {name} = VAR {before}" for before, name in pairwise(names)]
    problem = vt_problem(len(names), value)
    seed = source.getrandbits(64)

    def build(size: int) -> str:
        places = random.Random(seed).sample(range(max(size, len(chain))), len(chain))
        return "\n".join(insert([NOISE] * size, chain, sorted(places)))

    document, tokens, _ = draft.fit(problem, build)
    return draft.example(problem, document, tuple(names), tokens, tuple(chain))


def vt_problem(count: int, value: int) -> str:
    """The question about a chain of `count` variables."""
    return (
        f"Which {count} variables in the text have the value {value}, "
        "given directly or through other variables? List all of their names."
    )
