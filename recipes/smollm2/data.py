"""The examples that the default reader is trained on: needles in novels, questions on Wikipedia, variables.

    python recipes/smollm2/data.py --kinds needles squad --books BOOK.txt ... --squad SQUAD.jsonl --out FILE

Several questions are asked about each document, some of which it does not answer: what a chunk is worth
depends on the question, and training computes a chunk once for all of them. The first 1,405 rows of
HotpotQA are kept for evaluation (`--skip`), and the remaining split is stored beside FILE.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from memagent.documents.tokens import estimate_tokens
from memagent.tasks import TASKS, write_examples
from memagent.tasks.corpora import SENTENCE_END, Corpora, Essays, read_rows
from memagent.tasks.files import new_file
from memagent.tasks.needle import NEEDLE, NOISE, Kind, Needles, draw, like_needles
from memagent.tasks.recipe import ABSENT_ANSWERS, Recipe
from memagent.types import Example

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
WRAPPED = 0.35  # of the documents have short lines, like books of Project Gutenberg
SENTENCE = 400  # characters: the limit for evidence
NOUNS = {"numbers": "number", "words": "word", "uuids": "UUID"}


Limits = tuple[int, int]
"""The minimum and maximum characters of a document."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a document, which may not answer it; `evidence` is then empty."""

    problem: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    task: str


def needles(essays: Sequence[Essays], limits: Limits, seed: int) -> Iterator[tuple[str, list[Question]]]:
    """Documents with needles for one to four keys among novels, noise or similar needles; their questions."""
    source = random.Random(f"needles/{seed}")
    while True:
        key_kind: Kind = source.choice(("words",) * 7 + ("uuids",))
        value_kind: Kind = source.choice(("numbers",) * 5 + ("words", "words", "uuids"))
        form = source.choice(FORMS)
        keys: dict[str, list[str]] = {}
        for _ in range(source.randint(3, 5)):
            many = source.choice((1, 1, 1, 1, 1, 2, 3))
            keys[draw(key_kind, source)] = [draw(value_kind, source) for _ in range(many)]
        *known, other, _ = keys
        if source.random() < 0.5:
            known.append(other)
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
        asked = [[key] for key in known]
        if len(known) > 1:
            asked.append(source.sample(known, source.randint(2, min(3, len(known)))))
        for group in asked:
            values = tuple(value for key in group for value in keys[key])
            words = group[0] if len(group) == 1 else f"{', '.join(group[:-1])} and {group[-1]}"
            one = len(values) == 1
            problem = source.choice(ASKED if one else ALL_ASKED).format(kind=noun, key=words)
            evidence = tuple(text for text in hidden if any(text in sentences[key] for key in group))
            task = "niah_single_1" if one else "niah_multivalue"
            questions.append(Question(problem, values, evidence, task))
        for key in (it for it in keys if it not in known):
            problem = source.choice(ASKED).format(kind=noun, key=key)
            questions.append(Question(problem, ABSENT_ANSWERS[:1], (), "niah_single_1"))
        yield document, questions


