"""Reports on hand-made rows: every number worked out by hand, every picture a picture."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.measured import header, row
from memagent import SettingsError
from memagent.evaluation.rows import EvaluationRow, open_rows
from memagent.reports.drawing import plain
from memagent.reports.evaluation import as_json, as_markdown, load, write_report
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import flatten


def write(folder: Path, rows: list[EvaluationRow], **fields: Any) -> Path:
    with open_rows(folder, header(**{"attempts": len(rows), **fields}), resume=False) as file:
        for attempt in rows:
            file.append(flatten(attempt))
    return folder


def linear_rows() -> list[EvaluationRow]:
    """Two readers, two tasks, three sizes, four examples; `gated` is linear, `full` quadratic, and fails."""
    rows = []
    for task in ("niah_single_1", "vt"):
        for length in (2048, 4096, 8192):
            for index in range(4):
                fields: dict[str, Any] = {
                    "task": task,
                    "length": length,
                    "index": index,
                    "length_tokens": length,
                }
                rows.append(
                    row(**fields, workflow="gated", score=float(index > 0), prompt_tokens=2 * length,
                        completion_tokens=0, seconds=length / 1000, depth=index / 4, cut=1)
                )  # fmt: skip
                broken = length == 8192
                rows.append(
                    row(**fields, workflow="full", score=0.0 if broken else 1.0, prompt_tokens=length,
                        completion_tokens=0, seconds=(length / 1000) ** 2, depth=index / 4,
                        error=f"{length + index} tokens are too many" if broken else None,
                        cause="ContextOverflowError" if broken else None)
                )  # fmt: skip
    return rows


def report(*folders: Path) -> tuple[str, dict[str, Any]]:
    """What is written, without the pictures."""
    evidence = load(folders)
    return as_markdown(evidence, {}), json.loads(as_json(evidence))


def draw_report(folder: Path, out: Path) -> tuple[str, list[Path]]:
    files = write_report([folder], out)
    return (out / "report.md").read_text("utf-8"), files


def test_the_numbers_are_those_worked_by_hand(tmp_path: Path) -> None:
    markdown, data = report(write(tmp_path / "run", linear_rows()))
    assert "| task | 2K | 4K | 8K |" in markdown
    assert markdown.count("| niah_single_1 | 75.0 [30, 95] | 75.0 [30, 95] | 75.0 [30, 95] |") == 1
    assert "| all | 100.0 [68, 100] | 100.0 [68, 100] | 0.0 [0, 32] |" in markdown
    assert "| gated | 1.00 | 1.00 |" in markdown and "| full | 1.00 | 2.00 |" in markdown
    assert "8 of 48 attempts failed; each counts as 0" in markdown
    assert "| full | ContextOverflowError | N tokens are too many | 8 |" in markdown
    assert "| gated | 2K | 2,048 | 2.0 | 2.0 | 4,096 | 0 | 0 | 2.0 | – | 8 |" in markdown
    assert "| full | 8K | 8,192 | – | – | – | – | – | – | – | 0 |" in markdown
    assert "Points above **gated**" in markdown
    assert (
        "| full | 8 | +25.0 [-12, +52] | +25.0 [-12, +52] | -75.0 [-96, -24] | -8.3 [-38, +24] |" in markdown
    )
    assert "±7 points" in markdown.replace("\n", " ")
    growth = {line["workflow"]: line for line in data["growth"]}
    assert growth["gated"]["tokens_exponent"] == pytest.approx(1.0, abs=1e-9)
    assert growth["full"]["seconds_exponent"] == pytest.approx(2.0, abs=1e-9)


def test_costs_are_those_worked_by_hand(tmp_path: Path) -> None:
    rows = [
        row(index=0, critical_path=2, prompt_tokens=1000, cached_tokens=400, cost=0.5),
        row(index=1, critical_path=3, prompt_tokens=2000, cached_tokens=0, cost=0.25),
        row(index=2, critical_path=1, prompt_tokens=10, cost=0.0625, score=0.0, error="HTTP 503", cause="E"),
    ]
    markdown, data = report(write(tmp_path / "run", rows))
    assert "| gated | 2K | 2,000 | 2.0 | 2.5 | 1,300 | 200 | 10 | 1.0 | 0.375 | 0 |" in markdown
    assert "3 attempts, cost 0.8125 in all" in markdown
    (size,) = data["by_size"]
    assert (size["critical_path"], size["computed_tokens"], size["cached_tokens"]) == (2.5, 1300, 200)
    assert (size["cost"], size["paid"]) == (0.375, 0.8125)


def test_the_share_of_skipped_chunks_is_reported(tmp_path: Path) -> None:
    rows = [row(index=0, chunks=10, passed_over=6), row(index=1, chunks=4, passed_over=1)]
    rows += [row(index=index, workflow="full") for index in range(2)]
    markdown, _ = report(write(tmp_path / "run", rows))
    assert "| cut | passed over, % |" in markdown
    assert "| – | 0 | 42 |" in markdown and "| – | 0 | 0 |" in markdown
    markdown, _ = report(write(tmp_path / "other", rows[2:]))
    assert "passed over, %" not in markdown


def test_json_says_all_that_the_tables_say(tmp_path: Path) -> None:
    _, data = report(write(tmp_path / "run", linear_rows()))
    assert len(data["scores"]) == 2 * 2 * 3 and len(data["by_size"]) == 2 * 3
    cell = next(
        score
        for score in data["scores"]
        if (score["workflow"], score["task"], score["number"]) == ("full", "vt", 8192)
    )
    assert (cell["score"], cell["examples"], cell["failed"], cell["tokens"]) == (0.0, 4, 4, None)
    assert data["failures"] == [
        {"workflow": "full", "cause": "ContextOverflowError", "error": "N tokens are too many", "count": 8}
    ]
    assert sorted({line["depth"] for line in data["depth"]}) == [0.0, 0.2, 0.5, 0.7]
    assert data["runs"][str(tmp_path / "run")]["command"] == "memagent eval"


def test_pictures_are_drawn_and_named_in_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    markdown, files = draw_report(write(tmp_path / "run", linear_rows()), tmp_path / "out")
    pictures = [path for path in files if path.suffix == ".png"]
    assert [path.name for path in pictures] == [
        "score_by_length.png",
        "score_by_depth.png",
        "cost_by_length.png",
    ]
    for path in pictures:
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert data.startswith(b"\x89PNG") and width > 600 and height > 400
        assert f"]({path.name})" in markdown


def test_the_same_rows_give_the_same_report(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", linear_rows())
    first, second = (write_report([folder], tmp_path / name) for name in ("one", "two"))
    assert len(first) >= 2
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_no_picture_of_depth_without_depths(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = write(tmp_path / "run", [row(index=index, depth=None) for index in range(3)])
    markdown, files = draw_report(folder, tmp_path / "out")
    assert "Depth" not in markdown and report(folder)[1]["depth"] == []
    assert [path.name for path in files][2:] == ["score_by_length.png", "cost_by_length.png"]


def test_a_run_of_failures_alone_has_a_report(tmp_path: Path) -> None:
    rows = [row(index=index, score=0.0, error="HTTP 503", cause="EngineError") for index in range(3)]
    markdown, data = report(write(tmp_path / "run", rows))
    assert "3 of 3 attempts failed" in markdown and "| gated | – | – |" in markdown
    assert data["growth"] == [{"workflow": "gated", "tokens_exponent": None, "seconds_exponent": None}]


def test_sizes_in_documents_and_tokens_stand_side_by_side(tmp_path: Path) -> None:
    rows = [
        *(row(task="hqa", length=None, documents=number, length_tokens=number * 140) for number in (50, 100)),
        row(length=2048),
    ]
    markdown, _ = report(write(tmp_path / "run", rows))
    assert "| task | 50 documents | 100 documents | 2K |" in markdown
    assert "| hqa | 100.0 [0, 100] | 100.0 [0, 100] | – |" in markdown


def test_without_matplotlib_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    markdown, files = draw_report(write(tmp_path / "run", linear_rows()), tmp_path / "out")
    assert "pip install -e '.[report]'" in markdown and "![" not in markdown
    assert sorted(path.name for path in files) == ["report.json", "report.md"]


def test_runs_of_several_models_have_lines_of_their_own(tmp_path: Path) -> None:
    other = {"name": "big", "window_tokens": None, "tokenizer": "estimate"}
    folders = [
        write(tmp_path / "a", linear_rows()),
        write(tmp_path / "b", linear_rows(), model=other),
    ]
    assert load(folders).series == ["gated (m)", "gated (big)", "full (m)", "full (big)"]


def test_runs_of_one_model_are_one_table_unless_they_did_the_same(tmp_path: Path) -> None:
    rows = linear_rows()
    parts = [
        write(tmp_path / task, [attempt for attempt in rows if attempt.task == task])
        for task in ("vt", "niah_single_1")
    ]
    assert load(parts).series == ["gated", "full"]
    again = [*parts, write(tmp_path / "again", rows, created="2026-11-22T00:00:00Z")]
    assert len(load(again).series) == 6 and f"full ({tmp_path / 'again'})" in load(again).series


@pytest.mark.parametrize("name", [r"a$\frac$", "\udcff", "_a"])
def test_names_of_any_characters_are_written_and_drawn(tmp_path: Path, name: str) -> None:
    model = {"name": name, "window_tokens": None, "tokenizer": "estimate"}
    rows = [replace(attempt, task=name) for attempt in linear_rows()]
    folders = [write(tmp_path / "a", rows, model=model), write(tmp_path / "b", linear_rows())]
    write_report(folders, tmp_path / "out")
    assert name.encode("utf-8", "backslashreplace") in (tmp_path / "out" / "report.md").read_bytes()
    data = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert name in {score["task"] for score in data["scores"]}
    assert not plain(name).startswith("_"), "matplotlib's legends leave such a name out"


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", linear_rows())
    (tmp_path / "link").symlink_to(folder)
    once = load([folder])
    for names in ([folder, folder], [folder, tmp_path / "link"]):
        twice = load(names)
        assert (twice.series, len(twice.results)) == (once.series, len(once.results))
        assert list(twice.runs) == [str(folder)]


def test_capture_and_retention_have_a_table_where_they_are_known(tmp_path: Path) -> None:
    rows = [row(index=index, captured=index < 3, retained=index < 2) for index in range(4)]
    markdown, data = report(write(tmp_path / "run", [*rows, row(workflow="full")]))
    assert (
        "| gated | 2K | 4 | 75.0 [30, 95] | 66.7 [21, 94] |" in markdown
        and "| full | 2K | 1 |" not in markdown
    )
    assert data["by_size"][0]["capture"]["mean"] == 0.75 and data["by_size"][1]["capture"] is None
    assert "## Memory" not in report(write(tmp_path / "other", [row()]))[0]


def test_declined_and_invented_answers_have_a_table_and_wrong_ones_are_shown(tmp_path: Path) -> None:
    rows = [
        row(index=0, prediction="x"),
        row(index=1, score=0.0, prediction="It does not say.", problem="Who?"),
        row(index=2, prediction="It does not say.", answers=ABSENT_ANSWERS),
        row(index=3, score=0.0, prediction="In | Rome", problem="Where? " * 90, answers=ABSENT_ANSWERS),
        row(index=4, score=0.0, error="no room", cause="EngineError", problem="When?", answers=("a", "b")),
    ]
    markdown, data = report(write(tmp_path / "run", rows))
    assert "| gated | 2K | 3 | 33.3 [6, 79] | 2 | 50.0 [9, 91] | 50.0 [9, 91] |" in markdown
    assert "| gated | niah_single_1 | Who? | x | It does not say. |\n" in markdown
    assert "... | no answer | In \\| Rome |\n" in markdown
    assert "| When? | a; b | EngineError: no room |\n" in markdown
    assert [answer["question"][:6] for answer in data["wrong"]] == ["Who?", "Where?", "When?"]
    right, _ = report(write(tmp_path / "other", [row()]))
    assert "Invented" not in right and "## Wrong" not in right


def test_a_run_that_is_not_finished_is_called_so(tmp_path: Path) -> None:
    markdown, _ = report(write(tmp_path / "run", linear_rows(), attempts=60))
    assert "Not finished: 12 of 60 attempts are missing" in markdown


def test_estimates_are_called_so(tmp_path: Path) -> None:
    markdown, _ = report(
        write(tmp_path / "run", [row(index=index, estimated=index < 2) for index in range(3)])
    )
    assert "did not count all tokens of 2 attempts: theirs are estimates" in markdown
    assert "theirs are" not in report(write(tmp_path / "other", [row()]))[0]


def test_the_sample_corpora_are_named(tmp_path: Path) -> None:
    plan = {
        "workflows": ["full", "gated"],
        "corpora": {"squad": {"origin": "sample"}, "hotpot": {"origin": "given"}},
    }
    markdown, _ = report(write(tmp_path / "run", linear_rows(), plan=plan))
    assert "small samples of squad: scores" in markdown
    rows = [row(haystack="sample of essays, sha256 1"), row(index=1, haystack="essays, sha256 2")]
    assert "small samples of essays: scores" in report(write(tmp_path / "other", rows))[0]


def test_what_a_server_says_cannot_break_a_table(tmp_path: Path) -> None:
    rows = [row(score=0.0, error="a | b\n| <script>c", cause="EngineError")]
    markdown, _ = report(write(tmp_path / "run", rows))
    assert "| gated | EngineError | a \\| b \\| &lt;script>c | 1 |" in markdown


def test_a_folder_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no row yet"):
        write_report([write(tmp_path / "empty", [])], tmp_path / "out")
    with pytest.raises(SettingsError, match=r"run\.json cannot be read"):
        write_report([tmp_path / "nothing"], tmp_path / "out")
