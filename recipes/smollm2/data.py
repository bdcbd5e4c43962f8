"""The examples that the default reader is trained on: needles in novels, questions on Wikipedia, variables.

    python recipes/smollm2/data.py --books BOOK.txt ... --squad SQUAD.jsonl --hotpot HOTPOT.jsonl --out FILE

Several questions are asked of one document, some of which it does not answer: what a chunk is worth
depends on the question, and training computes a chunk once for all of them. The first 1,405 rows of
HotpotQA are kept for evaluation (`--skip`), and the rest is stored beside FILE, as the split that was made.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from memagent.tasks import TASKS, write_examples
from memagent.tasks.corpora import SENTENCE_END, Corpora, Essays, read_rows
from memagent.tasks.files import new_file
from memagent.tasks.needle import NEEDLE, NOISE, Kind, Needles, draw, like_needles
from memagent.tasks.recipe import ABSENT_ANSWERS, Recipe
from memagent.tokens import TokenEstimate
from memagent.types import Example

QUESTIONS = 3  # of each document; one of them it does not answer
FORMS = (
    *(NEEDLE, NEEDLE, NEEDLE),
    "The {noun} of {key} is {value}.",
    "Remember that {key} has the {noun} {value}.",
)
ASKED = (
    "Which special magic {kind} does the text give for {key}?",
    "What is the {kind} of {key}?",
    "What is the special magic {kind} for {key} mentioned in the text?",
)
ALL_ASKED = (
    "Which special magic {kind}s does the text give for {key}? List every one of them.",
    "What are all the {kind}s of {key}?",
)
KINDS = ("needles", "wikipedia", "hqa", "vt")
NOUNS = {"numbers": "number", "words": "word", "uuids": "UUID"}


Limits = tuple[int, int]
"""The least and the most characters of a document."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a document; without answers it is one that the document leaves open."""

    problem: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    task: str


def needles(essays: Sequence[Essays], limits: Limits, seed: int) -> Iterator[tuple[str, list[Question]]]:
    """Documents with two or three keys among novels, noise or needles like them, and their questions."""
    source = random.Random(f"needles/{seed}")
    while True:
        key_kind: Kind = source.choice(("words",) * 7 + ("uuids",))
        value_kind: Kind = source.choice(("numbers",) * 5 + ("words", "words", "uuids"))
        form = source.choice(FORMS)
        keys: dict[str, list[str]] = {}
        while len(keys) < source.randint(QUESTIONS, QUESTIONS + 1):
            many = source.choice((1, 1, 1, 1, 1, 2, 3))
            keys[draw(key_kind, source)] = [draw(value_kind, source) for _ in range(many)]
        *known, unknown = keys
        noun, questions = NOUNS[value_kind], []
        sentences = {
            key: [form.format(kind=value_kind, noun=noun, key=key, value=value) for value in keys[key]]
            for key in known
        }
        hidden = [text for key in known for text in sentences[key]]
        source.shuffle(hidden)
        like = like_needles(Needles("needle", key_kind, value_kind), source, keys)
        haystack, between = _haystack(essays, like, source.randint(*limits), source)
        for already, place in enumerate(sorted(source.choices(range(len(haystack) + 1), k=len(hidden)))):
            haystack.insert(place + already, hidden[already])
        document = between.join(haystack)
        asked = [[key] for key in source.sample(known, QUESTIONS - 1)]
        if source.random() < 0.25:
            asked[-1] = source.sample(known, source.randint(2, min(3, len(known))))
        for group in asked:
            values = tuple(value for key in group for value in keys[key])
            words = group[0] if len(group) == 1 else f"{', '.join(group[:-1])} and {group[-1]}"
            one = len(values) == 1
            problem = source.choice(ASKED if one else ALL_ASKED).format(kind=noun, key=words)
            evidence = tuple(text for text in hidden if any(text in sentences[key] for key in group))
            task = "niah_single_1" if one else "niah_multivalue"
            questions.append(Question(problem, values, evidence, task))
        problem = source.choice(ASKED).format(kind=noun, key=unknown)
        questions.append(Question(problem, ABSENT_ANSWERS[:1], (), "niah_single_1"))
        yield document, questions


