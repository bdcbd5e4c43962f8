"""What verdicts are trained on: texts, questions, and whether the text helps to answer the question.

    python recipes/verdict/pairs.py --sources FOLDER --hotpot hotpot_dev_distractor.jsonl.gz
        --wiki-hops 2wikimultihopqa.jsonl.gz --novels NOVEL.txt.gz... --wordnet DICT
        --out pairs.jsonl.gz

A text has 60 to 400 tokens: a passage, a part of one, or several. Of the questions that it answers, those
that share the fewest words with it come first; of those that it does not, those that share the most:
questions on what was cut off, on other passages of the same title, its own with a name exchanged. So
shared words give nothing away. Three sets have questions whose answer has to be concluded: FairytaleQA's
implicit ones, BoolQ's, and StrategyQA's beside the facts that they need. Some questions have their words
replaced by synonyms from WordNet (its folder `dict`). Questions of two hops are asked beside what is
known, too. There are as many Yes as No. All questions on a text share the beginning of their prompt,
which training computes once. The data, and what is left out of it, are those of
recipes/reader/lessons.py.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memagent.documents.opening import text_document
from memagent.documents.tokens import estimate_tokens
from memagent.prompts import AUTO
from memagent.reading.budgets import NOTED_TOKENS
from memagent.reading.ranking import stems, telling
from memagent.reading.verdicts import NO, YES
from memagent.tasks import TASKS
from memagent.tasks.corpora import Corpora, read_rows, read_text
from memagent.tasks.files import write_examples
from memagent.tasks.needle import VARIANTS
from memagent.tasks.recipe import ABSENT_ANSWERS, Recipe
from memagent.training.data import write_trajectories
from memagent.types import Completion, Conversation, Example, Trajectory

sys.path.insert(0, str(Path(__file__).parents[1] / "reader"))
from lessons import (
    TRIED,
    Asked,
    Passage,
    ask,
    exchange,
    group_by_title,
    load_passages,
    load_rows,
    parser_of,
    sentences_of,
)

SHARES = {"passages": 0.72, "hops": 0.2, "needles": 0.08}
MIN_CHARACTERS, MAX_CHARACTERS = 240, 1600  # of a text: 60 to 400 tokens
MIN_PAIRS, MAX_EACH = (
    6,
    5,
)  # questions on a text of passages; questions that a text answers, and those that it does not
REWORDED = 0.25  # of the questions that a text answers
PIECES = 40  # of each novel
EXAMPLES, MIN_CHUNKS, MAX_CHUNKS = 2000, 8, 16  # documents to reinforce on
MIN_SHARED = (
    2  # words that the second hop's paragraph shares with the question, to be found without the first
)

Span = tuple[int, int]
Reword = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Pair:
    """A question on a text, beside what is known of it, and whether the text helps."""

    problem: str
    helps: bool
    known: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text with the questions on it."""

    text: str
    pairs: tuple[Pair, ...]


class WordNet:
    """Synonyms, or else a more general word, of the first sense of nouns, verbs and adjectives."""

    def __init__(self, folder: Path) -> None:
        self._others: dict[str, list[str]] = {}
        for part in ("noun", "verb", "adj"):
            words: dict[str, tuple[list[str], list[str]]] = {}  # a synset's words, and the synsets above it
            for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
                if line.startswith(" "):
                    continue
                offset, _, _, count, *rest = line.partition("|")[0].split()
                own, end = rest[: 2 * int(count, 16) : 2], 2 * int(count, 16)
                pointers = rest[end + 1 :]
                above = [pointers[at + 1] for at in range(0, len(pointers) - 3, 4) if pointers[at] == "@"]
                words[offset] = [re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in own], above
            for line in (folder / f"index.{part}").read_text("latin-1").splitlines():
                if not line.startswith(" "):
                    lemma, _, count, pointers, *rest = line.split()
                    first = rest[int(pointers) + 2]
                    same, above = words[first]
                    others = [word for word in same if word.lower() != lemma]
                    others = others or [word for item in above for word in words[item][0][:2]]
                    self._others.setdefault(lemma.replace("_", " "), others)

    def others(self, word: str) -> list[str]:
        """Words for the same, or for more than it."""
        bare = word.removesuffix("ing")
        cut = (word.removesuffix(ending) for ending in ("s", "ed", "d"))
        forms = word, *cut, bare, f"{bare}e", f"{word.removesuffix('ies')}y"
        return next((self._others[form] for form in forms if self._others.get(form)), [])

    def reword(self, problem: str, text: str, source: random.Random) -> str:
        """The problem with other words, where there are such, for those that the text has."""
        there = frozenset(stems(text))

        def other(match: re.Match[str]) -> str:
            word = match.group()
            if not (telling(word) & there) or not word.islower():
                return word
            others = [item for item in self.others(word) if not telling(item) & there]
            return source.choice(others[:3]) if others else word

        return re.sub(r"[a-z]{3,}", other, problem)


