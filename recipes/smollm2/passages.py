"""Passages with questions: public data sets in one form, and documents made of their passages."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidden import Limits, Question, novel
from sacremoses import MosesDetokenizer

from memagent.tasks.corpora import SENTENCE_END, Essays, read_rows
from memagent.tasks.recipe import ABSENT_ANSWERS

SENTENCE = 400  # characters: the limit for evidence
PASSAGE = 3000  # characters: longer ones are left out
INSIDE, OUTSIDE = 6, 2  # questions on a document, and on what it does not hold, at most


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage, the title of what it belongs to, and the questions that it answers, each in one sentence."""

    title: str
    text: str
    questions: tuple[Question, ...]


def passages(path: Path) -> list[Passage]:
    """The passages of a data set.

    A row has a `context` with its `qas`, as in SQuAD, or a `text` with one `question`. A set whose name
    begins with "tokenised_" has spaces around its punctuation, which are taken out.
    """
    clean = _detokenised if path.name.startswith("tokenised_") else _plain
    found = (_passage(row, clean) for _, row in read_rows(path))
    return [it for it in found if it.questions and len(it.text) <= PASSAGE]


def _passage(row: dict[str, Any], clean: Callable[[str], str]) -> Passage:
    text = clean(row.get("context") or row["text"])
    asked = row.get("qas", [row])
    questions = (
        _question(text, clean(it["question"]), [*map(clean, map(_words, it["answers"]))])
        for it in asked
        if not it.get("is_impossible")
    )
    return Passage(row.get("title") or text, text, tuple(it for it in questions if it))


def _words(answer: str | dict[str, Any]) -> str:
    return answer if isinstance(answer, str) else str(answer["text"])


def _question(text: str, asked: str, answers: Sequence[str]) -> Question | None:
    """The question, with the sentence that has an answer and is most like it; None if no sentence has one."""
    words = set(re.findall(r"\w+", asked.lower()))
    found = [
        (_sentence(text, *match.span()), match.group())
        for answer in answers
        if answer
        for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE)
    ]
    short = [it for it in found if len(it[0]) < SENTENCE]
    if not short:
        return None
    evidence, answer = max(short, key=lambda it: len(words & set(re.findall(r"\w+", it[0].lower()))))
    problem = asked.strip().rstrip("? ")
    problem = f"{problem[:1].upper()}{problem[1:]}?"
    return Question(problem, tuple(dict.fromkeys((answer, *answers))), (evidence,), "squad")


def _plain(text: str) -> str:
    return " ".join(text.split())


def _detokenised(text: str) -> str:
    words = text.replace("-LRB-", "(").replace("-RRB-", ")").replace("``", '"').replace("''", '"').split()
    return str(_MOSES.detokenize(words))


_MOSES = MosesDetokenizer(lang="en")


def _sentence(text: str, start: int, end: int) -> str:
    """The sentence or sentences around a part of a text."""
    borders = [match.span() for match in SENTENCE_END.finditer(text)]
    begin = max((after for _, after in borders if after <= start), default=0)
    stop = min((before for before, _ in borders if before >= end), default=len(text))
    return text[begin:stop].strip()


def documents(
    sets: Sequence[Sequence[Passage]], novels: Sequence[Essays], limits: Limits, seed: int
) -> Iterator[tuple[str, list[Question]]]:
    """Documents with questions on some of their passages, and on passages that they do not hold.

    Half of them are consecutive passages of one article, the others passages from anywhere in a set; of
    these, some stand in the midst of a novel.
    """
    source = random.Random(f"passages/{seed}")
    articles = [_articles(them) for them in sets]
    weights = [len(them) ** 0.5 for them in sets]
    while True:
        (number,) = source.choices(range(len(sets)), weights)
        first = source.choice(sets[number])
        article = articles[number][first.title]
        limit = source.randint(*limits)
        kind = source.random()
        if kind < 0.5:
            at = article.index(first)
            chosen = _within(article[at:], limit)
            others = [it for it in article if it not in chosen] or sets[number]
        else:
            others = source.sample(sets[number], min(40, len(sets[number])))
            chosen = _within([first, *others], limit if kind < 0.75 else limit // 3)
        texts = [it.text for it in chosen]
        if kind >= 0.75:
            room = limit - sum(map(len, texts))
            texts = [*texts, *novel(novels, source, room, max(1, room // 500))]
            source.shuffle(texts)
        document = "\n\n".join(texts)
        inside = [question for it in chosen for question in it.questions]
        asked = source.sample(inside, min(INSIDE, len(inside)))
        outside = [question for it in others if it not in chosen for question in it.questions]
        yield document, asked + _left_open(document, source.sample(outside, min(OUTSIDE, len(outside))))


def _articles(them: Sequence[Passage]) -> dict[str, list[Passage]]:
    found: dict[str, list[Passage]] = defaultdict(list)
    for it in them:
        found[it.title].append(it)
    return found


def _within(them: Sequence[Passage], limit: int) -> list[Passage]:
    """The first passages, until they have so many characters; at least one."""
    chosen: list[Passage] = []
    for it in them:
        if chosen and sum(len(one.text) for one in chosen) >= limit:
            break
        chosen.append(it)
    return chosen


def _left_open(document: str, questions: Sequence[Question]) -> list[Question]:
    """The questions whose answers the document lacks, as unanswerable questions."""
    text = document.lower()
    return [
        Question(it.problem, ABSENT_ANSWERS, (), it.task)
        for it in questions
        if not any(answer.lower() in text for answer in it.answers)
    ]
