"""Facts hidden in novels, noise or similar facts: several questions on each document, some left open."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from string import ascii_uppercase

from memagent.tasks.corpora import Essays
from memagent.tasks.needle import NEEDLE, NOISE, Kind, Needles, draw, like_needles
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.tracing import vt_problem
from memagent.tasks.vocabulary import coin_words

FORMS = (
    *(NEEDLE, NEEDLE, NEEDLE),
    "The {noun} of {key} is {value}.",
    "Remember that {key} has the {noun} {value}.",
)
ASKED = (
    *("Which special magic {kind} does the text give for {key}?",) * 2,
    "What is the {kind} of {key}?",
    "What is the special magic {kind} for {key} mentioned in the text?",
)
ALL_ASKED = (
    *("Which special magic {kind}s does the text give for {key}? List every one of them.",) * 2,
    "What are all the {kind}s of {key}?",
    "What are all the special magic {kind}s for {key} mentioned in the text?",
)
NOUNS = {"numbers": "number", "words": "word", "uuids": "UUID"}
ROOM = {"numbers": 4, "words": 4, "uuids": 3}  # needles that a memory has room for

Limits = tuple[int, int]
"""The minimum and maximum characters of a document."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a document, which may not answer it; `evidence` is then empty."""

    problem: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    task: str


def needles(novels: Sequence[Essays], limits: Limits, seed: int) -> Iterator[tuple[str, list[Question]]]:
    """Documents with needles for two to six keys, and questions on one or on up to four of them."""
    source = random.Random(f"needles/{seed}")
    while True:
        key_kind: Kind = source.choice(("words",) * 6 + ("uuids",))
        value_kind: Kind = source.choice(("numbers",) * 4 + ("words", "uuids"))
        keys: dict[str, list[str]] = {}
        for _ in range(source.randint(3, 6)):
            many = source.choice((1, 1, 1, 1, 2, 3, 4))
            keys[draw(key_kind, source)] = [draw(value_kind, source) for _ in range(many)]
        *known, other = keys
        if source.random() < 0.3:
            known.append(other)
        form, noun = source.choice(FORMS), NOUNS[value_kind]
        hidden = [
            (key, value, form.format(kind=value_kind, noun=noun, key=key, value=value))
            for key in known
            for value in keys[key]
        ]
        source.shuffle(hidden)
        like = like_needles(Needles("needle", key_kind, value_kind), source, keys)
        haystack, between = _haystack(novels, like, source.randint(*limits), source)
        document = _hide([text for _, _, text in hidden], haystack, between, source)
        most = min(4, len(known))
        asked = [[key] for key in source.sample(known, most)]
        asked += [source.sample(known, source.randint(2, most)) for _ in range(2)]
        asked += [[other]] if other not in known else []
        questions = []
        for group in asked:
            sought = [(key, value, text) for key, value, text in hidden if key in group]
            if len(sought) <= ROOM[value_kind]:
                questions.append(_question(group, noun, sought, source))
        yield document, questions


def _question(
    group: Sequence[str], noun: str, sought: Sequence[tuple[str, str, str]], source: random.Random
) -> Question:
    """A question on some keys, with what is sought: each key, value and text, in the document's order."""
    words = group[0] if len(group) == 1 else f"{', '.join(group[:-1])} and {group[-1]}"
    forms = ASKED if len(sought) == 1 else ALL_ASKED if sought else (*ASKED, *ALL_ASKED)
    return Question(
        source.choice(forms).format(kind=noun, key=words),
        tuple(value for _, value, _ in sought) or ABSENT_ANSWERS[:1],
        tuple(text for _, _, text in sought),
        "niah_multivalue" if len(sought) > 1 else "niah_single_1",
    )


def variables(limits: Limits, seed: int) -> Iterator[tuple[str, list[Question]]]:
    """Documents with one to three chains of variables, a question on each, and one on a value without any."""
    source = random.Random(f"variables/{seed}")
    while True:
        names = iter(coin_words(source, 15, 5, ascii_uppercase))
        absent, *values = source.sample(range(10_000, 99_999), source.choice((2, 2, 3, 4)))
        chains = {value: [*islice(names, source.choice((3, 4, 5, 5)))] for value in values}
        lines = {
            value: (f"VAR {first} = {value}", *(f"VAR {it} = VAR {before}" for before, it in pairwise(chain)))
            for value, chain in chains.items()
            for first in chain[:1]
        }
        rest = {value: iter(of) for value, of in lines.items()}
        turns = [value for value, of in lines.items() for _ in of]
        source.shuffle(turns)
        noise = [NOISE] * (source.randint(*limits) // len(NOISE))
        document = _hide([next(rest[value]) for value in turns], noise, "\n", source)
        questions = [
            Question(vt_problem(len(chain), value), tuple(chain), lines[value], "vt")
            for value, chain in chains.items()
        ]
        questions.append(Question(vt_problem(5, absent), ABSENT_ANSWERS[:1], (), "niah_single_1"))
        yield document, questions


def _hide(hidden: Sequence[str], haystack: list[str], between: str, source: random.Random) -> str:
    """The haystack with the hidden texts in it, in their order."""
    for already, place in enumerate(sorted(source.choices(range(len(haystack) + 1), k=len(hidden)))):
        haystack.insert(place + already, hidden[already])
    return between.join(haystack)


def _haystack(
    novels: Sequence[Essays], like: Iterator[str], characters: int, source: random.Random
) -> tuple[list[str], str]:
    """Sentences or lines to hide needles among, and the separator between them."""
    kind = source.random()
    if kind < 0.7:
        return _sentences(source.choice(novels), source, characters), " "
    if kind < 0.85:
        return [NOISE] * (characters // len(NOISE)), "\n"
    return list(islice(like, characters // 90)), "\n"


def novel(novels: Sequence[Essays], source: random.Random, characters: int, parts: int) -> list[str]:
    """Passages of a novel that have so many characters together."""
    return [" ".join(_sentences(source.choice(novels), source, characters // parts)) for _ in range(parts)]


def _sentences(essays: Essays, source: random.Random, characters: int) -> list[str]:
    """Consecutive sentences of a book, from a random one on."""
    sentence = source.randrange(len(essays.starts) - 400)
    found: list[str] = []
    while sum(map(len, found)) < characters:
        found.append(" ".join(essays.words[essays.starts[sentence] : essays.starts[sentence + 1]]))
        sentence += 1
    return found
