"""The model of `benchmarks/compare.py` understands the prompts of every workflow: none is wronged by it."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from memagent import Read, open_document
from memagent.engines.scripted import ScriptedEngine
from memagent.reading.workflows import WORKFLOWS
from memagent.settings import ReadSettings


def load_finder() -> ModuleType:
    """The benchmark's module, which is in no package."""
    path = Path(__file__).parent.parent / "benchmarks" / "finder.py"
    spec = importlib.util.spec_from_file_location("finder", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FINDER = load_finder()


async def read_through(reading: Read) -> None:
    async for _ in reading:
        pass


@pytest.mark.parametrize("workflow", WORKFLOWS)
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
