"""Questions among many numbered documents: RULER's `qa_1` and `qa_2`, and sets sized by documents.

The gold documents are among distractors from the same set, those of the same article first, as in RULER
(arXiv 2404.06654); `hqa` is what MemAgent is measured on (arXiv 2507.02259). With positions "ruler" and
RULER's seed, 42, a question's own documents stand where RULER puts them. Unlike in RULER, distractors repeat
when a set runs out of them, and a document too short for all of a question's own keeps the gold ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice

from memagent.errors import SettingsError
from memagent.tasks.corpora import Corpora
from memagent.tasks.passages import PassageSet, Question, load_passages
from memagent.tasks.recipe import (
    ABSENT_ANSWERS,
    Draft,
    Pieces,
    Recipe,
    Task,
    count_long,
    digits,
    fit,
    number_documents,
)
from memagent.types import Example

SIZES = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600)
"""The published sizes, in documents: some 7K to 3.5M tokens of HotpotQA."""

_ANSWER_TOKENS = 32
_SHARE_LEFT = 0.006  # the share of a document's length that may stay unused
_LOOK_AHEAD = 400


def tasks() -> list[Task]:
    """RULER's two tasks, and one for each set, sized by documents."""
    ruler = {"qa_1": "squad", "qa_2": "hotpot"}
    sized = {"hqa": "hotpot", "squad": "squad", "2wiki": "2wiki", "musique": "musique"}
    ruler_tasks = [_task(name, corpus, "string_match_part", ()) for name, corpus in ruler.items()]
    return ruler_tasks + [_task(name, corpus, "substring_match", SIZES) for name, corpus in sized.items()]


def _task(name: str, corpus: str, scorer: str, documents: tuple[int, ...]) -> Task:
    def questions(corpora: Corpora) -> Sequence[Question]:
        return load_passages(corpora.find(corpus), corpora.questions).questions

    return Task(name, partial(make, name, corpus), scorer, _ANSWER_TOKENS, documents, corpus, True, questions)


def make(name: str, corpus: str, recipe: Recipe, index: int) -> Example:
    """One example, of the set's question number `index`.

    Raises `SettingsError` if there is no such question, or no room for its gold documents.
    """
    draft = Draft(name, _ANSWER_TOKENS, recipe, index)
    passages = load_passages(recipe.corpora.find(corpus), recipe.corpora.questions)
    if index >= len(passages.questions):
        raise SettingsError(
            f"{name}: {recipe.corpora.find(corpus).path} has {len(passages.questions)} questions, "
            f"and number {index + 1} was asked for: take fewer, or a larger set"
        )
    question = passages.questions[index]
    if draft.absent:
        question = _without_answer(passages, question)
    if recipe.documents is not None:
        document = _join(draft, _choose(draft, passages, question, recipe.documents))
        tokens = count_long(document, recipe.count_tokens)
    else:
        document, tokens = _fit(draft, passages, question)
    gold = sorted(question.gold.items(), key=lambda pair: document.index(pair[0]))
    evidence = tuple(text for _, facts in gold for text in facts)
    return draft.example(question.problem, document, question.answers, tokens, evidence)


def _without_answer(passages: PassageSet, question: Question) -> Question:
    """The question, with every passage barred that it needs or that contains one of its answers."""
    telling = [answer.lower() for answer in question.answers if answer.lower() not in ("yes", "no")]
    answering = (text for text in passages.pool if any(answer in text.lower() for answer in telling))
    barred = frozenset([*question.gold, *answering])
    return Question(
        problem=question.problem,
        answers=ABSENT_ANSWERS,
        own=tuple(text for text in question.own if text not in barred),
        gold={},
        near=tuple(text for text in question.near if text not in barred),
        barred=barred,
    )


def _choose(draft: Draft, passages: PassageSet, question: Question, documents: int) -> list[str]:
    """As many documents as asked for, the question's own first, in their order."""
    if documents < len(question.gold):
        raise SettingsError(
            f"{draft.task}: {documents} documents are fewer than the {len(question.gold)} that "
            "the question needs"
        )
    own = list(question.own)
    if documents < len(own):
        own = list(dict.fromkeys(own))  # a few questions come with the same passage twice
        spare = [text for text in own if text not in question.gold]
        retained = {*question.gold, *spare[: documents - len(question.gold)]}
        own = [text for text in own if text in retained]
    return own + list(islice(_distractors(draft, passages, question), documents - len(own)))


def _distractors(draft: Draft, passages: PassageSet, question: Question) -> Iterator[str]:
    """Other documents without end: those of the same article, then the rest, then all of them again."""
    source = draft.content
    excluded = {*question.own, *question.near, *question.barred}
    near, far = list(question.near), [text for text in passages.pool if text not in excluded]
    if not near and not far:
        raise SettingsError(f"{draft.task}: the set has no other documents to read among: take a larger one")
    while True:
        for texts in (near, far):
            source.shuffle(texts)
            yield from texts


def _join(draft: Draft, texts: list[str]) -> str:
    """The document of these texts, in the draft's order."""
    draft.order.shuffle(texts)
    return number_documents(texts)


def _fit(draft: Draft, passages: PassageSet, question: Question) -> tuple[str, int]:
    limit, count = draft.limit_tokens(question.problem), draft.recipe.count_tokens
    others = _distractors(draft, passages, question)
    spare = [text for text in question.own if text not in question.gold]
    for own, first in ((question.own, []), (tuple(question.gold), spare)):
        pieces = Pieces(chain(first, others))

        def build(size: int, own: Sequence[str] = own, pieces: Pieces = pieces) -> str:
            return _join(draft, [*own, *pieces.first(size)])

        def weigh(size: int, pieces: Pieces = pieces) -> float:
            return pieces.characters(size) + digits(size) + len("Document :\n") * size

        if fitted := fit(build, limit, count, weigh):
            texts = [*own, *pieces.first(fitted[2])]
            ahead = pieces.first(fitted[2] + _LOOK_AHEAD)[fitted[2] :]
            return _fill_up(draft, texts, ahead, limit, fitted[:2])
    raise draft.too_short()


def _fill_up(
    draft: Draft, texts: list[str], ahead: Sequence[str], limit: int, fitted: tuple[str, int]
) -> tuple[str, int]:
    """The document, with further texts that fit into the room for which the next one was too long."""
    count, (document, tokens) = draft.recipe.count_tokens, fitted
    enough, extra, left = limit * _SHARE_LEFT, list[str](), limit - tokens
    if left <= limit * 2 * _SHARE_LEFT:
        return fitted
    for text in ahead:
        if left <= enough:
            break
        cost = count(f"\n\nDocument {len(texts)}:\n{text}")
        if cost <= left:
            extra.append(text)
            left -= cost
    while extra:
        document = _join(draft, [*texts, *extra])
        if (tokens := count_long(document, count)) <= limit:
            return document, tokens
        extra.pop()
    return fitted
