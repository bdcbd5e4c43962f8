"""The recipe that an example follows, and the task that it belongs to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from memagent.documents.tokens import estimate_tokens
from memagent.errors import SettingsError
from memagent.tasks.corpora import Corpora
from memagent.tasks.lengths import fit
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make the examples of a task.

    `length_tokens` is RULER's length: the most that the document, the problem and the room for the
    answer may have together. `documents` is the size in documents instead, for tasks that have them.
    `positions` "seeded" draws a new order for each example; "ruler" uses one order for all of them,
    drawn from the seed alone, as RULER's generators do (with the seed 42). `absent` is the share of
    examples whose document lacks what is asked for; their right answer is to say so.
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

    `scorer` is a key of `SCORERS`; `answer_tokens` the room that an answer needs (RULER's figure
    if there is one); `documents` the usual sizes in documents, empty for a task that has none;
    `corpus` the name of what it is made from; `can_be_absent` whether `Recipe.absent` applies;
    `questions` counts the available examples, if the corpora limit them.
    """

    name: str
    make: Callable[[Recipe, int], Example]
    scorer: str
    answer_tokens: int
    documents: tuple[int, ...] = ()
    corpus: str | None = None
    can_be_absent: bool = False
    questions: Callable[[Corpora], int] | None = None

    @property
    def wants_all(self) -> bool:
        """Whether an answer must give all gold answers, rather than any of them."""
        return self.scorer == "string_match_all"

    def count(self, wanted: int | None, usual: int, corpora: Corpora) -> int:
        """The number of examples: as many as are wanted, or the usual number, or all if there are fewer.

        Raises `SettingsError` if more are wanted than there are.
        """
        most = self.questions(corpora) if self.questions else None
        if wanted is None:
            return usual if most is None else min(usual, most)
        if most is not None and wanted > most:
            raise SettingsError(
                f"{self.name}: the set has {most} questions, and {wanted} are asked for: "
                "take fewer, or a larger set"
            )
        return wanted


@dataclass(frozen=True, slots=True)
class Draft:
    """One example in the making: its task's name and room for the answer, its recipe and number."""

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
        found = fit(build, self.limit_tokens(problem), self.recipe.count_tokens, weigh)
        if found is None:
            raise self.too_short()
        return found

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

        Its `id` tells what it depends on: an example of no size is a row of its set, whatever the seed.
        """
        size = self.recipe.length_tokens or self.recipe.documents
        made = f"{size}-{self.recipe.seed}-" if size else ""
        return Example(
            id=f"{self.task}-{made}{self.index}" + "-absent" * self.absent,
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
