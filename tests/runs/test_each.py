"""A question to each of many files: only what is new or changed is read, and no file is ever missing."""

from __future__ import annotations

import asyncio
import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from function_engine import FunctionEngine
from memagent import (
    EngineError,
    EngineSettings,
    Message,
    ReadSettings,
    ScriptedEngine,
    Settings,
    SettingsError,
)
from memagent.engines.endpoint import UnreachableError
from memagent.engines.wrappers import Spending, SpendingLimit
from memagent.errors import DocumentError, SpendingLimitError
from memagent.runs.each import Survey, read_each
from memagent.runs.files import FileRow
from memagent.storage import Log
from memagent.types import Completion, Sampling, Spent, Usage
from server import Fault, Server, lasting_fault, read_facts

READ = Settings(read=ReadSettings(workflow="gated", chunk_tokens=50, memory_tokens=40, answer_tokens=40))
LONG_AGO = 1_000_000_000
"""A record that an earlier memagent wrote."""


def reader(calls: int = 4, reply: Callable[[str], str] | None = None) -> ScriptedEngine:
    """Keeps the facts that it reads."""

    def facts(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        return reply(prompt) if reply else read_facts([{"role": "user", "content": prompt}])

    return ScriptedEngine(facts, calls=calls)


def saying(text: str) -> Callable[[str], str]:
    """What keeps a text, and answers with it."""
    return lambda prompt: f"MEMORY\n{text}" if "MEMORY" in prompt else text


def put(path: Path, text: str, age: int = 0) -> None:
    """A file whose times are long past, so that they can be trusted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    os.utime(path, (LONG_AGO - age, LONG_AGO - age))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten files of a fact each. Times that the tests set count as they are: no clock is waited for."""
    monkeypatch.setattr("memagent.documents.files._COARSE_NS", 0)
    for number in range(10):
        put(tmp_path / "docs" / f"{number}.txt", f"Of {number}: FACT-{number}: lamp{number}.")
    return tmp_path / "docs"


def make_survey(folder: Path, **options: Any) -> Survey:
    defaults: dict[str, Any] = {"problems": ("Which facts?",), "settings": READ}
    return Survey(paths=(str(folder),), **{**defaults, "out": folder.parent / "table.jsonl", **options})


def run(survey: Survey, engine: Any) -> dict[str, FileRow]:
    """The rows by the names of the files, which are those of the table too."""

    async def collect() -> list[FileRow]:
        return [row async for row in read_each(survey, engine)]

    rows = asyncio.run(collect())
    if survey.out and survey.out.suffix == ".jsonl" and not survey.dry_run:
        table_rows = {(row["file"], row["problem"]): row for row in table(survey.out)}
        assert {(row.file, row.problem): row.answer for row in rows} == {
            key: row["answer"] for key, row in table_rows.items()
        }
    return {Path(row.file).name: row for row in rows}


def table(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def names(rows: Sequence[FileRow] | dict[str, FileRow], **wanted: Any) -> list[str]:
    values = rows.values() if isinstance(rows, dict) else rows
    return sorted(
        Path(row.file).name
        for row in values
        if all(getattr(row, name) == expected for name, expected in wanted.items())
    )


def test_every_file_has_a_row_with_its_own_answer(folder: Path) -> None:
    put(folder / "blank.txt", " \n\n")
    put(folder / "deep" / "er.txt", "FACT-99: deep")
    (folder / "empty.txt").touch()
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0\0\0" * 100)
    (folder / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(100))
    (folder / "away").symlink_to("/etc/hostname")
    rows = run(make_survey(folder), reader())
    assert len(rows) == 16
    assert names(rows, status="no text") == ["blank.txt", "empty.txt", "picture.png"]
    assert names(rows, status="failed") == ["old.doc"] and names(rows, status="left out") == ["away"]
    assert all(name in (rows[name].error or "") for name in ("blank.txt", "empty.txt", "old.doc", "away"))
    assert all(f"FACT-{number}: lamp{number};" in rows[f"{number}.txt"].answer for number in range(10))
    assert "FACT-99: deep" in rows["er.txt"].answer
    assert [row["file"] for row in table(folder.parent / "table.jsonl")] == sorted(
        (str(path) for path in folder.rglob("*") if path.is_file()), key=lambda file: ("deep" in file, file)
    )


@pytest.mark.parametrize("named", [True, False])
def test_files_stand_in_the_natural_order_of_their_names(folder: Path, named: bool) -> None:
    put(folder / "10.txt", "FACT-10: lamp10.")
    paths = sorted(map(str, folder.iterdir())) if named else [str(folder)]  # as a shell lists them, or a walk
    survey = replace(make_survey(folder), paths=tuple(paths))
    run(survey, reader())
    file_names = [Path(row["file"]).name for row in table(folder.parent / "table.jsonl")]
    assert file_names == [f"{number}.txt" for number in range(11)]


def test_files_whose_names_look_alike_have_their_own_answers(folder: Path) -> None:
    for number, name in enumerate(("a\u200bb", "a\\u200bb", "a\\\u200bb", "a\\\\u200bb"), 20):
        put(folder / f"{name}.txt", f"FACT-{number}: lamp{number}.")
    survey = make_survey(folder)
    for _ in range(2):
        rows = run(survey, reader())
        assert len(rows) == 14 and len({row.answer for row in rows.values()}) == 14


def test_only_what_is_new_or_changed_is_read(folder: Path) -> None:
    run(make_survey(folder), reader())
    put(folder / "3.txt", "FACT-3: mended", age=1)
    put(folder / "new.txt", "FACT-11: new")
    put(folder / "4.txt", "Of 4: FACT-4: lamp4.", age=1)  # touched, and as it was
    put(folder / "7.txt", "Of 7: FACT-7: bell7.", age=1)  # as long as it was
    (folder / "5.txt").unlink()
    (folder / "6.txt").rename(folder / "moved.txt")
    engine = reader()
    rows = run(make_survey(folder), engine)
    assert names(rows, kept=False) == ["3.txt", "7.txt", "new.txt"]
    assert (
        len(engine.prompts) == 3 * 2 and "mended" in rows["3.txt"].answer and "bell7" in rows["7.txt"].answer
    )
    assert "lamp6" in rows["moved.txt"].answer and "5.txt" not in rows and "6.txt" not in rows
    again = reader()
    assert names(run(make_survey(folder), again), kept=False) == [] and again.prompts == []


def test_a_change_that_size_and_time_hide_is_found_by_verify(folder: Path) -> None:
    run(make_survey(folder), reader())
    before = (folder / "3.txt").stat()
    with (folder / "3.txt").open("r+b") as file:
        file.write(b"To")
    os.utime(folder / "3.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    record = folder.parent / ".table.jsonl.memagent" / "record.jsonl"
    hidden = replace_ctime(record, (folder / "3.txt").stat().st_ctime_ns, before.st_ctime_ns)
    if not hidden:
        pytest.skip("the clock of this file system is too coarse")
    assert names(run(make_survey(folder), reader()), kept=False) == [], "nothing tells of it"
    assert names(run(make_survey(folder, verify=True), reader()), kept=False) == ["3.txt"]


def replace_ctime(record: Path, now: int, before: int) -> bool:
    """Have a record know a file's time of change as it is now: nothing but the content tells then."""
    from memagent.storage import Log, read_log

    lines = list(read_log(record))
    record.unlink()
    with Log(record) as log:
        for line in lines:
            if (stamp := line.get("seen")) and stamp["ctime_ns"] == before:
                stamp["ctime_ns"] = now
            log.append({name: value for name, value in line.items() if name != "crc32"})
    return now != before


def test_a_file_that_was_just_written_is_compared_by_what_it_holds(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "a.txt", "FACT-1: one")
    run(make_survey(tmp_path / "docs"), reader())
    lines = table(tmp_path / ".table.jsonl.memagent" / "record.jsonl")
    assert [line["seen"]["mtime_ns"] for line in lines if "seen" in line] == [0]
    engine = reader()
    assert run(make_survey(tmp_path / "docs"), engine)["a.txt"].kept and engine.prompts == []


def test_other_questions_and_settings_are_answered_anew_and_the_old_ones_kept(folder: Path) -> None:
    run(make_survey(folder), reader())
    for changed in (
        make_survey(folder, problems=("What else?",)),
        make_survey(folder, settings=replace(READ, read=READ.read.replace(workflow="overwrite"))),
        make_survey(folder, settings=replace(READ, read=READ.read.replace(cite=True))),
    ):
        assert len(names(run(changed, reader()), kept=False)) == 10
    engine = reader()
    assert names(run(make_survey(folder), engine), kept=False) == [] and engine.prompts == []
    priced = replace(READ, read=READ.read.replace(prompt_price=2.0))
    rows = run(make_survey(folder, settings=priced), engine)
    assert engine.prompts == [], "a price changes no answer"
    assert all(row.spent.cost == pytest.approx(2e-6 * row.spent.prompt_tokens) for row in rows.values())


def test_several_questions_have_a_row_each(folder: Path) -> None:
    survey = make_survey(folder, problems=("Which facts?", "Which lamps?"), out=folder.parent / "table.csv")

    async def rows() -> list[FileRow]:
        return [row async for row in read_each(survey, reader())]

    assert len(asyncio.run(rows())) == 20
    with (folder.parent / "table.csv").open(encoding="utf-8-sig", newline="") as file:
        table_rows = list(csv.DictReader(file))
    assert [row["problem"] for row in table_rows] == ["Which facts?", "Which lamps?"] * 10
    assert all(row["answer"].startswith(f"FACT-{number // 2}") for number, row in enumerate(table_rows))


def test_a_source_stands_in_its_file_also_after_that_was_moved(folder: Path) -> None:
    cited = replace(READ, read=READ.read.replace(cite=True))
    survey = make_survey(folder, settings=cited)
    run(
        survey,
        reader(reply=lambda prompt: saying("FACT-3: lamp3" if "lamp3" in prompt else "No bell")(prompt)),
    )
    (folder / "3.txt").rename(folder / "moved.txt")
    rows = run(survey, reader(reply=lambda prompt: "never asked"))
    (statement,) = rows["moved.txt"].statements
    source = statement.source
    assert source and source.file == str(folder / "moved.txt")
    assert Path(source.file).read_text("utf-8")[source.start : source.end] == source.excerpt
    assert all(other.source is None for other in rows["4.txt"].statements), (
        "a statement without a source says so"
    )


def test_a_failed_file_is_a_row_and_is_tried_again(folder: Path) -> None:
    def fail(prompt: str) -> None:
        if "lamp7" in prompt:
            raise EngineError("no word on http://user:secret@host/7?key=1")

    engine = FunctionEngine(fail, ScriptedEngine(lambda messages: "MEMORY\na lamp", calls=4))
    rows = run(make_survey(folder), engine)
    assert names(rows, status="failed") == ["7.txt"] and rows["7.txt"].cause == "EngineError"
    assert "secret" not in (rows["7.txt"].error or "") and rows["7.txt"].answer == ""
    engine = reader()
    assert names(run(make_survey(folder), engine), kept=False) == ["7.txt"]
    assert len(engine.prompts) == 2


def test_an_endpoint_that_is_gone_ends_the_run(folder: Path) -> None:
    def fail(_: str) -> None:
        if len(engine.prompts) > 4:
            raise UnreachableError("nothing listens at http://127.0.0.1:1")

    engine = FunctionEngine(fail, ScriptedEngine(lambda messages: "MEMORY\na lamp"))
    rows = run(make_survey(folder), engine)
    assert names(rows, status="answered") == ["0.txt", "1.txt"] and names(rows, status="failed") == ["2.txt"]
    assert len(names(rows, status="not read")) == 7 and "nothing listens" in (rows["9.txt"].error or "")
    assert names(run(make_survey(folder), reader()), kept=True) == ["0.txt", "1.txt"]


class Priced(ScriptedEngine):
    """Tells what it has used, and whether more than one call was in flight."""

    used = 0

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        completion = await super().complete(messages, sampling)
        self.used += completion.usage.prompt_tokens + completion.usage.completion_tokens
        return completion


def facts(messages: tuple[Message, ...]) -> str:
    return read_facts([{"role": "user", "content": messages[-1].content}])


@pytest.mark.parametrize("calls", [1, 8])
def test_a_limit_of_tokens_ends_the_run_before_it_is_passed(folder: Path, calls: int) -> None:
    whole = Priced(facts)
    run(make_survey(folder, out=None), whole)
    answered: list[str] = []
    used, prompts, limit = 0, 0, whole.used // 3
    for _ in range(9):
        engine = Priced(facts, calls=calls)
        rows = run(make_survey(folder, max_tokens=limit), engine)
        assert 0 < engine.used <= limit
        assert set(answered) <= set(names(rows, status="answered"))
        answered = names(rows, status="answered")
        used, prompts = used + engine.used, prompts + len(engine.prompts)
        if used == engine.used:  # the first run: what was paid for reads that it cut off is told too
            assert sum(row.spent.prompt_tokens + row.spent.completion_tokens for row in rows.values()) == used
        if len(answered) == 10:
            break
        assert "`max_tokens`" in (rows[names(rows, status="not read")[0]].error or "")
    assert len(answered) == 10 and used == whole.used and prompts == len(whole.prompts), "none paid twice"


def test_a_limit_of_tokens_counts_what_a_chat_template_adds() -> None:
    used: list[int] = []

    def reply(_: str) -> Completion:
        used.append(32 + engine.samplings[-1].max_tokens)
        return Completion("yes", usage=Usage(32, engine.samplings[-1].max_tokens))

    engine = FunctionEngine(reply, chat_tokens=64)

    async def calls() -> None:
        limited = SpendingLimit(engine, Spending(ReadSettings(), max_tokens=100))
        while True:
            await limited.complete((Message("user", "one two"),), Sampling(8))

    with pytest.raises(SpendingLimitError):
        asyncio.run(calls())
    assert 0 < sum(used) <= 100


def test_a_limit_of_money_needs_prices_and_holds(folder: Path) -> None:
    with pytest.raises(SettingsError, match="`prompt_price`"):
        run(make_survey(folder, max_cost=1.0), reader())
    priced = replace(READ, read=READ.read.replace(prompt_price=10.0, completion_price=20.0))
    rows = run(make_survey(folder, settings=priced, max_cost=0.01), reader())
    assert 0 < sum(row.spent.cost or 0.0 for row in rows.values() if row.status == "answered") <= 0.01
    assert names(rows, status="not read")


@pytest.mark.parametrize("usage", [Usage(), Usage(1, 1, estimated=True)])
def test_what_an_endpoint_does_not_count_is_taken_at_its_most(usage: Usage) -> None:
    silent = FunctionEngine(lambda _: Completion("yes", usage=usage), chat_tokens=0)

    async def calls() -> int:
        engine = SpendingLimit(silent, Spending(ReadSettings(), max_tokens=100))
        for number in range(100):
            try:
                await engine.complete((Message("user", "one two"),), Sampling(8))
            except SpendingLimitError:
                return number
        return 100

    assert asyncio.run(calls()) == 10


@pytest.mark.parametrize("counts", [True, False])
def test_replies_that_are_paid_for_but_of_no_use_count_as_well(
    counts: bool, folder: Path, serve: Callable[..., Server]
) -> None:
    used: list[int] = []

    def thinks(completion: dict[str, Any]) -> None:
        (choice,) = completion["choices"]
        choice["message"]["content"], choice["finish_reason"] = "<think>" + "hm " * 40, "length"
        used.append(completion["usage"]["prompt_tokens"] + 40)
        completion["usage"]["completion_tokens"] = 40
        if not counts:
            del completion["usage"]

    server = serve(faults=lasting_fault(Fault(spoil=thinks)))
    engine = EngineSettings(base_url=server.base_url, model="test-model", retries=1, concurrency=4)
    rows = run(make_survey(folder, settings=replace(READ, engine=engine), max_tokens=2500), None)
    assert 0 < sum(used) <= 2500
    assert names(rows, status="failed") and names(rows, status="not read")
    assert "`max_tokens`" in (rows[names(rows, status="not read")[0]].error or "")


def test_a_forecast_is_not_exceeded_and_costs_nothing(folder: Path) -> None:
    put(folder / "blank.txt", " ")
    (folder / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(100))
    priced = replace(READ, read=READ.read.replace(prompt_price=1.0, completion_price=2.0))
    survey, engine = make_survey(folder, settings=priced), reader()
    forecast = run(replace(survey, dry_run=True, max_tokens=10), engine)
    most = sum((row.spent for row in forecast.values()), Spent())
    assert engine.prompts == [] and sorted(os.listdir(folder.parent)) == ["docs"]
    assert Counter(row.status for row in forecast.values()) == {"to read": 10, "no text": 1, "failed": 1}
    assert "old.doc" in (forecast["old.doc"].error or "")
    now = sum((row.spent for row in run(survey, reader()).values()), Spent())
    assert most.calls == now.calls and (most.cost or 0.0) >= (now.cost or 0.0)
    assert most.prompt_tokens >= now.prompt_tokens and most.completion_tokens >= now.completion_tokens
    put(folder / "3.txt", "FACT-3: mended", age=1)
    record = folder.parent / ".table.jsonl.memagent" / "record.jsonl"
    before = record.read_bytes()
    with Log(record):
        later = run(replace(survey, dry_run=True), engine)
    assert names(later, status="to read") == ["3.txt"] and later["3.txt"].spent.calls == 2
    assert len(names(later, kept=True)) == 9 and engine.prompts == [] and record.read_bytes() == before


def test_a_run_that_is_given_up_leaves_a_table_of_what_is_done(folder: Path) -> None:
    run(make_survey(folder), reader())
    for number in range(3):
        put(folder / f"new{number}.txt", f"FACT-{number}: new")

    async def some(enough: Callable[[FileRow], bool]) -> None:
        rows = read_each(make_survey(folder), reader(calls=1))
        async for row in rows:
            if enough(row):
                break
        await rows.aclose()

    for enough, not_read in ((lambda row: row.kept, 3), (lambda row: not row.kept, 2)):
        asyncio.run(some(enough))
        statuses = {Path(row["file"]).name: row["status"] for row in table(folder.parent / "table.jsonl")}
        assert len(statuses) == 13 and list(statuses.values()).count("not read") == not_read
        assert [statuses[f"{number}.txt"] for number in range(10)] == ["answered"] * 10


def test_an_impossible_run_is_refused_before_anything_is_touched(folder: Path) -> None:
    mine = folder.parent / "mine.csv"
    mine.write_text("my own table", "utf-8")
    for options, words in (
        ({"out": mine}, "is not a memagent table"),
        ({"out": folder.parent / "table.txt"}, r"\.csv or \.jsonl"),
        ({"problems": ()}, "which question"),
        ({"problems": ("Who?", "Who?")}, "each only once"),
        ({"problems": (" ",)}, "the problem is empty"),
        ({"problems": ("what? " * 2000,)}, "`problem_tokens`"),
        ({"max_tokens": 0}, "`max_tokens` is 0"),
        ({"settings": replace(READ, read=READ.read.replace(workflow="magic"))}, "no workflow 'magic'"),
    ):
        with pytest.raises(SettingsError, match=words):
            run(make_survey(folder, **options), reader())
    with pytest.raises(DocumentError, match="gone cannot be read"):
        run(make_survey(folder / "gone"), reader())
    assert mine.read_text("utf-8") == "my own table" and len(os.listdir(folder.parent)) == 2


def test_an_empty_folder_leaves_the_table_unchanged(folder: Path) -> None:
    run(make_survey(folder), reader())
    before = (folder.parent / "table.jsonl").read_bytes()
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(DocumentError, match="no file in"):
        run(make_survey(folder), reader())
    assert (folder.parent / "table.jsonl").read_bytes() == before


def test_the_table_and_its_record_are_not_among_the_files(folder: Path) -> None:
    survey = make_survey(folder, out=folder / "table.csv", journals=folder / "journals")
    for _ in range(2):
        rows = run(survey, reader())
        assert len(rows) == 10 and all(Path(row.trace or "").is_file() for row in rows.values())
    assert len(os.listdir(folder / "journals")) == 10


def test_a_spreadsheet_finds_no_formula_in_a_table(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "a.txt", "FACT-1: one")
    for answer, cell in {
        "=HYPERLINK(1)": "'=HYPERLINK(1)", "+1": "'+1", "@SUM(1)": "'@SUM(1)", "-2+3": "'-2+3",
        "- a dash": "'- a dash", "-2.5": "-2.5", "a = b": "a = b", "two\nlines, \"so\"": "two\nlines, \"so\"",
    }.items():  # fmt: skip
        out = tmp_path / f"{abs(hash(answer))}.csv"
        run(make_survey(tmp_path / "docs", out=out), reader(reply=saying(answer)))
        with out.open(encoding="utf-8-sig", newline="") as file:
            (row,) = csv.DictReader(file)
        assert row["answer"] == cell
