"""`benchmarks/compare.py`: its model understands every workflow, its record goes on, its goals are fair."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import BENCHMARKS, load_benchmark
from facts import READING
from memagent import Read, open_document
from memagent.concurrency import drain
from memagent.engines.scripted import ScriptedEngine
from memagent.settings import ReadSettings

pytestmark = pytest.mark.slow

FINDER = load_benchmark("finder")


@pytest.fixture
def compare() -> Any:
    """The script, whose neighbours it imports by their names."""
    return load_benchmark("compare")


def result(compare: Any, name: str, ours: bool, seconds: float) -> Any:
    """What one reader came to in two reads."""
    values = {"chunks": 3, "silent": 1, "errors": [], "calls": 4, "failed_calls": 0, "critical_path": 4}
    values |= {"computed_tokens": 9, "cached_tokens": 0, "completion_tokens": 5, "late_seconds": 0.0}
    reader_result = compare.Result(name, ours, {"openai": "3"})
    reader_result.clean = [
        compare.outcomes.Outcome(kind=kind, score=1.0, seconds=seconds, busy_seconds=seconds, **values)
        for kind in ("one", "other")
    ]
    reader_result.killed = reader_result.clean[0]
    return reader_result


async def read_through(reading: Read) -> None:
    await drain(aiter(reading))


@pytest.mark.parametrize("workflow", READING)
def test_every_workflow_finds_all_values_and_no_others(workflow: str, tmp_path: Path) -> None:
    values = [str(10_000 + number) for number in range(6)]
    paragraphs = []
    for value in values:
        paragraphs += ["On that day nothing else was written. " * 8]
        paragraphs += [FINDER.statement("number", "Marinor", value)]
        paragraphs += [FINDER.statement("number", "Tarugard", f"9{value}")]
    document = tmp_path / "ledger.txt"
    document.write_text("\n\n".join(paragraphs), "utf-8")
    problem = FINDER.problem("number", whose="Marinor")
    engine = ScriptedEngine(lambda messages: FINDER.reply_to(messages[-1].content), calls=2)
    settings = ReadSettings(workflow=workflow, chunk_tokens=150, passage_tokens=64)

    reading = Read(problem, open_document(document), engine, settings)
    asyncio.run(read_through(reading))

    assert [value for value in values if value in reading.answer] == values
    assert "Tarugard" not in reading.answer


def test_a_link_that_is_not_in_the_prompt_is_not_known() -> None:
    problem = FINDER.problem("code", "keeper", whose="Marinor")
    code = FINDER.statement("code", "Tarugard", "12345")
    keeper = FINDER.statement("keeper", "Marinor", "Tarugard")

    assert FINDER.reply_to(f"{problem}\n{code}") == FINDER.NOTHING
    assert FINDER.reply_to(f"{problem}\n{keeper}") == keeper
    assert FINDER.reply_to(f"{code}\n{problem}\n{keeper}") == f"{code}\n{keeper}"


def test_the_question_for_a_gap_is_for_the_first_missing_link() -> None:
    problem = FINDER.problem("code", "keeper", whose="Marinor")
    keeper = FINDER.statement("keeper", "Marinor", "Tarugard")
    code = FINDER.statement("code", "Tarugard", "12345")

    assert FINDER.first_gap(problem) == FINDER.problem("keeper", whose="Marinor")
    assert FINDER.first_gap(f"{problem}\n{keeper}") == FINDER.problem("code", whose="Tarugard")
    assert FINDER.first_gap(f"{problem}\n{keeper}\n{code}") == ""


def test_a_record_is_continued_with_what_it_lacks(tmp_path: Path, compare: Any) -> None:
    path, sizes = tmp_path / "record.json", {"documents": 1, "chunks": 7}
    peer, ours = result(compare, "LangChain refine", False, 9.0), result(compare, "memagent gated", True, 2.0)
    first = compare.Record(path)
    first.keep(sizes, ours)
    again = compare.Record(path)
    again.resume(sizes)
    again.keep(sizes, peer)

    read = compare.Record(path)
    read.resume(sizes)
    assert read.sort_results() == [peer, ours], "in the order of the table"
    assert len(json.loads(path.read_text())["continues"]) == 1
    with pytest.raises(ValueError, match=r"measured with .*7.*, not with .*9"):
        compare.Record(path).resume({"documents": 1, "chunks": 9})


def test_the_shipped_record_lacks_nothing(compare: Any) -> None:
    record = compare.Record(BENCHMARKS / "results" / "compare.json")
    record.resume({"documents": 2, "chunks": 24, "scaling": [32, 64, 128, 256]})
    names = {reader_result.name for reader_result in record.results}
    assert {contestant.name for contestant in compare.contestants_of([])} <= names
    tables = "\n".join(compare.report(record))
    assert all(f"\n| {name} " in tables for name in names)


def test_one_prompt_for_the_whole_text_wins_no_goal(compare: Any) -> None:
    results = [
        result(compare, "LangChain refine", False, 9.0),
        result(compare, "memagent full", True, 1.0),
        result(compare, "memagent gated", True, 2.0),
    ]
    assert [*compare.outcomes.goals(results)] == [("LangChain refine", "memagent gated", "0.22", "yes")]


def test_the_results_draw_a_picture(tmp_path: Path, compare: Any) -> None:
    pytest.importorskip("matplotlib")
    results = [result(compare, "memagent gated", True, 2.0), result(compare, "LlamaIndex refine", False, 9.0)]
    compare.compare_plot.draw([reader_result.told() for reader_result in results], tmp_path / "all.png")
    assert [path.name for path in tmp_path.iterdir()] == ["all.png"], "nothing was measured by length"
