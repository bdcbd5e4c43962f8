"""A whole evaluation against a real server: every attempt has its row, whatever fails or is cut off."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.measured import find_code, story, without_times, write_examples
from facts import READING
from memagent import EngineError, MemAgentError, Message, ScriptedEngine, SettingsError
from memagent.evaluation.plan import EvaluationPlan
from memagent.evaluation.rows import Cell, EvaluationRow, read_header, read_rows
from memagent.evaluation.run import Evaluation, Needed, depth, evaluate
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer
from memagent.settings import EngineSettings, ReadSettings, Settings, settings_by_name
from memagent.tasks import TASKS, Corpora, Recipe, Task
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import Example
from server import Fault, Server, complete, lasting_fault, refusal

Serve = Callable[..., Server]
SETTINGS = Settings(
    EngineSettings(retries=0, concurrency=8),
    ReadSettings(chunk_tokens=150, memory_tokens=60, answer_tokens=60, passage_tokens=50),
)


def changed(settings: Settings, **values: Any) -> Settings:
    """The settings with other values, whichever part they are of."""
    for name, value in values.items():
        part, _ = settings_by_name()[name]
        settings = replace(settings, **{part: getattr(settings, part).replace(**{name: value})})
    return settings


def run(
    folder: Path, server: Server, plan: EvaluationPlan, settings: Settings = SETTINGS, **options: Any
) -> list[EvaluationRow]:
    settings = changed(settings, base_url=server.base_url)
    asyncio.run(evaluate(Evaluation(plan=plan, settings=settings, folder=folder, **options)))
    return list(read_rows(folder))


@pytest.fixture
def examples(tmp_path: Path) -> str:
    return str(write_examples(tmp_path / "lamps.jsonl", 6))


def test_every_attempt_has_its_row(serve: Serve, tmp_path: Path, examples: str) -> None:
    server = serve(find_code)
    plan = EvaluationPlan(workflows=READING, examples=examples, samples=2)
    rows = run(tmp_path / "out", server, plan, changed(SETTINGS, memory_tokens=200))
    assert len(rows) == len({row.key for row in rows}) == 6 * len(READING) * 2
    assert {row.score for row in rows} == {1.0} and {row.error for row in rows} == {None}
    assert sum(row.spent.calls for row in rows) == len(server.paid)
    in_order = ("overwrite", "gated", "evidence", "full")
    assert all(row.critical_path == row.spent.calls for row in rows if row.workflow in in_order)
    assert all(
        row.spent.prompt_tokens > 50 and row.spent.completion_tokens > 2 and row.seconds > 0 for row in rows
    )
    assert {row.task for row in rows} == {"lamps"} and {row.length for row in rows} == {None}


def test_rows_tell_whether_their_tokens_are_estimates(serve: Serve, tmp_path: Path, examples: str) -> None:
    plan = EvaluationPlan(workflows=("gated",), examples=examples, count=1)
    estimates = {
        reported: run(tmp_path / str(reported), serve(completion=completion), plan)[0].spent.estimated
        for reported, completion in (
            (True, lambda body: complete(body, "no idea")),
            (False, lambda body: complete(body, "no idea") | {"usage": None}),
        )
    }
    assert estimates == {True: False, False: True}


def test_generated_examples_are_the_tasks_own(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda messages: "The sun is yellow.")
    plan = EvaluationPlan(
        workflows=("full",), tasks=("niah_single_1", "hqa"), lengths=(1024,), documents=(5,), count=3, seed=4
    )
    settings = changed(SETTINGS, answer_tokens=None)
    rows = run(tmp_path, server, plan, settings)
    assert Counter((row.task, row.length, row.documents) for row in rows) == {
        ("niah_single_1", 1024, None): 3,
        ("hqa", None, 5): 3,
    }
    expected = {TASKS["hqa"].make(Recipe(documents=5, seed=4), index).id for index in range(3)}
    assert {row.example_id for row in rows if row.task == "hqa"} == expected
    limits = {body["max_tokens"] for body in server.asked}
    assert limits == {TASKS["hqa"].answer_tokens, TASKS["niah_single_1"].answer_tokens}


def test_a_task_with_sizes_of_its_own_needs_none(serve: Serve, tmp_path: Path) -> None:
    rows = {"context": story(50), "question": "What is the code?", "answers": ["marmalade77"]}
    file = tmp_path / "qasper.jsonl"
    file.write_text(f"{json.dumps({**rows, 'dataset': 'qasper'})}\n" * 2)
    plan = EvaluationPlan(
        workflows=("full",), tasks=("longbench_qasper",), count=2, corpora=Corpora((("longbench", tmp_path),))
    )
    (one, two) = run(tmp_path / "out", serve(find_code), plan)
    assert (one.length, one.documents) == (None, None) and {one.index, two.index} == {0, 1}
    assert read_header(tmp_path / "out")["plan"]["corpora"]["longbench"]["origin"] == "given"
    examples = tmp_path / "examples.jsonl"
    row = {"id": "1", "task": "longbench_qasper", "problem": "Which?", "document": "Red.", "answers": ["red"]}
    examples.write_text(json.dumps(row) + "\n")
    with pytest.raises(SettingsError, match="has examples of longbench_qasper, which is a task of this run"):
        replace(plan, examples=str(examples)).totals()


def test_failures_are_rows_with_their_cause(serve: Serve, tmp_path: Path, examples: str) -> None:
    server = serve(find_code)
    server.faults = lambda digest, attempt: refusal(500, "broken pipe") if int(digest, 16) % 3 == 0 else None
    rows = run(tmp_path / "out", server, EvaluationPlan(workflows=("full", "gated"), examples=examples))
    failed = [row for row in rows if row.error]
    assert len(rows) == 12 and 0 < len(failed) < 12
    assert all(row.score == 0 and row.cause == "EngineError" and "broken pipe" in row.error for row in failed)
    assert all(row.score == 1 for row in rows if not row.error)
    assert sum(row.spent.calls for row in rows) == len(server.paid), "what a failure had paid for is counted"


def test_a_document_too_long_fails_for_full_and_not_for_the_others(serve: Serve, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "long.jsonl", 2, words=1200)
    server = serve(find_code, window=5000, wording="vllm")
    plan = EvaluationPlan(workflows=READING, examples=str(path))
    rows = run(tmp_path / "out", server, plan, changed(SETTINGS, window_tokens=1500))
    causes = {(row.workflow, row.cause) for row in rows}
    assert ("full", "ContextOverflowError") in causes
    assert {reader for reader, cause in causes if cause} == {"full"}


def test_a_problem_too_long_is_a_failure_of_its_example(serve: Serve, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "lamps.jsonl", 2)
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace("What is", "What is, please, " + "oh " * 4000)
    path.write_text("\n".join(lines))
    rows = run(tmp_path / "out", serve(find_code), EvaluationPlan(workflows=("gated",), examples=str(path)))
    assert sorted((row.index, row.cause) for row in rows) == [(0, "ProblemTooLongError"), (1, None)]


def test_attempts_are_bounded_and_examples_made_when_needed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices: list[int] = []
    ahead: list[int] = []
    finished: list[EvaluationRow] = []

    def make(recipe: Recipe, index: int) -> Example:
        indices.append(index)
        ahead.append(len(indices) - len(finished))
        return Example(f"c-{index}", "counted", "What is the code?", story(50), ("marmalade77",), 50)

    monkeypatch.setitem(TASKS, "counted", Task("counted", make, "substring_match", 32))
    server = serve(find_code, latency_seconds=0.05)
    plan = EvaluationPlan(workflows=("full",), tasks=("counted",), lengths=(1024,), count=40)
    settings = changed(SETTINGS, concurrency=3)
    run(tmp_path, server, plan, settings, on_row=finished.append)
    assert len(indices) == 40 and indices == sorted(indices)
    assert server.most_in_flight == 3
    assert max(ahead) <= 4, "no more than are being read, and the next"


def test_resume_runs_only_what_is_missing(serve: Serve, tmp_path: Path, examples: str) -> None:
    plan = EvaluationPlan(workflows=("full", "gated"), examples=examples)
    folder = tmp_path / "out"
    run(folder, serve(find_code), plan)
    expected = without_times(folder)
    whole = (folder / "rows.jsonl").read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", whole)]
    for cut in [0, 1, *ends, *(end + 40 for end in ends[:-1]), *(end - 1 for end in ends)]:
        (folder / "rows.jsonl").write_bytes(whole[:cut])
        row_count = whole[:cut].count(b"\n")
        server = serve(find_code)
        new: list[EvaluationRow] = []
        run(folder, server, plan, resume=True, on_row=new.append)
        assert without_times(folder) == expected
        assert len(new) == 12 - row_count
        assert sum(row.spent.calls for row in new) == len(server.paid), "nothing is paid for twice"


def test_an_example_that_cannot_be_made_ends_the_run_and_keeps_the_rows(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(recipe: Recipe, index: int) -> Example:
        if index == 5:
            raise SettingsError("the set has 5 questions")
        return Example(f"c-{index}", "short", "What is the code?", story(50), ("marmalade77",), 50)

    monkeypatch.setitem(TASKS, "short", Task("short", make, "substring_match", 32))
    plan = EvaluationPlan(workflows=("full",), tasks=("short",), lengths=(1024,), count=9)
    settings = changed(SETTINGS, concurrency=1)
    with pytest.raises(SettingsError, match="5 questions"):
        run(tmp_path, serve(find_code), plan, settings)
    assert {row.index for row in read_rows(tmp_path)} >= set(range(4))


def test_samples_have_seeds_of_their_own(serve: Serve, tmp_path: Path, examples: str) -> None:
    server = serve(find_code)
    settings = changed(SETTINGS, seed=7, temperature=1.0)
    rows = run(
        tmp_path / "out",
        server,
        EvaluationPlan(workflows=("full",), examples=examples, count=2, samples=3),
        settings,
    )
    assert Counter(body["seed"] for body in server.asked) == {7: 2, 8: 2, 9: 2}
    assert Counter(row.sample for row in rows) == {0: 2, 1: 2, 2: 2}


def test_what_was_run_stands_with_the_rows_but_for_the_key(
    serve: Serve, tmp_path: Path, examples: str
) -> None:
    settings = changed(SETTINGS, api_key="sk-secret")
    plan = EvaluationPlan(workflows=("full",), examples=examples)
    run(tmp_path / "out", serve(find_code), plan, settings, command="memagent eval ...")
    header = read_header(tmp_path / "out")
    assert header["attempts"] == 6 and header["model"]["name"] == "test-model"
    assert header["plan"]["workflows"] == ["full"] and header["plan"]["examples"]["sources"] == examples
    assert header["settings"]["chunk_tokens"] == 150 and header["command"] == "memagent eval ..."
    assert "sk-secret" not in (tmp_path / "out" / "run.json").read_text()


def test_other_examples_are_another_run(serve: Serve, tmp_path: Path, examples: str) -> None:
    plan = EvaluationPlan(workflows=("full",), examples=examples)
    run(tmp_path / "out", serve(find_code), plan)
    write_examples(Path(examples), 7)
    with pytest.raises(SettingsError, match=r"examples\.sha256 was"):
        run(tmp_path / "out", serve(find_code), plan, resume=True)
    write_examples(Path(examples), 6)
    with pytest.raises(SettingsError, match=r"workflows was"):
        run(tmp_path / "out", serve(find_code), replace(plan, workflows=("rag",)), resume=True)


def test_rows_tell_what_was_passed_over_and_are_not_mixed(
    serve: Serve, tmp_path: Path, examples: str
) -> None:
    plan, server = EvaluationPlan(workflows=("gated",), examples=examples, count=2), serve(find_code)
    screened = changed(SETTINGS, screen=True)
    rows = run(tmp_path / "out", server, plan, screened)
    assert all(row.score == 1 and row.chunks == row.passed_over + row.spent.calls - 1 for row in rows)
    assert all(row.passed_over for row in rows)
    with pytest.raises(SettingsError, match=r"settings\.screen was true, now it is false"):
        run(tmp_path / "out", server, plan, resume=True)
    with pytest.raises(SettingsError, match="not for full"):
        run(tmp_path / "full", server, replace(plan, workflows=("gated", "full")), screened)
    assert not (tmp_path / "full").exists()


def test_budgets_that_cannot_be_are_refused_before_a_call(
    serve: Serve, tmp_path: Path, examples: str
) -> None:
    server = serve(find_code)
    with pytest.raises(SettingsError, match="budgets"):
        run(
            tmp_path / "out",
            server,
            EvaluationPlan(workflows=("gated",), examples=examples),
            changed(SETTINGS, window_tokens=100),
        )
    assert not server.asked and not (tmp_path / "out").exists()


def test_a_lasting_failure_leaves_no_attempt_out(serve: Serve, tmp_path: Path, examples: str) -> None:
    server = serve(find_code, faults=lasting_fault(Fault(cut="before"), spared=3))
    reported_rows: list[EvaluationRow] = []
    rows = run(
        tmp_path / "out",
        server,
        EvaluationPlan(workflows=("full",), examples=examples),
        on_row=reported_rows.append,
    )
    assert len(rows) == 6 == len(reported_rows) and sum(row.score for row in rows) == 3


def test_watchers_hear_what_is_planned_and_what_is_done(serve: Serve, tmp_path: Path, examples: str) -> None:
    calls: list[tuple[Any, Any]] = []
    plan = EvaluationPlan(workflows=("full", "rag"), examples=examples, count=4, samples=2)
    for resume in (False, True):
        run(
            tmp_path / "out",
            serve(find_code),
            plan,
            resume=resume,
            on_begin=lambda *arguments: calls.append(arguments),
        )
    cells = {(Cell("lamps"), "full"): 8, (Cell("lamps"), "rag"): 8}
    assert calls == [(cells, {}), (cells, cells)]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"tasks": ("vt",)}, "needs a size: give `lengths` in tokens"),
        ({"tasks": ("hqa",)}, "or a number of `documents`"),
        ({"tasks": ("vt",), "documents": (50,)}, "vt needs a size"),
        ({"tasks": ("nothing",), "lengths": (9,)}, "no task 'nothing'"),
        ({"tasks": ("vt", "vt"), "lengths": (9,)}, "named twice"),
        ({"tasks": ("vt",), "lengths": (2048, 2048)}, "each named once"),
        ({"tasks": ("vt",), "lengths": (0,)}, "above 0"),
        ({"tasks": ("vt",), "lengths": (2048,), "count": 0}, "count is 0"),
        ({"tasks": ("vt",), "lengths": (2048,), "scorer": "luck"}, "no scorer 'luck'"),
        ({"tasks": ("vt",), "lengths": (2048,), "workflows": ("skim",)}, "no workflow 'skim'"),
        ({}, "which examples"),
    ],
)
def test_a_plan_that_cannot_be_says_what_is_wrong(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SettingsError, match=wrong):
        EvaluationPlan(**{"workflows": ("full",), **fields})


def test_depth_is_where_the_one_answer_stands() -> None:
    example = Example("e", "t", "p", "x" * 90 + "needle" + "x" * 4, ("needle",), 100)
    assert depth(example) == 0.9
    assert depth(replace(example, answers=("needle", "other"))) is None
    assert depth(replace(example, document="needle needle")) is None
    assert depth(replace(example, answers=("absent",))) is None


def test_traces_are_journals_that_a_killed_run_continues(serve: Serve, tmp_path: Path, examples: str) -> None:
    plan = EvaluationPlan(workflows=("gated", "full"), examples=examples, samples=2)
    rows = run(tmp_path / "out", serve(find_code), plan, traces=True)
    journals = sorted((tmp_path / "out" / "traces").iterdir())
    assert len(journals) == len(rows) == 24
    assert {type(list(read_journal(path))[-1]) for path in journals} == {Answer}

    expected = without_times(tmp_path / "out")
    (tmp_path / "out" / "rows.jsonl").write_bytes(b"")
    half = next(path for path in journals if "gated" in path.name)
    written = half.read_bytes()
    half.write_bytes(written[: written.rindex(b'"reply"')])
    server = serve(find_code)
    run(tmp_path / "out", server, plan, traces=True, resume=True)
    assert without_times(tmp_path / "out") == expected
    assert 0 < len(server.paid) <= 2, "what was on record is not paid for again"


def test_a_new_run_takes_no_replies_from_the_journals_of_another(
    serve: Serve, tmp_path: Path, examples: str
) -> None:
    plan, out = EvaluationPlan(workflows=("gated",), examples=examples, count=1), tmp_path / "out"
    run(out, serve(find_code), plan, traces=True)
    for name in ("run.json", "rows.jsonl"):
        (out / name).unlink()
    with pytest.raises(SettingsError, match="holds journals of another run: delete it"):
        run(out, serve(find_code), plan, traces=True)
    assert not (out / "rows.jsonl").exists()


def test_capture_and_retention_are_reported(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "lamps.jsonl"
    lamps = [
        {"id": name, "problem": name, "document": story(600, 0.1, name), "answers": [name]}
        for name in ("kept", "lost", "missed")
    ]
    path.write_text("".join(json.dumps(lamp) + "\n" for lamp in lamps))

    def forgetful(messages: Sequence[Mapping[str, str]]) -> str:
        prompt = messages[-1]["content"]
        fact = re.findall(r"lighthouse is (\w+)", prompt)
        if fact == ["missed"] or ("w0500" in prompt and "lost" in prompt):
            return "Nothing that matters."
        return f"The code: {fact[0]}" if fact else find_code(messages)

    plan = EvaluationPlan(workflows=("overwrite", "full", "map_reduce"), examples=str(path))
    rows = {(row.workflow, row.example_id): row for row in run(tmp_path / "out", serve(forgetful), plan)}
    outcomes = {key: (row.captured, row.retained) for key, row in rows.items()}
    assert outcomes["overwrite", "kept"] == (True, True)
    assert outcomes["overwrite", "lost"] == (True, False)
    assert outcomes["overwrite", "missed"] == (False, False)
    assert {outcomes[name, "kept"] for name in ("full", "map_reduce")} == {(None, None)}


def test_needed_are_literal_answers_or_else_the_evidence() -> None:
    example = Example(
        "e", "t", "p", "Ada wrote it, yes. Bob read it in 1843.", ("Ada", "1843"), 9, ("Bob read",)
    )
    assert list(Needed.of(example, "string_match_all").items) == [("Ada",), ("1843",)]
    assert list(Needed.of(example, "f1").items) == [("Ada", "1843")]
    assert list(Needed.of(replace(example, answers=("yes",)), "f1").items) == [("Bob read",)]
    assert not Needed.of(replace(example, answers=ABSENT_ANSWERS, evidence=()), "f1").items
    lines = Needed.of(replace(example, answers=("yes",), evidence=("Ada\ncame",)), "f1")
    lines.see('E1 "Ada\\ncame"')  # as a memory of excerpts has it
    assert lines.captured


def test_secrets_of_an_address_do_not_reach_the_rows(serve: Serve, tmp_path: Path, examples: str) -> None:
    server = serve(find_code, faults=lasting_fault(Fault(cut="before"), spared=0))
    address = server.base_url.replace("http://", "http://me:PASSWORD@") + "?api_key=KEY"
    settings = changed(SETTINGS, base_url=address)
    plan = EvaluationPlan(workflows=("full",), examples=examples, count=1)
    with suppress(MemAgentError):  # the endpoint may be refused at once
        asyncio.run(evaluate(Evaluation(plan=plan, settings=settings, folder=tmp_path / "out")))
    content = b"".join(path.read_bytes() for path in (tmp_path / "out").glob("*"))
    assert b"PASSWORD" not in content and b"KEY" not in content

    def fail(messages: tuple[Message, ...]) -> str:
        raise EngineError("http://me:PASSWORD@host/v1?key=KEY is out of order")

    run = Evaluation(plan=plan, settings=SETTINGS, folder=tmp_path / "scripted")
    asyncio.run(evaluate(run, ScriptedEngine(fail)))
    (row,) = read_rows(tmp_path / "scripted")
    assert row.error == "http://host/v1?... is out of order"


def test_a_question_without_an_answer_is_to_be_declined(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "lamps.jsonl"
    rows = [{"problem": problem, "document": story(), "answers": []} for problem in ("Who?", "Where?")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    def reply(messages: Sequence[Mapping[str, str]]) -> str:
        return "It does not say." if "Who?" in messages[-1]["content"] else "In Rome."

    for scorer in (None, "exact_match", "string_match_all"):
        plan = EvaluationPlan(workflows=("full",), examples=str(path), scorer=scorer)
        who, where = sorted(run(tmp_path / f"out-{scorer}", serve(reply), plan), key=lambda row: row.index)
        assert (who.score, where.score) == (1.0, 0.0)


def test_replies_cut_at_their_budget_are_counted(serve: Serve, tmp_path: Path, examples: str) -> None:
    def ramble(messages: Sequence[Mapping[str, str]]) -> str:
        return json.dumps(list(range(200)))

    rows = run(
        tmp_path / "out", serve(ramble), EvaluationPlan(workflows=("full",), examples=examples, count=1)
    )
    assert [row.cut for row in rows] == [1]
