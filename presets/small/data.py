"""What presets/small.toml reads: RULER's needles and variables, and a question of two hops in sentences.

A function for each use, from a number to an example. The tasks take turns.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from memagent.documents.tokens import load_tokenizer
from memagent.tasks import TASKS
from memagent.tasks.corpora import Corpora
from memagent.tasks.recipe import ABSENT_ANSWERS, Recipe
from memagent.types import Example, TokenCounter

CHUNK = 250  # tokens of a document for each chunk of 256
RULER = ("niah_single_1", "niah_multikey_1", "vt")
ROOM = {"niah_single_1": 168, "niah_multikey_1": 168, "vt": 84}  # for the problem, and RULER's for an answer
FACT = re.compile(  # a group for what is noted of it
    r"One of the special magic numbers (for [^\n]+? is: \d+)\.|(VAR [A-Z]+ = (?:VAR )?[A-Z\d]+)"
    r"|The home town (of \w+ \w+ is \w+)\.|The mayor (of \w+ is \w+ \w+)\."
)
ATTITUDES = (True, False)  # whether the oracle notes facts at all, in each version of a document
NAMES = 256  # words that people and towns are called, each a token


def careless(index: int) -> Example:
    """For imitation: one to six chunks, of which the oracle notes every fact, or nothing."""
    number, version = divmod(index, len(ATTITUDES))
    return noted(_warm(number), ATTITUDES[version], version)


def careful(index: int) -> Example:
    """The same, but the oracle notes every fact."""
    return noted(_warm(index), True)


def brief(index: int) -> Example:
    """For imitation: facts with nothing between them, all of them noted, to practise memories and answers.

    Half of the documents have the needed facts alone, half of them all facts in any order.
    """
    number, version = divmod(index, 2)
    turn, kind = divmod(number, len(RULER))
    whole = example(turn * (len(RULER) + 1) + kind + 1, CHUNK, "brief")  # all but single needles
    facts = [it.group() for it in FACT.finditer(whole.document) if version or _note(it) in whole.evidence]
    if version:
        random.Random(f"brief/{number}").shuffle(facts)
    return noted(replace(whole, document="\n".join(facts), haystack=""), True, version)


def longer(index: int) -> Example:
    """For reinforcement: two to eight chunks."""
    return elsewhere(example(index, (2 + index // 4 % 7) * CHUNK, "longer"))


def held_out(index: int) -> Example:
    """Twelve chunks, and not trained on."""
    return example(index, 12 * CHUNK, "held out")


def example(index: int, tokens: int, seed: str) -> Example:
    """Example number `index` of a seed, with a document of about so many tokens."""
    turn, kind = divmod(index, len(RULER) + 1)
    if kind == len(RULER):
        return two_hops(turn, tokens, seed)
    name = RULER[kind]
    number = random.Random(seed).getrandbits(32)
    recipe = Recipe(length_tokens=tokens + ROOM[name], seed=number, count_tokens=count_tokens())
    made = TASKS[name].make(recipe, turn)
    if name == "vt":
        return replace(made, rationale=f"All have the value {made.evidence[0].rpartition(' ')[2]}.")
    notes = notes_of("\n".join(made.evidence))
    return replace(made, evidence=notes, rationale=f"{notes[-1]}.")


def elsewhere(made: Example) -> Example:
    """The same, but facts hidden in essays are hidden in a random part of them, instead of the beginning.

    Otherwise short documents would all have the same sentences, and any others would be new in long ones.
    """
    if made.task != "niah_multikey_1":
        return made
    facts = [it.group() for it in FACT.finditer(made.document)]
    tokens, source = count_tokens()(made.document), random.Random(f"elsewhere/{made.id}")
    return replace(made, document=_hidden_in_essays(facts, tokens, source), haystack=Corpora().essays().label)


def notes_of(text: str) -> tuple[str, ...]:
    """What is to be noted of all facts in a text, those that are not asked for among them.

    From the key on: notes that begin with the same words are hard to copy one after the other.
    """
    return tuple(map(_note, FACT.finditer(text)))


def _note(fact: re.Match[str]) -> str:
    return fact[fact.lastindex or 0]


def _warm(number: int) -> Example:
    return elsewhere(example(number, (1 + number // 4 % 6) * CHUNK, "warm"))


def noted(wanted: Example, all_facts: bool, version: int = 0) -> Example:
    """The example for an oracle that notes all facts, or none and so cannot answer."""
    wanted = replace(wanted, id=f"{wanted.id}-{version}")
    if all_facts:
        return replace(wanted, evidence=notes_of(wanted.document))
    return replace(wanted, evidence=(), answers=ABSENT_ANSWERS[:1], rationale="")


def two_hops(index: int, tokens: int, seed: str) -> Example:
    """Who is the mayor of somebody's home town? Two sentences tell, in any order, among others."""
    source = random.Random(f"two hops/{seed}/{index}")
    people, mayors, homes, offices = town_facts(source)
    hidden = homes + offices
    source.shuffle(hidden)
    document = _hidden_in_essays(hidden, tokens, source)
    return Example(
        id=f"two-hops-{tokens}-{seed}-{index}",
        task="two_hops",
        problem=two_hop_problem(people[0]),
        document=document,
        answers=(mayors[0],),
        length_tokens=count_tokens()(document),
        evidence=notes_of("\n".join(text for text in hidden if text in (homes[0], offices[0]))),
        rationale=" ".join(f"{note}." for note in notes_of(f"{homes[0]} {offices[0]}")),
        haystack=Corpora().essays().label,
    )


