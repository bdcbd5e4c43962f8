"""Questions over short passages: SQuAD, HotpotQA, 2WikiMultihopQA and MuSiQue, read from their own files.

All passages of a set form one pool, from which every question's distractors come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from memagent.documents.files import FileState
from memagent.errors import SettingsError, reason
from memagent.tasks.corpora import Corpus, read_rows
from memagent.tasks.files import question_of
from memagent.text import SENTENCE_GAP


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and its passages.

    `own` came with the question, in order. `gold` maps those that are needed to answer it to their evidence:
    some of their sentences, or all. `near` are from the same article, the hardest distractors; `barred` must
    not appear with it.
    """

    problem: str
    answers: tuple[str, ...]
    own: tuple[str, ...]
    gold: Mapping[str, tuple[str, ...]]
    near: tuple[str, ...] = ()
    barred: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PassageSet:
    """The questions of a set, in the order of its file, and the pool of passages, sorted."""

    questions: tuple[Question, ...]
    pool: tuple[str, ...]


def load_passages(corpus: Corpus, only: Path | None = None) -> PassageSet:
    """A set's questions, or with `only` those that a file of examples also has, and the set's pool.

    Raises `SettingsError` if the file is not of that set, or has none of its questions.
    """
    try:
        only_state = FileState.of(only) if only else None
    except OSError as error:
        raise SettingsError(f"`questions` {only} cannot be read: {reason(error)}") from error
    return _load(corpus.name, corpus.path, FileState.of(corpus.path), only, only_state)


@lru_cache(maxsize=4)
def _load(
    name: str, path: Path, _state: FileState, only: Path | None, _only_state: FileState | None
) -> PassageSet:
    try:
        questions = tuple(_READERS[name](row for _, row in read_rows(path)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingsError(f"{path} is not laid out as {name} is: {error!r}") from error
    if not questions:
        raise SettingsError(f"{path} holds no questions that can be answered")
    pool = tuple(sorted({text for question in questions for text in (*question.own, *question.near)}))
    if only:
        chosen = {question_of(row, f"{only}, row {number}") for number, row in read_rows(only)}
        questions = tuple(
            question for question in questions if (question.problem, question.answers) in chosen
        )
        if not questions:
            raise SettingsError(f"`questions` {only} has no question of {path}")
    return PassageSet(questions, pool)


def _answers(*texts: str) -> tuple[str, ...]:
    """The texts that are not blank, each once."""
    return tuple(dict.fromkeys(text for text in texts if text.strip()))


def _hotpot(items: Iterable[dict[str, Any]]) -> Iterator[Question]:
    """HotpotQA's own JSON, and 2WikiMultihopQA's, which is laid out the same."""
    for item in items:
        named: dict[str, set[int]] = {}
        for title, number in item["supporting_facts"]:
            named.setdefault(title, set()).add(number)
        own = [
            (_title(title, sentences), _facts(title, sentences, named.get(title)))
            for title, sentences in item["context"]
        ]
        if answers := _answers(item["answer"]):
            yield _question(item["question"], answers, own)


def _title(title: str, sentences: list[str]) -> str:
    """A passage with its title. HotpotQA's sentences begin with their space, 2WikiMultihopQA's do not."""
    spaced = any(sentence.startswith(" ") for sentence in sentences[1:])
    return f"{title}\n{('' if spaced else ' ').join(sentences)}"


def _facts(title: str, sentences: list[str], numbers: set[int] | None) -> tuple[str, ...]:
    """The supporting sentences of a passage, after its title if they do not name it."""
    if numbers is None:
        return ()
    facts = [text.strip() for number, text in enumerate(sentences) if number in numbers and text.strip()]
    if not facts:  # a few rows name a sentence that is not there
        return (_title(title, sentences),)
    subject = title.partition(" (")[0].strip()
    named = not subject or any(subject in fact for fact in facts)
    return tuple(dict.fromkeys(facts if named else [subject, *facts]))


def _musique(items: Iterable[dict[str, Any]]) -> Iterator[Question]:
    for item in items:
        passages = item["paragraphs"]
        texts = [
            (f"{passage['title']}\n{passage['paragraph_text']}", passage["is_supporting"])
            for passage in passages
        ]
        own = [(text, (text,) * bool(needed)) for text, needed in texts]
        if item.get("answerable", True):
            yield _question(item["question"], _answers(item["answer"], *item.get("answer_aliases", ())), own)


def _question(problem: str, answers: tuple[str, ...], own: list[tuple[str, tuple[str, ...]]]) -> Question:
    """A question with its passages, each with the evidence in it: none if it is not needed."""
    gold = {text: facts for text, facts in own if facts}
    return Question(problem, answers, tuple(text for text, _ in own), gold)


def _squad(items: Iterable[dict[str, Any]]) -> Iterator[Question]:
    for passages in _articles(items):
        contexts = [passage["context"] for passage in passages]
        for passage in passages:
            context = passage["context"]
            near = tuple(text for text in contexts if text != context)
            for entry in passage["qas"]:
                answers = _answers(*(answer["text"] for answer in entry["answers"]))
                if answers and not entry.get("is_impossible"):
                    evidence = (_sentence(context, entry["answers"][0]),)
                    yield Question(entry["question"], answers, (context,), {context: evidence}, near)


def _sentence(context: str, answer: dict[str, Any]) -> str:
    """The sentence or sentences that contain the answer; the whole passage if none do."""
    at = context.find(answer["text"], answer.get("answer_start", 0))
    if at < 0 or not answer["text"].strip():
        return context
    ends = [match.start() for match in SENTENCE_GAP.finditer(context)]
    start = max((end + 1 for end in ends if end < at), default=0)
    least = at + len(answer["text"])
    return context[start : min((end for end in ends if end >= least), default=len(context))].strip()


def _articles(items: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The passages of each article: from SQuAD's own JSON, one object, or from one passage per line."""
    for _, group in groupby(items, key=lambda item: item.get("title")):
        rows = list(group)
        if "data" in rows[0]:
            yield from (article["paragraphs"] for article in rows[0]["data"])
        else:
            yield rows


_READERS: dict[str, Callable[[Iterable[dict[str, Any]]], Iterator[Question]]] = {
    "hotpot": _hotpot,
    "2wiki": _hotpot,
    "musique": _musique,
    "squad": _squad,
}
