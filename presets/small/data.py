"""What presets/small.toml reads: facts hidden in essays, more than fit a memory; a question needs a few.

Each document has 16 to 24 facts of one kind; its question needs one to four of them, and the memory has no
room for all. So who notes everything fails. The kinds take turns: one number of many, as in RULER's
`niah_multikey_1`; two to four of them, as in `niah_multiquery`; and the mayor of somebody's home town, a
question of two hops. The home town stands first, so that a reader who has noted it can know which mayor
matters. Training reads the first half of the essays, tests the second.

A function for each use, from a number to an example.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path

from memagent.documents.tokens import load_tokenizer
from memagent.tasks.corpora import Corpora, Essays
from memagent.tasks.needle import NEEDLE
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.words import compound
from memagent.types import Example, TokenCounter

CHUNK = 250  # tokens of a document for each chunk of 256
TASKS = 3
FACTS = (16, 24)  # in a document, at least and at most
UNDECIDED = 2 / 3  # of the documents, of which the undecided oracle notes any facts
FOUR, FEW = (4, 4), (4, 12)  # facts of the documents that teach forms: all of four are noted, any of a few
AT_RANDOM = "whatever the question"  # the rationale of a reader that looks up any facts
ROOM = 90  # tokens of the memory that these facts take at most
WARM, LONGER = (2, 3, 4, 6, 8, 12), (3, 4, 5, 6, 7, 8)  # chunks of the documents, which take turns
SMALLEST, LARGEST = (2, 6), (12, 24)  # chunks and facts of the documents that grow
SETTLED, GROWN = 3600, 4800  # documents before they grow, and while they do
NAMES = 256  # words that people and towns are called, each a token
SEEN, UNSEEN = "the first half of the essays", "the second half of the essays"
FACT = re.compile(  # a group for what is noted of it
    r"One of the special magic numbers (for [^\n]+? is: \d+)\."
    r"|The home town (of \w+ \w+ is \w+)\.|The mayor (of \w+ is \w+ \w+)\."
)
NAME = re.compile(r"(?<=[a-z,] )(?:[A-Z][a-z]{2,}|\d+)\b")  # or a number, within a sentence
MASKED_TOKENS = 60  # of a sentence of the essays, at most: a problem has 64
NOTE = re.compile(r"for [^\n:]+ is: \d+\.?|of \w+(?: \w+)? is \w+(?: \w+)?\.?")

Made = tuple[str, list[str]]
"""A question, and the facts in the order of the document."""


def careful(index: int) -> Example:
    """For imitation: two to twelve chunks, of which the oracle notes what the question needs."""
    return _warm(index)


def brief(index: int) -> Example:
    """The same facts with nothing between them, to practise memories and answers."""
    return _bare(_warm(index))


def undecided(index: int) -> Example:
    """For imitation: of two documents in three, an oracle that notes any facts, whatever the question."""
    whole = _warm(index)
    source = random.Random(f"undecided/{index}")
    return _at_random(whole, source) if source.random() < UNDECIDED else whole


def undecided_brief(index: int) -> Example:
    """The same facts with nothing between them."""
    return _bare(undecided(index))


def forms(index: int) -> Example:
    """For imitation of the forms alone: few facts, of which any are looked up and noted, or four, all noted.

    So what is noted does not depend on the question, and half of the memories hold all that it needs.
    """
    source = random.Random(f"forms/{index}")
    facts = source.choice((FOUR, FEW))
    whole = example(index, WARM[index // TASKS % 4] * CHUNK, "forms", SEEN, facts)
    least = FOUR[0] if facts == FOUR else 1
    return replace(_at_random(whole, source, least), rationale=AT_RANDOM)


def forms_brief(index: int) -> Example:
    """The same facts with nothing between them."""
    return _bare(forms(index))


def growing(index: int) -> Example:
    """For reinforcement: 2 chunks with 6 facts until that is learned, then up to 12 chunks with 24."""
    grown = min(max(index - SETTLED, 0) / GROWN, 1.0)
    chunks, facts = (round(low + grown * (high - low)) for low, high in zip(SMALLEST, LARGEST, strict=True))
    return example(index, chunks * CHUNK, "growing", SEEN, (facts, facts))


def longer(index: int) -> Example:
    """For reinforcement: three to eight chunks."""
    return example(index, LONGER[index // TASKS % len(LONGER)] * CHUNK, "longer", SEEN)


def held_out(index: int) -> Example:
    """Twelve chunks, and not trained on."""
    return example(index, 12 * CHUNK, "held out")


def masked(index: int) -> Example:
    """For reinforcement without questions: the problem is a fact of the text whose last word is masked."""
    return _mask(longer(index))


def masked_held_out(index: int) -> Example:
    """The same of twelve chunks, and not trained on."""
    return _mask(held_out(index))


def masked_essay(index: int, haystack: str = SEEN) -> Example:
    """For reinforcement on a text as it is: a name or number of its first sentence is masked."""
    source = random.Random(f"masked essay/{haystack}/{index}")
    position = source.choice(_places_of_names(haystack))
    texts = _sentences_from(haystack, LONGER[index % len(LONGER)] * CHUNK, position)
    name = source.choice([*NAME.finditer(texts[0])])
    document = " ".join(texts)
    return Example(
        id=f"masked-essay-{index}", task="masked_essay",
        problem=f"{texts[0][: name.start()]}____{texts[0][name.end() :]}",
        document=document, answers=(name.group(),), length_tokens=count_tokens()(document),
        evidence=(texts[0],), haystack=_name(haystack),
    )  # fmt: skip


def masked_essay_held_out(index: int) -> Example:
    """The same of the other essays."""
    return masked_essay(index, UNSEEN)


def example(
    index: int, tokens: int, seed: str, haystack: str = UNSEEN, facts_between: tuple[int, int] = FACTS
) -> Example:
    """Example number `index` of a seed, with a document of about so many tokens.

    Its facts, so many at least and at most, are hidden in a half of the essays, or in the text of a file.
    """
    source = random.Random(f"{seed}/{index}")
    task, make = [*kinds(facts_between).items()][index % TASKS]
    problem, facts = make(source)
    needed, answers = solve(problem, notes_of("\n".join(facts)))
    document = _hide(facts, tokens, source, haystack)
    return Example(
        id=f"{task}-{tokens}-{seed}-{index}", task=task, problem=problem, document=document, answers=answers,
        length_tokens=count_tokens()(document), evidence=needed, haystack=_name(haystack),
        rationale="\n".join(look_up(problem, needed, ())),
    )  # fmt: skip


def notes_of(text: str) -> tuple[str, ...]:
    """What can be noted of all facts in a text, needed or not.

    From the key on: notes that begin with the same words are hard to copy one after the other.
    """
    return tuple(fact[fact.lastindex or 0] for fact in FACT.finditer(text))


def places_of(text: str) -> list[tuple[int, int]]:
    """Where the facts of a text stand, in characters."""
    return [fact.span() for fact in FACT.finditer(text)]


def look_up(problem: str, memory: Sequence[str], chunk: Sequence[str]) -> list[str]:
    """What the problem asks for, a line each, completed by the note that tells it, if there is one.

    A note of the chunk has the full stop that it has there; one of the memory has none.
    """
    known = [entry for entry in (*memory, *(f"{item}." for item in chunk)) if NOTE.fullmatch(entry)]

    def complete(wanted: str) -> str:
        return next((row for row in known if row.startswith(f"{wanted} is")), wanted)

    if keys := _keys(problem):
        return [complete(f"for {key}") for key in keys]
    home = complete(f"of {problem.removesuffix('?').partition(' town of ')[2]}")
    town = home.removesuffix(".").partition(" is ")[2]
    return [home, *([complete(f"of {town}")] if town else [])]


def solve(problem: str, notes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The notes that lead to an answer, one after the other, and the answers; as much as these notes tell."""
    facts = [item for item in look_up(problem, notes, ()) if " is" in item]
    answers = facts if _keys(problem) else facts[1:]
    return tuple(facts), tuple(re.split(r" is:? ", answer)[1] for answer in answers)


