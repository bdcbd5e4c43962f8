"""Questions over short passages: SQuAD, HotpotQA, 2WikiMultihopQA and MuSiQue, read from their own files.

Each passage of a set is in one pool, which is where the distractors of every question come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from memagent.errors import SettingsError
from memagent.tasks.corpora import Source, read_rows


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answers, and its passages as positions in the pool.

    `own` came with the question, in their order; `gold`, some of those, are needed to answer it;
    `near` are of the same article, the hardest distractors.
    """

    problem: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Passages:
    """The questions of a set, in the order of its file, and the pool of passages, sorted."""

    questions: tuple[Question, ...]
    pool: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """A question with its passages as texts."""

    problem: str
    answers: tuple[str, ...]
    own: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...] = ()


def load_passages(source: Source) -> Passages:
    """A set's questions and pool. Raises `SettingsError` if the file is not of that set."""
    return _load(source.name, source.path, source.path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _load(name: str, path: Path, _changed: int) -> Passages:
    try:
        rows = list(_READERS[name](read_rows(path)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingsError(f"{path} is not laid out as {name} is: {error!r}") from error
    if not rows:
        raise SettingsError(f"{path} holds no questions that can be answered")
    pool = tuple(sorted({text for row in rows for text in (*row.own, *row.near)}))
    places = {text: place for place, text in enumerate(pool)}

    def look_up(texts: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(places[text] for text in texts)

    questions = tuple(
        Question(row.problem, row.answers, look_up(row.own), look_up(row.gold), look_up(row.near))
        for row in rows
    )
    return Passages(questions, pool)


def _answers(*texts: str) -> tuple[str, ...]:
    """The texts, each once."""
    return tuple(dict.fromkeys(text for text in texts if text.strip()))


def _hotpot(items: Iterable[dict[str, Any]]) -> Iterator[_Row]:
    """HotpotQA's own JSON, and 2WikiMultihopQA's, which is laid out the same."""
    for item in items:
        named = {title for title, _ in item["supporting_facts"]}
        own = [(_titled(title, sentences), title in named) for title, sentences in item["context"]]
        if answers := _answers(item["answer"]):
            yield _row(item["question"], answers, own)


def _titled(title: str, sentences: list[str]) -> str:
    """A passage with its title. HotpotQA's sentences begin with their space, 2WikiMultihopQA's do not."""
    spaced = any(sentence.startswith(" ") for sentence in sentences[1:])
    return f"{title}\n{('' if spaced else ' ').join(sentences)}"


def _musique(items: Iterable[dict[str, Any]]) -> Iterator[_Row]:
    for item in items:
        passages = item["paragraphs"]
        own = [(f"{it['title']}\n{it['paragraph_text']}", bool(it["is_supporting"])) for it in passages]
        if item.get("answerable", True):
            yield _row(item["question"], _answers(item["answer"], *item.get("answer_aliases", ())), own)


def _row(problem: str, answers: tuple[str, ...], own: list[tuple[str, bool]]) -> _Row:
    """A question with its passages, each marked if it is needed."""
    gold = dict.fromkeys(text for text, needed in own if needed)
    return _Row(problem, answers, tuple(text for text, _ in own), tuple(gold))


def _squad(items: Iterable[dict[str, Any]]) -> Iterator[_Row]:
    for passages in _articles(items):
        contexts = [passage["context"] for passage in passages]
        for passage in passages:
            context = passage["context"]
            near = tuple(text for text in contexts if text != context)
            for asked in passage["qas"]:
                answers = _answers(*(answer["text"] for answer in asked["answers"]))
                if answers and not asked.get("is_impossible"):
                    yield _Row(asked["question"], answers, (context,), (context,), near)


def _articles(items: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The passages of each article: of SQuAD's own JSON, one object, or of one passage a line."""
    for _, group in groupby(items, key=lambda item: item.get("title")):
        rows = list(group)
        if "data" in rows[0]:
            yield from (article["paragraphs"] for article in rows[0]["data"])
        else:
            yield rows


_READERS: dict[str, Callable[[Iterable[dict[str, Any]]], Iterator[_Row]]] = {
    "hotpot": _hotpot,
    "2wiki": _hotpot,
    "musique": _musique,
    "squad": _squad,
}
