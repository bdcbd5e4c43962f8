"""`memagent report`: the files it writes, and which exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from memagent.training.metrics import open_metrics
from memagent.training.settings import TrainingSettings


@pytest.fixture
def rows(tmp_path: Path, serve: Serve, monkeypatch: Patch) -> str:
    monkeypatch.chdir(tmp_path)
    row = {"problem": "Whose hat?", "document": "A hat. " * 40, "answers": ["hat"]}
    Path("hats.jsonl").write_text(f"{json.dumps(row)}\n" * 3, "utf-8")
    address = serve(lambda messages: "a hat").base_url
    command = ["eval", "--examples", "hats.jsonl", "--workflow", "full", "--out", "rows", "--quiet"]
    assert main([*command, "--base-url", address]) == 0
    return "rows"


def test_it_prints_the_files_that_it_wrote(rows: str, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["report", "--out", "told", rows]) == 0
    written = capsys.readouterr().out.split()
    assert {"told/report.md", "told/report.json"} <= set(written)
    assert all(Path(name).stat().st_size > 100 for name in written)


def test_without_out_it_writes_beside_the_rows(rows: str) -> None:
    assert main(["report", rows]) == 0
    assert Path("rows/report.md").exists()


def test_a_folder_may_come_after_a_flag(rows: str) -> None:
    assert main(["report", rows, "--out", "told", rows]) == 0


@pytest.mark.parametrize("folder", ["nothing", "hats.jsonl"])
def test_a_folder_without_rows_ends_with_2(rows: str, folder: str, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["report", folder]) == 2
    assert folder in capsys.readouterr().err


@pytest.fixture
def training(tmp_path: Path) -> str:
    with open_metrics(tmp_path / "run", TrainingSettings(steps=2).record()) as metrics:
        for step in (1, 2):
            metrics.write("training", step, {"reward": step / 2, "loss": 0.1})
    return "run"


def test_training_runs_have_a_report_as_well(rows: str, training: str, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["report", training, "--out", "told"]) == 0
    written = capsys.readouterr().out.split()
    assert {"told/report.md", "told/report.json"} <= set(written)
    assert Path("told/report.md").read_text("utf-8").startswith("# Training\n")


def test_training_and_evaluation_do_not_go_into_one_report(rows: str, training: str, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["report", rows, training, "--out", "told"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "rows, run: name folders of memagent eval (which hold run.json), or of memagent train" in message
    assert not Path("told").exists()


@pytest.mark.parametrize("key", ["version", "created", "command", "attempts", "model", "plan"])
@pytest.mark.parametrize("value", [None, [1], "missing"])
def test_a_run_json_that_lacks_what_the_report_needs_is_an_error(
    rows: str, key: str, value: Any, capsys: Capture
) -> None:
    run = json.loads(Path("rows/run.json").read_text("utf-8"))
    del run[key]
    damaged = run if value == "missing" else {**run, key: value}
    Path("rows/run.json").write_text(json.dumps(damaged), "utf-8")
    capsys.readouterr()
    code = main(["report", rows])
    message = " ".join(capsys.readouterr().err.split())
    assert (code, "rows/run.json is damaged (" in message, key in message) == (2, True, True), message


@pytest.mark.parametrize(
    ("settings", "why"),
    [("{", "is not JSON"), ("[" * 10_000, "is not JSON")],
)
def test_settings_of_a_training_run_that_are_none_are_an_error(
    rows: str, training: str, settings: str, why: str, capsys: Capture
) -> None:
    Path(training, "settings.json").write_text(settings, "utf-8")
    capsys.readouterr()
    assert main(["report", training]) == 2
    assert f"run/settings.json {why}" in " ".join(capsys.readouterr().err.split())
