"""What an evaluation should do: which examples, which workflows, how often, and how much of it is left."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from memagent.errors import SettingsError, reason
from memagent.evaluation.rows import Cell, Key
from memagent.reading.workflows import workflows
from memagent.settings import ReadSettings
from memagent.storage import file_digest
from memagent.tasks import TASKS, Corpora, Recipe, load_examples
from memagent.tasks.corpora import Corpus
from memagent.tasks.recipe import Positions
from memagent.tasks.scoring import SCORERS
from memagent.types import Example, TokenCounter

DEFAULT_COUNT = 128  # as in the paper's tables


@dataclass(frozen=True, slots=True)
class Attempt:
    """One read to make: an example of a cell, by its number, with a workflow; and the sample's number."""

    cell: Cell
    index: int
    workflow: str
    sample: int
    example: Example

    @property
    def file_name(self) -> str:
        """The name of its journal, unique within the run."""
        cell, rest = self.cell, (self.index, self.workflow, self.sample)
        digest = hashlib.sha256(repr((cell, *rest)).encode("utf-8", "replace")).hexdigest()
        parts = (cell.task, cell.length or cell.documents or "", *rest)
        name = re.sub(r"[^\w.-]+", "-", "-".join(map(str, parts)))[:100]
        return f"{name}-{digest[:8]}.jsonl"