def _haystack(
    essays: Sequence[Essays], like: Iterator[str], characters: int, source: random.Random
) -> tuple[list[str], str]:
    """Sentences or lines to hide needles among, and the separator between them."""
    kind = source.random()
    if kind < 0.75:
        return _passage(source.choice(essays), source, characters), " "
    if kind < 0.9:
        return [NOISE] * (characters // len(NOISE)), "\n"
    return list(islice(like, characters // 90)), "\n"


def _passage(essays: Essays, source: random.Random, characters: int) -> list[str]:
    """Consecutive sentences of a book, from a random one on."""
    sentence = source.randrange(len(essays.starts) - 400)
    found: list[str] = []
    while sum(len(text) for text in found) < characters:
        found.append(" ".join(essays.words[essays.starts[sentence] : essays.starts[sentence + 1]]))
        sentence += 1
    return found


def squad(rows: Sequence[dict[str, Any]], limits: Limits, seed: int) -> Iterator[tuple[str, list[Question]]]:
    """Consecutive paragraphs of an article, with questions on them and on other paragraphs of it."""
    source = random.Random(f"squad/{seed}")
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
        outside = [it for row in article if row not in chosen for it in _answerable(row)]
        asked = source.sample(inside, min(5, len(inside)))
        yield document, asked + _left_open(document, source.sample(outside, min(2, len(outside))))


def natural(
    rows: Sequence[dict[str, Any]], limits: Limits, seed: int
) -> Iterator[tuple[str, list[Question]]]:
    """Paragraphs of several articles, each with a question that somebody asked a search engine."""
    source = random.Random(f"natural/{seed}")
    asked = [(_plain(row["text"]), question) for row in rows for question in _searched(row)]
    while True:
        limit = source.randint(*limits)
        chosen = source.sample(asked, 100)
        while sum(len(text) for text, _ in chosen[:-1]) >= limit:
            del chosen[-1]
        document = "\n\n".join(text for text, _ in chosen)
        other = _left_open(document, [source.choice(asked)[1]])
        yield document, [question for _, question in chosen[:6]] + other


def _left_open(document: str, questions: Sequence[Question]) -> list[Question]:
    """The questions whose answers the document lacks, as unanswerable questions."""
    return [
        Question(it.problem, ABSENT_ANSWERS, (), it.task)
        for it in questions
        if not any(answer.lower() in document.lower() for answer in it.answers)
    ]


def _answerable(row: dict[str, Any]) -> Iterator[Question]:
    """The questions on a paragraph, each with the sentence that contains its first answer."""
    for item in row["qas"]:
        if not item.get("is_impossible") and item["answers"]:
            answers = tuple(dict.fromkeys(answer["text"] for answer in item["answers"]))
            evidence = _sentence(row["context"], item["answers"][0]["answer_start"], len(answers[0]))
            if len(evidence) < SENTENCE:
                yield Question(item["question"].strip(), answers, (evidence,), "squad")


def _searched(row: dict[str, Any]) -> Iterator[Question]:
    """A row's question, with the sentence that has an answer and shares the most words with the question."""
    text, words = _plain(row["text"]), set(row["question"].lower().split())
    answers = tuple(map(_plain, row["answers"]))
    found = [
        (_sentence(text, match.start(), len(answer)), match.group())
        for answer in answers
        for match in re.finditer(re.escape(answer), text, re.IGNORECASE)
    ]
    evidence, answer = max(found, key=lambda it: len(words & set(it[0].lower().split())))
    if len(evidence) < SENTENCE:
        problem = row["question"].strip().capitalize() + "?"
        yield Question(problem, tuple(dict.fromkeys((answer, *answers))), (evidence,), "squad")


def _plain(text: str) -> str:
    return " ".join(text.split())


def _sentence(text: str, start: int, length: int) -> str:
    """The sentence or sentences around a part of a text."""
    borders = [match.span() for match in SENTENCE_END.finditer(text)]
    begin = max((after for _, after in borders if after <= start), default=0)
    stop = min((before for before, _ in borders if before >= start + length), default=len(text))
    return text[begin:stop].strip()


def examples(name: str, documents: Iterator[tuple[str, list[Question]]], count: int) -> Iterator[Example]:
    """Examples for the questions, document by document; some documents have short lines."""
    tokens, source = estimate_tokens, random.Random(name)
    for number, (document, questions) in enumerate(islice(documents, count)):
        if source.random() < WRAPPED:
            document, questions = _wrapped(document, questions, source.randint(60, 80))
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


def _wrapped(document: str, questions: list[Question], width: int) -> tuple[str, list[Question]]:
    """The document and its evidence with lines wrapped at `width` characters, or unchanged if that fails."""
    lines = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
             for line in document.split("\n"))  # fmt: skip
    wrapped = "\n".join("\n".join(parts) for parts in lines)
    if wrapped.replace("\n", " ") != document.replace("\n", " "):
        return document, questions

    def shown(text: str) -> str:
        start = document.index(text)
        return wrapped[start : start + len(text)]

    return wrapped, [replace(it, evidence=tuple(map(shown, it.evidence))) for it in questions]


def made(task: str, recipe: Recipe, count: int) -> Iterator[Example]:
    """Examples of one of the package's tasks."""
    return (TASKS[task].make(recipe, index) for index in range(count))


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--books", nargs="+", type=Path, default=(), help="texts for haystacks")
    parser.add_argument("--squad", type=Path, help="rows with a paragraph and its questions")
    parser.add_argument("--nq", type=Path, help="rows with a question and its paragraph")
    parser.add_argument("--hotpot", type=Path, help="rows of HotpotQA with their paragraphs")
    parser.add_argument("--skip", type=int, default=1405, help="rows of HotpotQA kept for evaluation")
    parser.add_argument("--count", type=int, default=1200,
                        help="documents of needles, squad and nq each; a twelfth of others")  # fmt: skip
    parser.add_argument("--characters", nargs=2, type=int, default=(700, 2400), metavar="N",
                        help="minimum and maximum of a document (one to three chunks)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_examples(given.out, chain.from_iterable(KINDS[kind](given) for kind in given.kinds))


def _needles(given: argparse.Namespace) -> Iterator[Example]:
    essays = [Corpora((("essays", book),)).essays() for book in given.books]
    return examples("needles", needles(essays, given.characters, given.seed), given.count)


def _squad(given: argparse.Namespace) -> Iterator[Example]:
    return examples(
        "squad", squad([row for _, row in read_rows(given.squad)], given.characters, given.seed), given.count
    )


def _nq(given: argparse.Namespace) -> Iterator[Example]:
    return examples(
        "nq", natural([row for _, row in read_rows(given.nq)], given.characters, given.seed), given.count
    )


def _hqa(given: argparse.Namespace) -> Iterator[Example]:
    rest = given.out.with_name("hotpot_train.jsonl.gz")
    with new_file(rest) as file:
        file.writelines(
            json.dumps(row) + "\n" for _, row in islice(read_rows(given.hotpot), given.skip, None)
        )
    recipe = Recipe(documents=4, seed=given.seed, corpora=Corpora((("hotpot", rest),)), absent=0.25)
    return made("hqa", recipe, given.count // 12)


def _vt(given: argparse.Namespace) -> Iterator[Example]:
    return made("vt", Recipe(length_tokens=500, seed=given.seed), given.count // 12)


KINDS = {"needles": _needles, "squad": _squad, "nq": _nq, "hqa": _hqa, "vt": _vt}


if __name__ == "__main__":
    main()
