"""What the package adds through its entry points is read with, resumed, evaluated, rolled out and served.

Its settings can be set wherever ours can: by flag, in a file, in the environment and by a client's request.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from evaluation import test_run
from evaluation.measured import find_code, write_examples
from evaluation.test_run import changed
from memagent import Read, SettingsError, load_settings, text_document
from memagent.evaluation.plan import EvaluationPlan
from memagent.reading.workflows import workflows
from reading import test_lookahead, test_resuming
from reading import test_workflows as every
from served.conftest import serving  # noqa: F401 - a fixture
from served.reads import events, start
from server import Server
from training import test_rollout as rollouts

NAMES = sorted(
    entry.name for entry in entry_points(group="memagent.workflows") if "memagent_workflows" in entry.value
)
EACH = pytest.mark.parametrize("workflow", NAMES)


def test_all_that_the_package_declares_is_installed() -> None:
    assert NAMES == ["heads", "refine", "reread", "tree"] and set(NAMES) <= set(workflows())


@EACH
@pytest.mark.parametrize(
    "test",
    [
        every.test_each_finds_what_stands_in_the_document,
        every.test_each_asks_for_no_more_than_its_budgets,
        every.test_no_document_can_open_or_close_a_section,
        every.test_no_more_calls_are_made_than_are_allowed,
        every.test_the_answer_can_be_left_out_where_all_is_in_the_memory,
    ],
)
def test_it_reads_as_ours_do(test: Callable[[str], None], workflow: str) -> None:
    test(workflow)


@EACH
def test_it_resumes_from_a_journal_that_was_torn(workflow: str, tmp_path: Path) -> None:
    async def finished(trace: Path, engine: Any) -> tuple[str, list[tuple[int | None, str]]]:
        settings = test_resuming.SETTINGS.replace(workflow=workflow)
        document = text_document(test_resuming.DOCUMENT, is_example=True)
        read = Read("What is told?", document, engine, settings, trace=trace, resume=True)
        memories = [
            (conversation.chunk_index, conversation.memory)
            async for conversation in read
            if not conversation.unused
        ]
        return read.answer, memories

    whole, again = test_resuming.Noter(), test_resuming.Noter(seed=7)
    expected = asyncio.run(finished(tmp_path / "whole.jsonl", whole))
    torn = tmp_path / "torn.jsonl"
    content = (tmp_path / "whole.jsonl").read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    on_record = test_resuming.replies(torn)
    assert asyncio.run(finished(torn, again)) == expected
    assert again.paid.total() == whole.paid.total() - on_record < whole.paid.total()


@pytest.mark.parametrize("workflow", ["heads", "reread"])
@pytest.mark.parametrize("pattern", ["..x....x..", "x.x.", "........"])
def test_it_reads_ahead_to_the_same_end(workflow: str, pattern: str) -> None:
    ahead = test_lookahead.test_ahead_or_in_turn_a_read_comes_to_the_same
    ahead.hypothesis.inner_test(workflow, pattern, 4, 0)


@EACH
def test_it_is_evaluated(workflow: str, serve: Callable[..., Server], tmp_path: Path) -> None:
    examples = str(write_examples(tmp_path / "lamps.jsonl", 3))
    settings = changed(test_run.SETTINGS, memory_tokens=200)
    plan = EvaluationPlan(workflows=(workflow,), examples=examples)
    rows = test_run.run(tmp_path / "out", serve(find_code), plan, settings)
    assert [(row.workflow, row.score, row.error) for row in rows] == [(workflow, 1.0, None)] * 3


def test_shards_that_follow_the_concurrency_are_not_mixed(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    examples = str(write_examples(tmp_path / "lamps.jsonl", 2))
    run, SETTINGS = test_run.run, test_run.SETTINGS  # noqa: N806
    plan = EvaluationPlan(workflows=("tree", "gated"), examples=examples, count=2)
    run(tmp_path / "out", serve(find_code), plan)
    fewer = changed(SETTINGS, concurrency=3)
    with pytest.raises(SettingsError, match=r"workflows\.tree\.shards was 8, now it is 3"):
        run(tmp_path / "out", serve(find_code), plan, fewer, resume=True)
    run(tmp_path / "given", serve(find_code), plan, changed(SETTINGS, shards=2))
    assert len(run(tmp_path / "given", serve(find_code), plan, changed(fewer, shards=2), resume=True)) == 4


@EACH
def test_attempts_for_training_are_the_conversations_of_a_read(workflow: str) -> None:
    settings = rollouts.SETTINGS.replace(workflow=workflow)
    (group, *_) = rollouts.groups(rollouts.sampler(), settings=settings)
    expected = rollouts.untimed(rollouts.read(group.example, rollouts.sampler(), settings))
    for attempt in group.trajectories:
        assert rollouts.untimed(attempt.conversations) == expected
        answer = "Ada came." if workflow == "refine" else "Ada"  # whose last memory is the answer
        assert (attempt.answer, attempt.reward, attempt.error) == (answer, answer == "Ada", None)


@pytest.mark.parametrize(("name", "value"), [("heads", 2), ("shards", 3), ("rounds", 5)])
def test_its_settings_come_from_a_file_the_environment_and_flags(
    name: str, value: int, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{name} = {value}\n", "utf-8")
    for settings in (
        load_settings(file=file, environment={}),
        load_settings(environment={f"MEMAGENT_{name.upper()}": str(value)}),
        load_settings({name: value}, environment={}),
    ):
        assert settings.read.options[name] == value
    help_text = subprocess.run(
        [sys.executable, "-m", "memagent", "ask", "--help-all"], capture_output=True, text=True, check=True
    ).stdout
    assert f"--{name} N" in help_text
    with pytest.raises(SettingsError, match=f"{name} is -1: it must be"):
        load_settings({name: -1}, environment={})


def test_a_request_sets_them_and_the_read_is_served(serving: Callable[..., Any]) -> None:  # noqa: F811
    with serving().client() as client:
        for workflow, options in (
            ("heads", {"heads": 2}),
            ("tree", {"shards": 2}),
            ("reread", {"rounds": 1}),
        ):
            read = start(client, workflow=workflow, **options)
            seen = events(client, read)
            assert seen[-1][1] == {"state": "done"}
            header = client.get(f"/v1/reads/{read}/journal").text.partition("\n")[0]
            assert json.loads(header)["given"].items() >= options.items()
            assert json.loads(header).items() >= {"workflow": workflow, **options}.items()
        parts = {"memory": "word " * 600, "workflow": "heads", "heads": 2}
        assert events(client, start(client, **parts))[-1][1] == {"state": "done"}
        refused = client.post("/v1/reads", json={"problem": "Who?", "document": "Ada.", "heads": 0})
        assert refused.status_code == 400 and "heads" in refused.text