def _overlap(problem: str, text: str) -> float:
    """The share of a problem's telling words that a text has."""
    words = telling(problem)
    return len(words & telling(text)) / (len(words) or 1)


def texts_of_passages(
    sets: Sequence[Sequence[Passage]], wordnet: WordNet | None, source: random.Random
) -> Iterator[Text]:
    """Texts of a passage, a part of it, or it and others of its set, if possible of the same title."""
    titles = group_by_title(sets)
    sizes = [sum(len(passage.asked) for passage in passages) ** 0.5 for passages in sets]
    while True:
        (index,) = source.choices(range(len(sets)), sizes)
        passage = source.choice(sets[index])
        near = titles[index][passage.title] if passage.title else []
        pool = near if len(near) > 3 else sets[index]
        size = source.randint(MIN_CHARACTERS, MAX_CHARACTERS)
        text, asked, cut_off = _cut(passage, size, source)
        while len(text) < size - MIN_CHARACTERS:
            other = source.choice(pool)
            if other.text in text or other is passage:
                break
            piece, more, rest = _cut(other, size - len(text), source)
            text = f"{text}\n\n{piece}" if source.random() < 0.5 else f"{piece}\n\n{text}"
            asked, cut_off = asked + more, cut_off + rest
        others = [
            question
            for one in source.sample(pool, min(TRIED, len(pool)))
            if one.text not in text
            for question in one.asked
        ]
        if near:
            far = source.choice(source.choice(sets)).asked
            others += source.sample(far, min(1, len(far)))
        pairs = _pairs(text, asked, [*cut_off, *others], wordnet, source)
        if len(pairs) >= MIN_PAIRS:
            yield Text(text, pairs)


def load_whole(folder: Path) -> list[list[Passage]]:
    """Passages whose questions have no answer in so many words, and need all of the passage."""
    sets: list[list[Passage]] = []
    for name in ("fairytaleqa", "boolq_part", "strategyqa"):
        passages = []
        for _, row in read_rows(folder / f"{name}.jsonl.gz"):
            text = row["context"].strip()
            whole = ((0, len(text)),)
            asked = tuple(
                Asked(qa["question"].strip(), spans=whole)
                for qa in row["qas"]
                if qa.get("kind", "implicit") == "implicit" and "train" in (row.get("split"), qa.get("split"))
            )
            if asked and len(text) <= MAX_CHARACTERS:
                passages.append(Passage(row["title"] or "", text, asked))
        sets.append(passages)
    return sets


def load_stories(folder: Path) -> list[Passage]:
    """NarrativeQA's summaries, whose questions were asked of people who knew the whole story."""
    passages = []
    for _, row in read_rows(folder / "narrativeqa_valid_test.jsonl.gz"):
        text = row["context"].strip()
        if row["split"] == "valid" and not row["tokenised"]:
            asked = tuple(one for qa in row["qas"] if (one := ask(qa, text, str)))
            passages.append(Passage(row["title"], text, asked))
    return passages


def _cut(passage: Passage, size: int, source: random.Random) -> tuple[str, list[Asked], list[Asked]]:
    """Sentences of a passage up to a size, the questions that they answer, and those that they do not."""
    if any(not question.answer for question in passage.asked):
        return passage.text, list(passage.asked), []
    every = sentences_of(passage.text)
    first = last = source.randrange(len(every))
    while last - first + 1 < len(every):
        low, high = max(first - 1, 0), min(last + 1, len(every) - 1)
        if (source.random() < 0.5 and first) or high == last:
            first = low
        else:
            last = high
        if every[last][1] - every[first][0] > size:
            break
    begin, end = every[first][0], every[last][1]
    inside = [
        question for question in passage.asked if all(begin <= a and b <= end for a, b in question.spans)
    ]
    return (
        passage.text[begin:end].strip(),
        inside,
        [question for question in passage.asked if question not in inside],
    )


