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
from memagent.tasks.lengths import Pieces, count_long, digits, fit
from memagent.tasks.passages import Passages, Question, load_passages
from memagent.tasks.recipe import ABSENT_ANSWERS, Draft, Recipe, Task, number_documents
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
    made = [_task(name, corpus, "string_match_part", ()) for name, corpus in ruler.items()]
    return made + [_task(name, corpus, "substring_match", SIZES) for name, corpus in sized.items()]


def _task(name: str, corpus: str, scorer: str, documents: tuple[int, ...]) -> Task:
    def questions(corpora: Corpora) -> int:
        return len(load_passages(corpora.find(corpus), corpora.questions).questions)

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
        document = number_documents(_order(draft, _choose(draft, passages, question, recipe.documents)))
        tokens = count_long(document, recipe.count_tokens)
    else:
        document, tokens = _fit(draft, passages, question)
    evidence = _evidence(passages, question, document)
    return draft.example(question.problem, document, question.answers, tokens, evidence)


def _without_answer(passages: Passages, question: Question) -> Question:
    """The question, with every passage barred that it needs or that contains one of its answers."""
    telling = [answer.lower() for answer in question.answers if answer.lower() not in ("yes", "no")]
    barred = {*question.gold}
    barred |= {place for place, text in enumerate(passages.pool)
               if any(answer in text.lower() for answer in telling)}  # fmt: skip
    return Question(
        problem=question.problem,
        answers=ABSENT_ANSWERS,
        own=tuple(place for place in question.own if place not in barred),
        gold=(),
        near=tuple(place for place in question.near if place not in barred),
        barred=tuple(sorted(barred)),
    )


def _evidence(passages: Passages, question: Question, document: str) -> tuple[str, ...]:
    """The evidence of the gold passages, in the order of the document."""
    found = zip(question.gold, question.evidence, strict=True)
    ordered = sorted(found, key=lambda item: document.index(passages.pool[item[0]]))
    return tuple(chain.from_iterable(texts for _, texts in ordered))


def _choose(draft: Draft, passages: Passages, question: Question, documents: int) -> list[str]:
    """As many documents as asked for, the question's own first, in their order."""
    if documents < len(question.gold):
        raise SettingsError(
            f"{draft.task}: {documents} documents are fewer than the {len(question.gold)} that "
            "the question needs"
        )
    own, others = question.own, _distractors(draft, passages, question)
    if documents < len(own):
        own = tuple(dict.fromkeys(own))  # a few questions come with the same passage twice
        spare = [place for place in own if place not in question.gold]
        kept = {*question.gold, *spare[: documents - len(question.gold)]}
        own = tuple(place for place in own if place in kept)
    return [passages.pool[place] for place in own] + list(islice(others, documents - len(own)))


def _distractors(draft: Draft, passages: Passages, question: Question) -> Iterator[str]:
    """Other documents without end: those of the same article, then the rest, then all of them again."""
    source = draft.content
    taken = {*question.own, *question.near, *question.barred}
    far = [place for place in range(len(passages.pool)) if place not in taken]
    near = list(question.near)
    if not near and not far:
        raise SettingsError(f"{draft.task}: the set has no other documents to read among: take a larger one")
    while True:
        for places in (near, far):
            source.shuffle(places)
            yield from (passages.pool[place] for place in places)


def _order(draft: Draft, texts: Sequence[str]) -> list[str]:
    ordered = list(texts)
    draft.order.shuffle(ordered)
    return ordered


def _fit(draft: Draft, passages: Passages, question: Question) -> tuple[str, int]:
    limit, count = draft.limit_tokens(question.problem), draft.recipe.count_tokens
    others = _distractors(draft, passages, question)
    spare = [place for place in question.own if place not in question.gold]
    for fixed, first in ((question.own, ()), (question.gold, spare)):
        own = [passages.pool[place] for place in fixed]
        pieces = Pieces(chain((passages.pool[place] for place in first), others))

        def build(size: int, own: Sequence[str] = own, pieces: Pieces = pieces) -> str:
            return number_documents(_order(draft, [*own, *pieces.first(size)]))

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
        document = number_documents(_order(draft, [*texts, *extra]))
        if (tokens := count_long(document, count)) <= limit:
            return document, tokens
        extra.pop()
    return fitted
