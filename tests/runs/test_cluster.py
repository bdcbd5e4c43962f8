"""What is spread over a Ray cluster of two nodes on this machine comes to what it does without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.measured import find_code, without_times, write_examples
from memagent import SettingsError
from memagent.evaluation.plan import EvaluationPlan
from memagent.evaluation.rows import EvaluationRow, read_rows
from memagent.evaluation.run import Evaluation, evaluate
from memagent.runs.each import Survey, read_each
from memagent.runs.files import FileRow
from memagent.settings import EngineSettings, ReadSettings, Settings
from server import Server

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra ray")

Serve = Callable[..., Server]
READ = ReadSettings(chunk_tokens=150, memory_tokens=60, answer_tokens=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def run(folder: Path, server: Server, plan: EvaluationPlan, **options: Any) -> None:
    settings = Settings(EngineSettings(base_url=server.base_url, retries=0, concurrency=4), READ)
    asyncio.run(evaluate(Evaluation(plan=plan, settings=settings, folder=folder, **options)))


def test_the_rows_are_those_of_one_machine(cluster: Any, serve: Serve, tmp_path: Path) -> None:
    examples = str(write_examples(tmp_path / "lamps.jsonl", 8))
    plan = EvaluationPlan(
        workflows=("gated", "full"),
        tasks=("niah_single_1",),
        lengths=(1024,),
        count=3,
        samples=2,
        examples=examples,
    )
    run(tmp_path / "here", serve(find_code), replace(plan, count=3))
    server = serve(find_code, latency_seconds=0.5)
    reported_rows: list[EvaluationRow] = []
    run(tmp_path / "there", server, plan, ray=cluster.address, on_row=reported_rows.append)
    assert without_times(tmp_path / "there") == without_times(tmp_path / "here")
    assert len(reported_rows) == (3 + 3) * 2 * 2
    assert 4 < server.most_in_flight <= 2 * 4, "both nodes read, and each keeps to its bound"

    file = tmp_path / "there" / "rows.jsonl"
    file.write_bytes(file.read_bytes()[:-300])
    run(tmp_path / "there", serve(find_code), plan, ray=cluster.address, resume=True)
    assert without_times(tmp_path / "there") == without_times(tmp_path / "here")


def test_files_are_asked_on_all_nodes(
    cluster: Any, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    for number in range(12):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"FACT-{number}: lamp{number}", "utf-8")
    (tmp_path / "docs" / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(100))
    (tmp_path / "docs" / "blank.txt").write_text(" ", "utf-8")
    monkeypatch.chdir(tmp_path)
    server = serve(latency_seconds=0.5)
    settings = Settings(EngineSettings(base_url=server.base_url, retries=0, concurrency=3), READ)
    base_survey = Survey(
        problems=("Which facts?",), paths=("docs",), settings=settings, out=Path("table.jsonl")
    )

    async def rows(survey: Survey) -> list[FileRow]:
        return sorted([row async for row in read_each(survey)], key=lambda row: row.file)

    there = asyncio.run(rows(replace(base_survey, ray=cluster.address)))
    assert 3 < server.most_in_flight <= 2 * 3, "both nodes read, and each keeps to its bound"
    here = asyncio.run(rows(replace(base_survey, out=None)))
    assert [(row.file, row.status, row.answer, row.error) for row in there] == [
        (row.file, row.status, row.answer, row.error) for row in here
    ]
    assert {row.status for row in here} == {"answered", "no text", "failed"}
    calls = len(server.paid)
    again = asyncio.run(rows(replace(base_survey, ray=cluster.address)))
    assert sum(row.kept for row in again) == 12 and len(server.paid) == calls
    with pytest.raises(SettingsError, match="leave out `ray`"):
        asyncio.run(rows(replace(base_survey, ray=cluster.address, max_tokens=9)))


def test_impossible_tasks_are_reported_as_on_one_machine(cluster: Any, serve: Serve, tmp_path: Path) -> None:
    plan = EvaluationPlan(workflows=("full",), tasks=("niah_single_1",), lengths=(20,), count=2)
    with pytest.raises(SettingsError, match="too few") as raised:
        run(tmp_path / "out", serve(find_code), plan, ray=cluster.address)
    assert "Traceback" not in str(raised.value)
    assert list(read_rows(tmp_path / "out")) == []


def test_a_cluster_that_is_not_there_is_named(cluster: Any, serve: Serve, tmp_path: Path) -> None:
    import ray

    ray.shutdown()
    examples = str(write_examples(tmp_path / "lamps.jsonl", 1))
    with pytest.raises(SettingsError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        run(
            tmp_path / "out",
            serve(find_code),
            EvaluationPlan(workflows=("full",), examples=examples),
            ray="127.0.0.1:1",
        )