@dataclass(frozen=True)
class EvaluationPlan:
    """Which workflows run over which examples.

    Without `workflows`, it is the one that any read with these settings uses.
    `count` is the number of examples for each task and size (by default 128, or all of a smaller set), or the
    most to take from a file (by default all). Every workflow reads every example `samples` times. `seed`
    determines the examples. An answer gets the budget that its task asks for, unless the settings give
    another; with `task_answer_tokens` False it gets that of any other read.
    Raises `SettingsError` for unknown names and missing sizes.
    """

    workflows: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    count: int | None = None
    samples: int = 1
    seed: int = 0
    examples: str | None = None
    scorer: str | None = None
    positions: Positions = "seeded"
    corpora: Corpora = field(default_factory=Corpora)
    task_answer_tokens: bool = True

    def __post_init__(self) -> None:
        for what, names, known in (
            ("task", self.tasks, TASKS),
            ("workflow", self.workflows, workflows()),
            ("scorer", (self.scorer,) if self.scorer else (), SCORERS),
        ):
            for name in names:
                if name not in known:
                    raise SettingsError(f"there is no {what} {name!r}: use one of {', '.join(known)}")
            if len(set(names)) < len(names):
                raise SettingsError(f"a {what} is named twice: {', '.join(names)}")
        for name in ("count", "samples"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise SettingsError(f"{name} is {value}: it must be above 0")
        for sizes in (self.lengths, self.documents):
            if len(set(sizes)) < len(sizes) or min(sizes, default=1) < 1:
                raise SettingsError(
                    f"the sizes {', '.join(map(str, sizes))} must be above 0, each named once"
                )
        if not self.tasks and self.examples is None:
            raise SettingsError(
                "which examples? give `tasks` and `lengths` in tokens, or a file with `examples`"
            )
        _ = self.cells

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Each task at each of its sizes. A task made of documents uses `documents` if any are given."""
        cells: list[Cell] = []
        for task in self.tasks:
            if TASKS[task].own_lengths:
                cells.append(Cell(task))
            elif self.documents and TASKS[task].documents:
                cells += [Cell(task, documents=number) for number in self.documents]
            elif self.lengths:
                cells += [Cell(task, length=length) for length in self.lengths]
            else:
                sizes = "`lengths` in tokens" + (
                    ", or a number of `documents`" if TASKS[task].documents else ""
                )
                raise SettingsError(f"{task} needs a size: give {sizes}")
        return tuple(cells)

    def totals(self) -> Counter[tuple[Cell, str]]:
        """The number of attempts by cell and workflow. Raises `SettingsError` if a set has too few."""
        examples = Counter({cell: self._count(cell) for cell in self.cells})
        examples.update(cell for cell, _, _ in self._from_file(len))  # the lengths do not matter here
        return Counter(
            {
                (cell, workflow): count * self.samples
                for cell, count in examples.items()
                for workflow in self.workflows
            }
        )

    def attempts(self, done: Collection[Key], count_tokens: TokenCounter) -> Iterator[Attempt]:
        """The attempts that are left. Blocks: each example is made, or read from its file, when it is needed.

        Raises `MemAgentError` for one that cannot be made.
        """
        recipe = partial(
            Recipe, seed=self.seed, count_tokens=count_tokens, corpora=self.corpora, positions=self.positions
        )
        for cell in self.cells:
            for index in range(self._count(cell)):
                if missing := self._missing(cell, index, done):
                    sized = recipe(length_tokens=cell.length, documents=cell.documents)
                    example = TASKS[cell.task].make(sized, index)
                    yield from (Attempt(cell, index, *pair, example) for pair in missing)
        for cell, index, example in self._from_file(count_tokens):
            yield from (Attempt(cell, index, *pair, example) for pair in self._missing(cell, index, done))

    def scorer_of(self, task: str) -> str:
        """The name of the scorer for a task's examples."""
        known = TASKS.get(task)
        return self.scorer or (known.scorer if known else "substring_match")

    def settings_for(self, task: str, workflow: str, sample: int, settings: ReadSettings) -> ReadSettings:
        """The settings of an attempt: its workflow, its answer budget, and a seed of its own."""
        known = TASKS.get(task) if self.task_answer_tokens else None
        return settings.replace(
            workflow=workflow,
            answer_tokens=settings.answer_tokens or (known.answer_tokens if known else None),
            seed=None if settings.seed is None else settings.seed + sample,
        )

    def _count(self, cell: Cell) -> int:
        return TASKS[cell.task].count(self.count, DEFAULT_COUNT, self.corpora)

    def _missing(self, cell: Cell, index: int, done: Collection[Key]) -> list[tuple[str, int]]:
        """The workflows and the numbers of the samples that have not read an example."""
        pairs = product(self.workflows, range(self.samples))
        return [pair for pair in pairs if (cell, index, *pair) not in done]

    def _from_file(self, count_tokens: TokenCounter) -> Iterator[tuple[Cell, int, Example]]:
        if self.examples is None:
            return
        for index, example in enumerate(load_examples(self.examples, count_tokens)):
            if index == self.count:
                return
            cell = Cell(example.task)
            if cell in self.cells:
                raise SettingsError(
                    f"{self.examples} has examples of {cell.task}, which is a task of this run too: measure "
                    "them in two runs, or name their task otherwise"
                )
            yield cell, index, example

    def describe(self) -> dict[str, Any]:
        """The plan as it is stored with the rows, with digests of its files."""
        return {
            "tasks": self.tasks,
            "lengths": self.lengths,
            "documents": self.documents,
            "workflows": self.workflows,
            "count": self.count,
            "samples": self.samples,
            "seed": self.seed,
            "scorers": {task: self.scorer_of(task) for task in self.tasks or ("",)},
            "positions": self.positions,
            "task_answer_tokens": self.task_answer_tokens,
            "examples": self.examples and {"sources": self.examples, "sha256": _digest(Path(self.examples))},
            "questions": self.corpora.questions and {"sha256": _digest(self.corpora.questions)},
            "corpora": {
                source.name: {"origin": source.origin, "sha256": _digest(source.path)}
                for source in self.sources()
            },
        }

    def sources(self) -> tuple[Corpus, ...]:
        """The corpora that the tasks are made from. Raises `SettingsError` for one that is not there."""
        names = {corpus for task in self.tasks if (corpus := TASKS[task].corpus)}
        return tuple(self.corpora.find(name) for name in sorted(names))


def _digest(path: Path) -> str:
    """SHA-256 over a file, or over all files below a folder, in order."""
    digest = hashlib.sha256()
    try:
        for part in sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]:
            digest.update(file_digest(part))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {reason(error)}") from error
    return digest.hexdigest()
