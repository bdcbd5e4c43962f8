"""What an evaluation comes to at most is known before it begins."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.measured import find_code, write_examples
from memagent import Message, ReadSettings, ScriptedEngine, SettingsError, Spent
from memagent.evaluation.plan import EvaluationPlan
from memagent.evaluation.rows import Cell, read_rows
from memagent.evaluation.run import Evaluation, evaluate, forecast_evaluation
from memagent.reading.workflows import workflows
from memagent.runs.batch import RunProgress
from memagent.settings import Settings

READ = ReadSettings(
    chunk_tokens=60,
    memory_tokens=40,
    answer_tokens=40,
    passage_tokens=50,
    prompt_price=2.0,
    completion_price=3.0,
)


def engine(window: int = 4000) -> ScriptedEngine:
    def reply(messages: tuple[Message, ...]) -> str:
        return find_code([{"content": message.content} for message in messages])

    return ScriptedEngine(reply, window_tokens=window)


def run_of(folder: Path, workflows: tuple[str, ...], words: int = 200, **options: int) -> Evaluation:
    examples = write_examples(folder / "lamps.jsonl", 3, words)
    plan = EvaluationPlan(workflows=workflows, examples=str(examples), **options)
    return Evaluation(plan=plan, settings=Settings(read=READ), folder=folder / "out")


def bounds(run: Evaluation, window: int = 4000) -> Mapping[tuple[Cell, str], RunProgress]:
    return asyncio.run(forecast_evaluation(run, engine(window)))


def test_no_workflow_costs_more_than_was_said(tmp_path: Path) -> None:
    run = run_of(tmp_path, tuple(workflows()), samples=2)
    forecast = {workflow: bound for (_, workflow), bound in bounds(run).items()}
    assert not run.folder.exists(), "nothing is written"
    asyncio.run(evaluate(run, engine()))
    attempts: Counter[str] = Counter()
    spent: defaultdict[str, Spent] = defaultdict(Spent)
    for row in read_rows(run.folder):
        attempts[row.workflow] += 1
        spent[row.workflow] += row.spent
    assert set(forecast) == set(spent) == set(workflows())
    for workflow, now in spent.items():
        assert forecast[workflow].done == attempts[workflow] == 6 and not forecast[workflow].failed
        most = forecast[workflow].spent
        assert now.calls <= most.calls and now.prompt_tokens <= most.prompt_tokens
        assert now.completion_tokens <= most.completion_tokens
        assert now.cost is not None and most.cost is not None and now.cost <= most.cost


def test_the_bound_is_the_one_worked_by_hand(tmp_path: Path) -> None:
    run = run_of(tmp_path, ("full",), count=1, samples=3)
    ((cell, workflow), bound) = next(iter(bounds(run).items()))
    most = bound.spent
    assert (cell, workflow) == (Cell("lamps"), "full")
    assert (bound.done, most.calls, most.completion_tokens) == (3, 3, 3 * 40)
    assert most.cost == pytest.approx((2 * most.prompt_tokens + 3 * 120) / 1e6)


def test_only_what_is_missing_is_counted(tmp_path: Path) -> None:
    run = run_of(tmp_path, ("gated", "full"))
    whole = bounds(run)
    assert bounds(replace(run, resume=True)) == whole, "a run that has not begun"
    asyncio.run(evaluate(run, engine()))
    rows = run.folder / "rows.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:4]))
    remaining = bounds(replace(run, resume=True))
    assert sum(bound.done for bound in remaining.values()) == 2
    assert rows.read_bytes() == b"".join(lines[:4])
    other = replace(run, resume=True, settings=Settings(read=READ.replace(temperature=1.0)))
    with pytest.raises(SettingsError, match=r"settings\.temperature was 0\.0"):
        bounds(other)


def test_what_fails_before_its_first_call_costs_nothing(tmp_path: Path) -> None:
    forecast = bounds(run_of(tmp_path, ("full", "gated"), words=900), window=700)
    assert forecast[Cell("lamps"), "full"] == RunProgress(done=3, failed=3)
    assert forecast[Cell("lamps"), "gated"].failed == 0
