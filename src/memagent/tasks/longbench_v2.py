"""LongBench v2's multiple-choice questions (arXiv 2412.15204), each document at its own length.

One task for each of its three lengths: short (up to 32K words), medium (up to 128K) and long (up to 2M). The
rows come from the user's copy, as for LongBench. Its chain-of-thought setting, which asks twice, is left out.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from memagent.documents.files import FileState
from memagent.errors import SettingsError
from memagent.tasks.corpora import Corpora, read_rows
from memagent.tasks.recipe import Draft, Recipe, Task, count_long
from memagent.types import Example

_LENGTHS = ("short", "medium", "long")
_ANSWER_TOKENS = 128
_CHOICES = "ABCD"
_TEXTS = ("context", "question", *(f"choice_{letter}" for letter in _CHOICES))


def tasks() -> list[Task]:
    """One task per length, called `longbench_v2_` and the length's name."""
    return [
        Task(
            f"longbench_v2_{length}",
            partial(make, length),
            "choice",
            _ANSWER_TOKENS,
            corpus="longbench_v2",
            questions=partial(_load, length),
            own_lengths=True,
        )
        for length in _LENGTHS
    ]


def make(length: str, recipe: Recipe, index: int) -> Example:
    """Row `index` of a length. Raises `SettingsError` if there is no such row, or a length is asked for."""
    draft = Draft(f"longbench_v2_{length}", _ANSWER_TOKENS, recipe, index)
    row = draft.pick(partial(_load, length))
    choices = "\n".join(f"({letter}) {row[f'choice_{letter}'].strip()}" for letter in _CHOICES)
    problem = (
        f"{row['question'].strip()}\n\n{choices}\n\n"
        'One of these is right. Say which, in the form "The correct answer is (X)".'
    )
    tokens = count_long(row["context"], recipe.count_tokens)
    return draft.example(problem, row["context"], (row["answer"],), tokens)


def _load(length: str, corpora: Corpora) -> tuple[dict[str, Any], ...]:
    path = corpora.find("longbench_v2").path
    return tuple(row for row in _rows(path, FileState.of(path)) if row["length"] == length)


@lru_cache(maxsize=1)
def _rows(path: Path, _state: FileState) -> tuple[dict[str, Any], ...]:
    rows = tuple(row for _, row in read_rows(path))
    for row in rows:
        texts = all(isinstance(row.get(name), str) and row[name].strip() for name in _TEXTS)
        if not texts or row.get("answer") not in tuple(_CHOICES) or row.get("length") not in _LENGTHS:
            raise SettingsError(
                f"{path} is not laid out as LongBench v2 is: a row lacks one of {', '.join(_TEXTS)}, or its "
                f"answer is none of {', '.join(_CHOICES)}, or its length none of {', '.join(_LENGTHS)}"
            )
    return rows