def _pairs(
    text: str, asked: Sequence[Asked], others: Sequence[Asked], wordnet: WordNet | None, source: random.Random
) -> tuple[Pair, ...]:
    """As many questions that a text answers as such that it does not."""
    own = sorted(
        source.sample(asked, min(2 * MAX_EACH, len(asked))),
        key=lambda question: _overlap(question.problem, text),
    )
    own = own[:MAX_EACH]
    lower = text.lower()
    absent = [item for item in others if not item.answer or item.answer.lower() not in lower]
    absent.sort(key=lambda item: -_overlap(item.problem, text) + source.uniform(0, 0.2))
    exchanged = [other for one in asked[:2] if (other := exchange(one, text, source))][:1]
    wanted = max(len(own), 1)
    rest = [*exchanged, *absent[: max(1, wanted - 1)], *source.sample(absent, min(3, len(absent)))]
    pairs = [Pair(item.problem, True) for item in own]
    if wordnet:
        pairs = [
            replace(pair, problem=wordnet.reword(pair.problem, text, source))
            if source.random() < REWORDED
            else pair
            for pair in pairs
        ]
    negatives = list(dict.fromkeys(row.problem for row in rest))[:wanted]
    return tuple(pairs + [Pair(negative, False) for negative in negatives]) if negatives else ()


def texts_of_hops(rows: Sequence[dict[str, Any]], source: random.Random) -> Iterator[Text]:
    """Paragraphs of HotpotQA's questions, alone or in twos and threes, with and without what is known."""
    while True:
        row = source.choice(rows)
        needed = defaultdict(list)  # type: defaultdict[str, list[int]]
        for title, sentence in row["supporting_facts"]:
            needed[title].append(sentence)
        paragraphs = dict(row["context"])
        facts = {
            title: " ".join(
                paragraphs[title][index].strip() for index in places if index < len(paragraphs[title])
            )
            for title, places in needed.items()
            if title in paragraphs
        }
        if len(facts) != 2:
            continue
        chosen = source.sample(list(facts), 1) if source.random() < 0.55 else []
        distractors = [title for title in paragraphs if title not in facts]
        chosen += source.sample(
            distractors, min(len(distractors), source.choice((0, 1, 1, 2)) + (not chosen))
        )
        source.shuffle(chosen)
        text = "\n\n".join(f"{title}\n{''.join(paragraphs[title]).strip()}" for title in chosen)
        if not MIN_CHARACTERS / 2 <= len(text) <= MAX_CHARACTERS:
            continue
        problem, pairs = row["question"], list[Pair]()
        held = [title for title in chosen if title in facts]
        for title, fact in facts.items():
            (other,) = (item for item in facts if item != title)
            if title not in held or other in held:
                continue
            pairs.append(Pair(problem, True, f"{other}: {facts[other]}"))
            if len(telling(problem) & telling(f"{title} {fact}")) >= MIN_SHARED:
                pairs.append(Pair(problem, True))
        if not held:
            known = source.choice(list(facts))
            pairs = [Pair(problem, False), Pair(problem, False, f"{known}: {facts[known]}")]
        if pairs:
            yield Text(text, tuple(pairs))


