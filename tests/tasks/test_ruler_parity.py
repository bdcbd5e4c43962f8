"""Our examples have the statistics of RULER's own generators, recorded by `benchmarks/ruler_parity.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import load_benchmark
from memagent.tasks import RULER, TASKS, Corpora, Recipe, examples
from memagent.tasks.passages import load_passages
from memagent.types import TokenCounter

HERE = Path(__file__).parent
RECORDED: dict[str, Any] = json.loads((HERE / "ruler_sample.json").read_text())
SEED = 42


RULERS = load_benchmark("ruler_statistics")


@pytest.mark.parametrize("task", [task for task in RULER if not task.startswith("qa_")])
def test_the_statistics_are_those_of_ruler(task: str, count: TokenCounter) -> None:
    length = RECORDED["settings"]["length"]
    recipe = Recipe(length_tokens=length, seed=SEED, count_tokens=count)
    room = TASKS[task].answer_tokens
    samples = [
        RULERS.Sample(
            example.document,
            example.answers,
            (example.length_tokens + count(example.problem) + room) / length,
        )
        for example in examples(task, recipe, 20)
    ]
    ours, theirs = RULERS.statistics(task, samples), RECORDED["tasks"][task]["statistics"]
    verdicts = {name: RULERS.compare(task, name, theirs[name], ours[name]) for name in theirs}
    assert "DIFFERS" not in verdicts.values(), verdicts
    same = [name for name, verdict in verdicts.items() if verdict == "same"]
    assert len(same) >= 3 and "answers" in same, "the rest differs on purpose"


@pytest.mark.parametrize(("task", "corpus"), [("squad", "squad"), ("hqa", "hotpot")])
def test_with_ruler_s_positions_documents_stand_in_its_slots(task: str, corpus: str) -> None:
    """RULER's `qa_1` and `qa_2`, of which the sample holds some articles and the first 40 questions."""
    recorded = RECORDED["tasks"]["qa_1" if task == "squad" else "qa_2"]["slots"]
    passages = load_passages(Corpora().find(corpus))
    for index, ruler in enumerate(recorded):
        recipe = Recipe(documents=ruler["documents"], seed=SEED, positions="ruler")
        (example,) = examples(task, recipe, 1, start=index)
        own = passages.questions[index].own
        ours = RULERS.slots(RULERS.Sample(example.document, example.answers, 1.0, own))
        assert ours == ruler, index


def test_differing_statistics_are_distinguished() -> None:
    """The comparison itself: it must be able to fail."""
    assert RULERS.compare("vt", "hops", 4, 5) == "DIFFERS"
    assert RULERS.compare("vt", "depth", [0.1 * n for n in range(10)] * 5, [0.9] * 50) == "DIFFERS"
    assert RULERS.compare("niah_single_1", "key form", "word-word", "7 digits") == "DIFFERS"
    assert RULERS.compare("vt", "hops", 4, 4) == "same"
    assert RULERS.compare("cwe", "entries", 800, 1000) != "DIFFERS", "a difference that is on purpose"