def _haystack(
    essays: Sequence[Essays], like: Iterator[str], characters: int, source: random.Random
) -> tuple[list[str], str]:
    """Sentences or lines to hide needles among, and what stands between them."""
    kind = source.random()
    if kind < 0.75:
        return _passage(source.choice(essays), source, characters), " "
    if kind < 0.9:
        return [NOISE] * (characters // len(NOISE)), "\n"
    return list(islice(like, characters // 90)), "\n"


def _passage(essays: Essays, source: random.Random, characters: int) -> list[str]:
    """Sentences of a book that follow each other, from a random one on."""
    sentence = source.randrange(len(essays.starts) - 400)
    found: list[str] = []
    while sum(len(text) for text in found) < characters:
        found.append(" ".join(essays.words[essays.starts[sentence] : essays.starts[sentence + 1]]))
        sentence += 1
    return found


def wikipedia(
    rows: Sequence[dict[str, Any]], limits: Limits, seed: int
) -> Iterator[tuple[str, list[Question]]]:
    """Paragraphs of an article that follow each other, with questions on them and on another paragraph."""
    source = random.Random(f"wikipedia/{seed}")
    while True:
        first = source.randrange(len(rows))
        article = [row for row in rows if row["title"] == rows[first]["title"]]
        chosen: list[dict[str, Any]] = []
        limit = source.randint(*limits)
        for row in article[article.index(rows[first]) :]:
            if sum(len(it["context"].strip()) for it in chosen) < limit:
                chosen.append(row)
        document = "\n\n".join(row["context"].strip() for row in chosen)
        inside = [it for row in chosen for it in _answerable(row)]
        outside = [it for row in article if row not in chosen for it in _answerable(row)
                   if not any(answer.lower() in document.lower() for answer in it.answers)]  # fmt: skip
        if len(inside) >= QUESTIONS - 1 and outside:
            absent = source.choice(outside)
            open_question = Question(absent.problem, ABSENT_ANSWERS, (), "squad")
            yield document, [*source.sample(inside, QUESTIONS - 1), open_question]


def _answerable(row: dict[str, Any]) -> Iterator[Question]:
    """The questions on a paragraph, each with the sentence that its first answer stands in."""
    text = row["context"]
    for item in row["qas"]:
        if not item.get("is_impossible") and item["answers"]:
            answers = tuple(dict.fromkeys(answer["text"] for answer in item["answers"]))
            place, end = item["answers"][0]["answer_start"], len(item["answers"][0]["text"])
            starts = [0, *(match.end() for match in SENTENCE_END.finditer(text))]
            begin = max(start for start in starts if start <= place)
            stops = [*(match.start() for match in SENTENCE_END.finditer(text)), len(text)]
            stop = min(stop for stop in stops if stop >= place + end)
            if stop - begin < 400:
                yield Question(item["question"].strip(), answers, (text[begin:stop].strip(),), "squad")


def examples(name: str, documents: Iterator[tuple[str, list[Question]]], count: int) -> Iterator[Example]:
    """The questions of the documents, those of one document after each other."""
    tokens = TokenEstimate()
    for number, (document, questions) in enumerate(islice(documents, count)):
        for place, it in enumerate(questions):
            yield Example(
                id=f"{name}-{number}-{place}",
                task=it.task,
                problem=it.problem,
                document=document,
                answers=it.answers,
                length_tokens=tokens(document),
                evidence=it.evidence,
            )


def made(task: str, recipe: Recipe, count: int) -> Iterator[Example]:
    """Examples of one of the package's tasks."""
    return (TASKS[task].make(recipe, index) for index in range(count))


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--books", nargs="+", type=Path, required=True, help="texts for haystacks")
    parser.add_argument("--squad", type=Path, required=True, help="rows of a paragraph and its questions")
    parser.add_argument("--hotpot", type=Path, required=True, help="rows of HotpotQA, with their paragraphs")
    parser.add_argument("--skip", type=int, default=1405, help="rows of HotpotQA kept for evaluation")
    parser.add_argument("--count", type=int, default=1200,
                        help="documents with needles; of others in proportion")  # fmt: skip
    parser.add_argument("--characters", nargs=2, type=int, default=(700, 2400), metavar="N",
                        help="the least and the most of a document (one to three chunks)")  # fmt: skip
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    essays = [Corpora((("essays", book),)).essays() for book in given.books]
    articles = list(read_rows(given.squad))
    rest = given.out.with_name("hotpot_train.jsonl.gz")
    with new_file(rest) as file:
        file.writelines(json.dumps(row) + "\n" for row in islice(read_rows(given.hotpot), given.skip, None))
    hotpot = Recipe(documents=4, seed=given.seed, corpora=Corpora((("hotpot", rest),)), absent=0.25)
    count, seed, limits = given.count, given.seed, tuple(given.characters)
    wanted = {
        "needles": examples("needles", needles(essays, limits, seed), count),
        "wikipedia": examples("wikipedia", wikipedia(articles, limits, seed), count // 4),
        "hqa": made("hqa", hotpot, count // 20),
        "vt": made("vt", Recipe(length_tokens=500, seed=seed), count // 20),
    }
    write_examples(given.out, chain.from_iterable(wanted[kind] for kind in given.kinds))


if __name__ == "__main__":
    main()
