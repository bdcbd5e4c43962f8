"""The recipe that an example follows, the task that it belongs to, and documents of a given length.

Counting 3.5M tokens takes seconds, so `fit` counts a text only about once: it extrapolates the size from
small documents to larger ones. A long text is counted block by block, within the tokenizer's caches.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from memagent.documents.tokens import estimate_tokens
from memagent.errors import SettingsError
from memagent.tasks.corpora import Corpora
from memagent.types import Example, TokenCounter

Positions = Literal["seeded", "ruler"]

ABSENT_ANSWERS = (
    "does not hold the answer",
    "does not contain the answer",
    "does not say",
    "does not mention",
    "does not give",
    "not in the memory",
    "not in the document",
    "not mentioned",
    "no answer",
)
"""The gold answers of an example whose document lacks the answer; the first is what the prompts ask for."""

_BLOCK_CHARACTERS = 1 << 16
_MIN_SHARE = 0.985  # with the problem and the answer's room, this keeps the promised 2%
_AIM_SHARE = 0.993
_FIRST_SIZE = 32
_PROBES = (256, 16)  # a long document is first measured at these fractions of its length
_MIN_PROBE_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make the examples of a task.

    `length_tokens` is RULER's length: the most that document, problem and answer may have together.
    `documents` is the size in documents instead, for tasks that have them. `positions` "seeded" draws a new
    order for each example; "ruler" one for all, from the seed alone, as RULER's generators do (with the seed
    42). `absent` is the share of examples whose document lacks what is asked for, as their answer should say.
    """

    length_tokens: int | None = None
    documents: int | None = None
    seed: int = 0
    count_tokens: TokenCounter = field(default=estimate_tokens)
    corpora: Corpora = field(default_factory=Corpora)
    positions: Positions = "seeded"
    absent: float = 0.0

    def __post_init__(self) -> None:
        for name in ("length_tokens", "documents"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise SettingsError(f"`{name}` is {value}: it must be above 0")
        if self.length_tokens is not None and self.documents is not None:
            raise SettingsError("give `length_tokens` or `documents`, not both")
        if self.positions not in ("seeded", "ruler"):
            raise SettingsError(f"positions is {self.positions!r}: use seeded or ruler")
        if not 0 <= self.absent <= 1:
            raise SettingsError(f"`absent` is {self.absent}: it is a share, from 0 to 1")


@dataclass(frozen=True, slots=True)
class Task:
    """A family of examples.

    `scorer` is a key of `SCORERS`; `answer_tokens` the room that an answer needs; `documents` the usual sizes
    in documents, if it has any; `corpus` the name of what it is made from; `can_be_absent` whether
    `Recipe.absent` applies; `questions` are those of the corpora, if these limit the examples;
    `own_lengths` whether its documents are what they are, so that no size can be asked for.
    """

    name: str
    make: Callable[[Recipe, int], Example]
    scorer: str
    answer_tokens: int
    documents: tuple[int, ...] = ()
    corpus: str | None = None
    can_be_absent: bool = False
    questions: Callable[[Corpora], Sequence[Any]] | None = None
    own_lengths: bool = False

    @property
    def wants_all(self) -> bool:
        """Whether an answer must give all gold answers, rather than any of them."""
        return self.scorer == "string_match_all"

    def count(self, requested: int | None, usual: int, corpora: Corpora) -> int:
        """The number of examples: as many as requested, or the usual number, or all if there are fewer.

        Raises `SettingsError` if more are requested than there are.
        """
        most = len(self.questions(corpora)) if self.questions else None
        if requested is None:
            return usual if most is None else min(usual, most)
        if most is not None and requested > most:
            raise SettingsError(
                f"{self.name}: the set has {most} questions, and {requested} are asked for: "
                "take fewer, or a larger set"
            )
        return requested


@dataclass(frozen=True, slots=True)
class Draft:
    """One example being made: its task's name, the room for its answer, its recipe and number."""

    task: str
    answer_tokens: int
    recipe: Recipe
    index: int

    @property
    def content(self) -> random.Random:
        """The random source of keys, values, words and distractors: a new one for each example."""
        return random.Random(f"{self.task}/{self.recipe.seed}/{self.index}")

    @property
    def order(self) -> random.Random:
        """The random source of the order in the document."""
        if self.recipe.positions == "ruler":
            return random.Random(self.recipe.seed)
        return random.Random(f"{self.task}/{self.recipe.seed}/{self.index}/order")

    @property
    def absent(self) -> bool:
        """Whether this is one of the examples whose document lacks what is asked for."""
        source = random.Random(f"{self.task}/{self.recipe.seed}/{self.index}/absent")
        return source.random() < self.recipe.absent

    def pick(self, load: Callable[[Corpora], Sequence[dict[str, Any]]]) -> dict[str, Any]:
        """Its row of a set whose documents have lengths of their own.

        Raises `SettingsError` if there is no such row, or a length is asked for, and what `load` raises.
        """
        if self.recipe.length_tokens is not None or self.recipe.documents is not None:
            raise SettingsError(f"{self.task}: its documents have lengths of their own: give none")
        rows = load(self.recipe.corpora)
        if self.index >= len(rows):
            raise SettingsError(
                f"{self.task} has {len(rows)} rows, and number {self.index + 1} was asked for"
            )
        return rows[self.index]

    def limit_tokens(self, problem: str) -> int:
        """The most tokens that the document may have. Raises `SettingsError` if none are left."""
        length = self.recipe.length_tokens
        if length is None:
            raise SettingsError(f"{self.task} needs a length in tokens: give `length_tokens`")
        left = length - self.recipe.count_tokens(problem) - self.answer_tokens
        if left < 1:
            raise self.too_short()
        return left

    def fit(
        self, problem: str, build: Callable[[int], str], weigh: Callable[[int], float] = float
    ) -> tuple[str, int, int]:
        """The document of the recipe's length, its tokens and its size: see `fit`. Raises `SettingsError`."""
        fitted = fit(build, self.limit_tokens(problem), self.recipe.count_tokens, weigh)
        if fitted is None:
            raise self.too_short()
        return fitted

    def too_short(self) -> SettingsError:
        """The error for a length that is too small for an example."""
        return SettingsError(
            f"{self.task}: {self.recipe.length_tokens} tokens are too few for the question, "
            f"{self.answer_tokens} tokens of answer and a document: use a larger length"
        )

    def example(
        self,
        problem: str,
        document: str,
        answers: tuple[str, ...],
        tokens: int,
        evidence: tuple[str, ...] = (),
        haystack: str = "",
    ) -> Example:
        """The finished example; its document has `tokens` tokens.

        Its `id` names what it depends on: an example without a size is a row of its set, whatever the seed.
        """
        size = self.recipe.length_tokens or self.recipe.documents
        size_and_seed = f"{size}-{self.recipe.seed}-" if size else ""
        return Example(
            id=f"{self.task}-{size_and_seed}{self.index}" + "-absent" * self.absent,
            task=self.task,
            problem=problem,
            document=document,
            answers=answers,
            length_tokens=tokens,
            evidence=evidence,
            haystack=haystack,
        )


def number_documents(texts: Iterable[str]) -> str:
    """The texts under the headings "Document 1:", "Document 2:" and so on."""
    return "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(texts, 1))


class Pieces:
    """The first texts of an endless source, kept together with their total number of characters."""

    def __init__(self, source: Iterator[str]) -> None:
        self._source = source
        self._texts: list[str] = []
        self._ends = [0]

    def first(self, count: int) -> Sequence[str]:
        """The first `count` texts."""
        for text in islice(self._source, max(0, count - len(self._texts))):
            self._texts.append(text)
            self._ends.append(self._ends[-1] + len(text) + 1)
        return self._texts[:count]

    def characters(self, count: int) -> int:
        """The number of characters in the first `count` texts, plus one separator for each."""
        self.first(count)
        return self._ends[count]


def count_long(text: str, count_tokens: TokenCounter) -> int:
    """Count the tokens of a text of any length, off by up to 0.01%.

    Blocks of 65,536 characters begin at a space, where most tokenizers begin a token anyway.
    """
    total = start = 0
    while len(text) - start > _BLOCK_CHARACTERS:
        limit = start + _BLOCK_CHARACTERS
        end = text.rfind(" ", start + 1, limit)
        end = end if end > start else limit
        total += count_tokens(text[start:end])
        start = end
    return total + count_tokens(text[start:])


def digits(number: int) -> int:
    """How many digits the numbers from 1 to `number` have together."""
    total, first = 0, 1
    while first <= number:
        total += number - first + 1
        first *= 10
    return total


def fit(
    build: Callable[[int], str],
    limit_tokens: int,
    count_tokens: TokenCounter,
    weigh: Callable[[int], float] = float,
) -> tuple[str, int, int] | None:
    """The document `build(size)` that comes close to `limit_tokens` without exceeding it.

    `weigh(size)` must be cheap, unbounded, and grow about as the tokens of `build(size)` do.
    Returns the document, its tokens and its size, or None if even `build(0)` is over the limit.
    The document is short by up to 1.5% or, if that is more, by less than one piece.
    """
    points: list[tuple[float, int]] = []  # weights and tokens, as they were measured

    def measure(size: int) -> tuple[str, int]:
        text = build(size)
        points.append((weigh(size), count_long(text, count_tokens)))
        return text, points[-1][1]

    best, over = (*measure(0), 0), None
    if best[1] > limit_tokens:
        return None
    measure(_FIRST_SIZE)
    for part in _PROBES:
        if limit_tokens // part >= _MIN_PROBE_TOKENS:
            measure(max(_FIRST_SIZE + 1, _extrapolate(points, weigh, limit_tokens / part)))
    while over is None or over - best[2] > 1:
        size = max(_extrapolate(points, weigh, limit_tokens * _AIM_SHARE), best[2] + 1)
        size = size if over is None else min(size, over - 1)
        text, tokens = measure(size)
        if tokens > limit_tokens:
            over = size
        else:
            best = (text, tokens, size)
            if tokens >= limit_tokens * _MIN_SHARE:
                break
    return best


def _extrapolate(points: Sequence[tuple[float, int]], weigh: Callable[[int], float], tokens: float) -> int:
    """The size that should have this many tokens.

    It lies on the line through the last point and an earlier one that is well apart: the rate between
    two nearly equal sizes would be noise.
    """
    weight, measured = points[-1]
    before, fewer = next(point for point in reversed(points) if point[0] <= weight / 2 or point == points[0])
    rate = max((measured - fewer) / (weight - before), 1e-6) if weight > before else 1.0
    aim, high = weight + (tokens - measured) / rate, 1
    while weigh(high) <= aim:
        high *= 2
    return max(0, bisect_right(range(high), aim, key=weigh) - 1)
