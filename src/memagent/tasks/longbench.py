"""LongBench's English questions and summaries (arXiv 2308.14508), each document at its own length.

The rows come from the user's copy: the texts stay under their sources' terms, so none are in the package.
LongBench's synthetic, few-shot and code tasks are left out.
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

_BRIEFLY = "Give nothing but the answer."
_SUBSETS = {
    "narrativeqa": (128, "Answer with a single phrase if you can, and explain nothing."),
    "qasper": (
        128,
        "Answer with a single phrase or sentence if you can, and explain nothing. If the article does not "
        'tell, answer "unanswerable". A yes-or-no question takes "yes", "no" or "unanswerable".',
    ),
    "multifieldqa_en": (64, _BRIEFLY),
    "hotpotqa": (32, _BRIEFLY),
    "2wikimqa": (32, _BRIEFLY),
    "musique": (32, _BRIEFLY),
    "gov_report": (512, "Summarise this government report on one page."),
    "qmsum": (512, "The text is the transcript of a meeting. Answer in one or more sentences."),
    "multi_news": (512, "Summarise these news articles, all about one event, on one page."),
}
"""LongBench's answer budget in tokens, and what its prompts ask for, in our own words."""
_SUMMARIES = ("gov_report", "qmsum", "multi_news")


def tasks() -> list[Task]:
    """One task per subset, called `longbench_` and the subset's name."""
    return [
        Task(
            f"longbench_{subset}",
            partial(make, subset),
            "rouge_l" if subset in _SUMMARIES else "f1",
            room,
            corpus="longbench",
            questions=partial(_load, subset),
            own_lengths=True,
        )
        for subset, (room, _) in _SUBSETS.items()
    ]


def make(subset: str, recipe: Recipe, index: int) -> Example:
    """Row `index` of a subset. Raises `SettingsError` if there is no such row, or a length is asked for."""
    room, asked = _SUBSETS[subset]
    draft = Draft(f"longbench_{subset}", room, recipe, index)
    row = draft.pick(partial(_load, subset))
    question = str(row.get("question", row.get("input")) or "")
    problem = f"{question}\n\n{asked}".strip()
    tokens = count_long(row["context"], recipe.count_tokens)
    return draft.example(problem, row["context"], tuple(row["answers"]), tokens)


def _load(subset: str, corpora: Corpora) -> tuple[dict[str, Any], ...]:
    path = corpora.find("longbench").path
    if path.is_dir():
        files = sorted(path.rglob(f"{subset}.jsonl*"))
        if not files:
            raise SettingsError(f"{path} has no {subset}.jsonl")
        path = files[0]
    return _rows(path, subset, FileState.of(path))


@lru_cache(maxsize=16)
def _rows(path: Path, subset: str, _state: FileState) -> tuple[dict[str, Any], ...]:
    rows = tuple(row for _, row in read_rows(path) if row.get("dataset", subset) == subset)
    if not rows:
        raise SettingsError(f"{path} has no row of {subset}: name LongBench's folder, or another file")
    for row in rows:
        context, answers = row.get("context"), row.get("answers")
        texts = isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)
        if not (context and isinstance(context, str) and answers and texts):
            raise SettingsError(
                f"{path} is not laid out as LongBench is: a row lacks a context, a text, "
                "or answers, a list of texts"
            )
    return rows