def cut_novels(novels: Sequence[Path], folder: Path) -> list[Path]:
    """Pieces of novels in files, since haystacks begin where their text does."""
    pieces = []
    for novel in novels:
        text = read_text(novel)
        for index in range(PIECES):
            begin = text.index("\n\n", len(text) * index // (PIECES + 1))
            pieces.append(folder / f"{len(pieces)}.txt")
            pieces[-1].write_text(text[begin : begin + 8 * MAX_CHARACTERS].strip(), "utf-8")
    return pieces


def texts_of_needles(pieces: Sequence[Path], source: random.Random) -> Iterator[Text]:
    """RULER's needles in a few sentences of novels, noise or other needles; half of them are not there."""
    recipes = [
        Recipe(
            length_tokens=700, seed=source.randrange(10**6), absent=0.3, corpora=Corpora((("essays", piece),))
        )
        for piece in pieces
    ]
    for index in range(10**9):
        example = TASKS[source.choice(list(VARIANTS))].make(source.choice(recipes), index)
        size = source.randint(MIN_CHARACTERS, MAX_CHARACTERS)
        around = source.randrange(len(example.document))
        if source.random() < 0.45:
            around = example.document.find(source.choice(example.evidence or ("",)))
        begin = max(0, around - source.randint(0, size - MIN_CHARACTERS // 2))
        text = example.document[begin : begin + size]
        helps = any(fact in text for fact in example.evidence)
        if helps or not any(fact[:40] in text or fact[-40:] in text for fact in example.evidence):
            yield Text(text, (Pair(example.problem, helps),))


def examples(
    sets: Sequence[Sequence[Passage]], rows: Sequence[dict[str, Any]], source: random.Random
) -> Iterator[Example]:
    """Documents of 8 to 16 chunks to reinforce on, half of them of two hops; one in five lacks the answer."""
    for index in range(10**9):
        lacks, tokens = index % 5 == 4, NOTED_TOKENS * source.randint(MIN_CHUNKS, MAX_CHUNKS)
        if index % 2:
            row = source.choice(rows)
            needed = {title for title, _ in row["supporting_facts"]}
            problem, answer = row["question"], row["answer"]
            pool = [
                paragraph
                for other in source.sample(rows, 8)
                for paragraph in [*row["context"], *other["context"]]
            ]
            others = [f"{title}\n{''.join(lines)}" for title, lines in pool if title not in needed]
            own = [f"{title}\n{''.join(lines)}" for title, lines in row["context"] if title in needed]
        else:
            (passages,) = source.choices(sets, [len(item) for item in sets])
            passage = source.choice(passages)
            asked = source.choice(passage.asked)
            problem, answer, own = asked.problem, asked.answer, [passage.text]
            others = [
                item.text for item in source.sample(passages, min(len(passages), 60)) if item is not passage
            ]
        texts = [] if lacks else own
        for text in dict.fromkeys(others):
            if estimate_tokens("\n\n".join(texts)) < tokens:
                texts.append(text)
        source.shuffle(texts)
        document = "\n\n".join(texts)
        if answer and not (lacks and answer.lower() in document.lower()):
            gold = ABSENT_ANSWERS if lacks else (answer,)
            length = estimate_tokens(document)
            yield Example(f"example-{index}", "verdict", problem, document, gold, length)


def lesson(text: Text) -> Iterator[Conversation]:
    """The verdicts on a text."""
    mark = text_document(text.text, is_example=True).mark
    prompts = AUTO.for_document(mark, asks=False)
    for pair in text.pairs:
        name = "further" if pair.known else "verdict"
        messages = prompts.fill(name, problem=pair.problem, chunk=text.text, memory=pair.known)
        yield Conversation("update", None, messages, Completion(YES if pair.helps else NO), "")


async def write(kinds: dict[str, Iterator[Text]], count: int, seed: int) -> AsyncIterator[Trajectory]:
    """So many texts' verdicts."""
    source = random.Random(seed)
    for index in range(count):
        (kind,) = source.choices(list(SHARES), list(SHARES.values()))
        yield Trajectory(f"{kind}-{index}", tuple(lesson(next(kinds[kind]))), "", reward=1.0)


def main() -> None:
    """Write the pairs."""
    parser = parser_of(__doc__.partition("\n")[0])
    parser.add_argument("--wordnet", type=Path, help="WordNet's folder `dict`, for rewording")
    parser.add_argument("--count", type=int, default=10_000, help="texts (10,000)")
    options = parser.parse_args()
    rows = load_rows(options.hotpot, options.wiki_hops)
    sets, source = load_passages(options.sources), random.Random(f"texts/{options.seed}")
    sets += [*load_whole(options.sources), load_stories(options.sources)]
    wordnet = WordNet(options.wordnet) if options.wordnet else None
    with TemporaryDirectory() as folder:
        kinds = {
            "passages": texts_of_passages(sets, wordnet, source),
            "hops": texts_of_hops(rows, source),
            "needles": texts_of_needles(cut_novels(options.novels, Path(folder)), source),
        }
        count = asyncio.run(write_trajectories(options.out, write(kinds, options.count, options.seed)))
    print(count, "texts")
    if options.examples:
        every = examples(sets, rows, random.Random(f"examples/{options.seed}"))
        print(write_examples(options.examples, islice(every, EXAMPLES)), "examples")


if __name__ == "__main__":
    main()