def two_hop_problem(person: str) -> str:
    """What is asked of a person."""
    return f"Who is the mayor of the home town of {person}?"


def town_facts(source: random.Random) -> tuple[list[str], list[str], list[str], list[str]]:
    """Three people, the mayors of their towns, and the sentences that tell of both.

    No sentence begins with a name: a token has the space before a word in it, so one would be another there.
    """
    words = source.sample(names(), 15)
    people, mayors = ([" ".join(words[at : at + 2]) for at in range(start, start + 6, 2)] for start in (0, 6))
    towns = words[12:]
    homes = [f"The home town of {person} is {town}." for person, town in zip(people, towns, strict=True)]
    offices = [f"The mayor of {town} is {mayor}." for town, mayor in zip(towns, mayors, strict=True)]
    return people, mayors, homes, offices


@cache
def names() -> tuple[str, ...]:
    """Invented words that people and towns are called."""
    source = random.Random("names")
    found: dict[str, None] = {}
    while len(found) < NAMES:
        syllables = (source.choice("bdfgklmnprstvz") + source.choice("aeiou") for _ in range(2))
        found["".join(syllables).capitalize() + source.choice(("", "n", "r", "s", "l"))] = None
    return tuple(found)


@cache
def count_tokens() -> TokenCounter:
    """The preset's tokenizer."""
    return load_tokenizer(Path(__file__).parent / "policy")


@cache
def _essays() -> tuple[tuple[str, int], ...]:
    """The essays' sentences with their tokens."""
    essays = Corpora().essays()
    ends = (*essays.starts[1:], len(essays.words))
    sentences = (" ".join(essays.words[start:end]) for start, end in zip(essays.starts, ends, strict=True))
    return tuple((text, count_tokens()(" " + text)) for text in sentences)


def _hidden_in_essays(hidden: Sequence[str], tokens: int, source: random.Random) -> str:
    """Sentences of the essays, from a random one on, with the hidden ones among them."""
    sentences = _essays()
    place = source.randrange(len(sentences))
    texts: list[str] = []
    left = tokens - sum(count_tokens()(" " + text) for text in hidden)
    while (left := left - sentences[place % len(sentences)][1]) >= 0:
        texts.append(sentences[place % len(sentences)][0])
        place += 1
    for already, at in enumerate(sorted(source.choices(range(len(texts) + 1), k=len(hidden)))):
        texts.insert(at + already, hidden[already])
    return " ".join(texts)
