"""What an earlier version has written (`tests/data/earlier`) is still read, and continued where it ended."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import memagent
from memagent import Message, ScriptedEngine
from memagent.cli import main
from memagent.documents.tokens import estimate_tokens
from memagent.evaluation.plan import Plan
from memagent.evaluation.run import Evaluation, evaluate
from memagent.notebooks import Notebook, Notebooks
from memagent.reading.budgets import Budgets

FACTS = ("A hat was lost.", "The goose held a stone.")


class Reader:
    """The model that the fixtures were made with; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.engine = ScriptedEngine(self.reply)

    def reply(self, messages: tuple[Message, ...]) -> str:
        self.calls += 1
        shown = messages[-1].content
        if "<chunk" not in shown:
            return "The goose held a stone. A crown was lost."
        fresh = [it for it in FACTS if it in shown]
        return "MEMORY\n" + " ".join(fresh) if fresh else "UNCHANGED"


def settings(**values: Any) -> memagent.Settings:
    prices = {"prompt_price": 1.0, "completion_price": 2.0}
    return memagent.Settings(
        read=memagent.ReadSettings(**prices, workflow="gated", chunk_tokens=60, **values)
    )


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixtures, as the current folder."""
    folder = tmp_path / "earlier"
    shutil.copytree(Path(__file__).parent / "data/earlier", folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("name", ["gated", "cited", "evidence", "map_reduce", "interrupted"])
def test_journals_are_shown(earlier: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{name}.jsonl", "--chunks"]) == 0
    out, err = capsys.readouterr()
    assert "A hat was lost." in out and "  | The goose held a stone." in out
    assert ("answer: The goose held a stone." in out) is (name != "interrupted")
    assert ("--resume" in err) is (name == "interrupted")
    assert main(["view", f"{name}.jsonl"]) == 0
    assert (earlier / f"{name}.html").stat().st_size > 1000


def test_an_interrupted_journal_is_continued(earlier: Path) -> None:
    document, reader, whole = memagent.open_document("a.txt", "b.txt"), Reader(), Reader()

    async def read(reader: Reader, trace: str) -> memagent.Result:
        made = memagent.Read(
            "What?", document, reader.engine, settings(cite=True).read, trace=Path(trace), resume=True
        )
        async for _ in made:
            pass
        return made.result

    continued = asyncio.run(read(reader, "interrupted.jsonl"))
    recalled = asyncio.run(read(whole, "cited.jsonl"))
    assert (reader.calls, whole.calls) == (4, 0)
    assert (continued.answer, continued.statements) == (recalled.answer, recalled.statements)


def test_budgets_that_were_fitted_to_a_window_stay_as_they_were(earlier: Path) -> None:
    """Earlier marks were shorter, so that the templates left more room for the budgets."""
    reader = Reader()
    reader.engine.model = replace(reader.engine.model, count_tokens=estimate_tokens, window_tokens=600)
    document, read_settings = (
        memagent.open_document("a.txt", "b.txt"),
        memagent.ReadSettings(workflow="gated"),
    )

    async def budgets(**options: Any) -> tuple[Budgets, str]:
        read = memagent.Read("What?", document, reader.engine, read_settings, **options)
        async for _ in read:
            pass
        return read.budgets, read.answer

    of_earlier, answer = asyncio.run(budgets(trace=[Path("gated.jsonl"), Path("fitted.jsonl")], resume=True))
    assert (answer, reader.calls) == ("The goose held a stone. A crown was lost.", 0)
    assert asyncio.run(budgets())[0].chunk_tokens < of_earlier.chunk_tokens


def test_an_evaluation_is_continued(earlier: Path) -> None:
    reader, plan = Reader(), Plan(workflows=("gated", "full"), examples="examples.jsonl")
    run = Evaluation(plan=plan, settings=settings(), folder=Path("evaluation"), resume=True)
    asyncio.run(evaluate(run, reader.engine))
    *old, new = [json.loads(line) for line in Path("evaluation/rows.jsonl").read_text().splitlines()]
    assert (len(old), new["workflow"], reader.calls) == (3, "full", 1)
    assert new.keys() == old[0].keys() | {"haystack"}
    others = dict.fromkeys(("seconds", "index", "example_id", "crc32", "haystack", "prompt_tokens", "cost"))
    assert new | others == old[1] | others


def test_a_table_keeps_its_answers(earlier: Path) -> None:
    reader, before = Reader(), [json.loads(line) for line in Path("table.jsonl").read_text().splitlines()]

    async def rows() -> list[memagent.FileRow]:
        survey = memagent.Survey(
            problems=("What?",),
            paths=("a.txt", "b.txt"),
            settings=settings(cite=True),
            out=Path("table.jsonl"),
        )
        return [row async for row in memagent.read_each(survey, reader.engine)]

    assert [row.kept for row in asyncio.run(rows())] == [True, True]
    assert reader.calls == 0
    after = [json.loads(line) for line in Path("table.jsonl").read_text().splitlines()]
    for it in (it for row in after for it in row["statements"]):
        assert it.pop("nearest") == [], "nor did they look for these"
    for it in (it for row in after for it in row["statements"] if it["source"]):
        assert it["source"].pop("at") is None, "earlier versions do not say"
    assert [{name: row[name] for name in before[0]} for row in after] == [
        {**row, "kept": True} for row in before
    ]


def test_notebooks_are_asked(earlier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader, notebook = Reader(), Notebook("hats", Notebooks(Path("notebooks")))
    first, second = notebook.versions()
    assert (first.number, second.parent, second.portions[0].name) == (1, 1, "b.txt")
    assert [it.source and it.source.excerpt for it in first.statements] == list(FACTS)
    told = asyncio.run(notebook.ask("What?", reader.engine, settings().read))
    assert told.remembered.answer == "The goose held a stone. A crown was lost." and reader.calls == 1