def _keys(problem: str) -> list[str]:
    """The keys of the numbers that a problem asks for, if it asks for numbers."""
    asked = problem.removesuffix("?").partition(" give for ")[2]
    return re.split(r", | and ", asked) if asked else []


def is_answered(problem: str, notes: Sequence[str]) -> bool:
    """Whether the notes hold all that the problem needs."""
    return all(" is" in line for line in look_up(problem, notes, ()))


def _numbers(source: random.Random, most: int, facts_between: tuple[int, int]) -> Made:
    keys: dict[str, int] = {}
    count = source.randint(*facts_between)
    while len(keys) < count:
        keys[compound(source)] = source.randint(10**6, 10**7 - 1)
    asked = source.sample(sorted(keys), source.randint(min(2, most), most))
    names = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
    many = "s" * (len(asked) > 1)
    problem = f"Which special magic number{many} does the text give for {names}?"
    return problem, [NEEDLE.format(kind="numbers", key=key, value=value) for key, value in keys.items()]


def _two_hops(source: random.Random, facts: int) -> Made:
    people, homes, offices = _town_facts(source, facts // 2)
    order = [*range(len(people))] * 2
    source.shuffle(order)
    rest = [[home, office] for home, office in zip(homes, offices, strict=True)]
    problem = f"Who is the mayor of the home town of {people[0]}?"
    return problem, [rest[number].pop(0) for number in order]


def kinds(facts_between: tuple[int, int] = FACTS) -> dict[str, Callable[[random.Random], Made]]:
    """The three tasks, in turn, with so many facts at least and at most."""
    return {
        "niah_multikey_1": lambda source: _numbers(source, 1, facts_between),
        "niah_multiquery": lambda source: _numbers(source, 4, facts_between),
        "two_hops": lambda source: _two_hops(source, facts_between[1]),
    }


def _town_facts(source: random.Random, count: int) -> tuple[list[str], list[str], list[str]]:
    """So many people, the sentences that tell of their home towns, and those of these towns' mayors.

    No sentence begins with a name: a token has the space before a word in it, so one would be another there.
    """
    words = source.sample(names(), 5 * count)
    first, last, mayors_first, mayors_last, towns = (words[at * count : (at + 1) * count] for at in range(5))
    people, mayors = (
        [*map(" ".join, zip(*item, strict=True))] for item in ((first, last), (mayors_first, mayors_last))
    )
    homes = [f"The home town of {person} is {town}." for person, town in zip(people, towns, strict=True)]
    offices = [f"The mayor of {town} is {mayor}." for town, mayor in zip(towns, mayors, strict=True)]
    return people, homes, offices


@cache
def names() -> tuple[str, ...]:
    """Invented words that people and towns are called."""
    source = random.Random("names")
    matches: dict[str, None] = {}
    while len(matches) < NAMES:
        syllables = (source.choice("bdfgklmnprstvz") + source.choice("aeiou") for _ in range(2))
        matches["".join(syllables).capitalize() + source.choice(("", "n", "r", "s", "l"))] = None
    return tuple(matches)


@cache
def count_tokens() -> TokenCounter:
    """The preset's tokenizer."""
    return load_tokenizer(Path(__file__).parent / "policy")


def _warm(index: int) -> Example:
    return example(index, WARM[index // TASKS % len(WARM)] * CHUNK, "warm", SEEN)


def _bare(whole: Example) -> Example:
    facts = (match.group() for match in FACT.finditer(whole.document))
    return replace(whole, id=f"{whole.id}-brief", document="\n".join(facts), haystack="")


def _at_random(whole: Example, source: random.Random, least: int = 1) -> Example:
    """The same document and question with any facts for evidence, `least` or more if the memory has room."""
    notes = notes_of(whole.document)
    mixed = source.sample(notes, len(notes))
    fits = [
        entry
        for entry, total in zip(mixed, accumulate(count_tokens()(f"{item}\n") for item in mixed), strict=True)
        if total <= ROOM
    ]
    chosen = fits[: source.randint(min(least, len(fits)), len(fits))]
    noted = tuple(note for note in notes if note in chosen)
    return replace(
        whole, evidence=noted, answers=solve(whole.problem, noted)[1] or ABSENT_ANSWERS[:1], rationale=""
    )


def _mask(whole: Example) -> Example:
    fact = random.Random(f"masked/{whole.id}").choice([*FACT.finditer(whole.document)])
    sentence, (note,) = fact.group(), notes_of(fact.group())
    before, _, last = sentence.rstrip(".").rpartition(" ")
    return replace(
        whole,
        id=f"{whole.id}-masked",
        task="masked",
        problem=f"{before} ____",
        answers=(last,),
        evidence=(note,),
    )


def _is_half(haystack: str) -> bool:
    return haystack in (SEEN, UNSEEN)


def _text(haystack: str) -> Essays:
    """The essays, or the text of a file."""
    return (Corpora() if _is_half(haystack) else Corpora((("essays", Path(haystack)),))).essays()


def _name(haystack: str) -> str:
    label = _text(haystack).label
    return f"{haystack}: {label}" if _is_half(haystack) else label.replace("essays", Path(haystack).name, 1)


@cache
def _sentences(haystack: str) -> tuple[tuple[str, int], ...]:
    """A haystack's sentences with their tokens."""
    text = _text(haystack)
    ends = (*text.starts[1:], len(text.words))
    sentences = [" ".join(text.words[start:end]) for start, end in zip(text.starts, ends, strict=True)]
    half = len(sentences) // 2
    if _is_half(haystack):
        sentences = sentences[:half] if haystack == SEEN else sentences[half:]
    return tuple((sentence, count_tokens()(" " + sentence)) for sentence in sentences)


@cache
def _places_of_names(haystack: str) -> list[int]:
    """The numbers of a haystack's short sentences in which a name or number can be masked."""
    sentences = enumerate(_sentences(haystack))
    return [at for at, (sentence, tokens) in sentences if tokens < MASKED_TOKENS and NAME.search(sentence)]


def _sentences_from(haystack: str, tokens: int, position: int) -> list[str]:
    """Sentences of a haystack, from that one on, of at most so many tokens."""
    sentences = _sentences(haystack)
    texts: list[str] = []
    while (tokens := tokens - sentences[position % len(sentences)][1]) >= 0:
        texts.append(sentences[position % len(sentences)][0])
        position += 1
    return texts


def _hide(facts: Sequence[str], tokens: int, source: random.Random, haystack: str) -> str:
    """Sentences of a haystack, from a random one on, with the facts among them."""
    position = source.randrange(len(_sentences(haystack)))
    texts = _sentences_from(haystack, tokens - sum(count_tokens()(" " + text) for text in facts), position)
    for already, at in enumerate(sorted(source.choices(range(len(texts) + 1), k=len(facts)))):
        texts.insert(at + already, facts[already])
    return " ".join(texts)
