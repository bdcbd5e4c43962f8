"""`memagent flops`: a table on stdout, a folder with `--out`, and errors that name the value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memagent.cli import main

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "vocab_size": 32,
}  # fmt: skip
COMMAND = ["flops", "model", "--length", "2000", "--length", "1000", "--workflow", "gated",
           "--workflow", "full", "--chunk-tokens", "400"]  # fmt: skip


@pytest.fixture(autouse=True)
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model", "config.json").write_text(json.dumps(CONFIG))


def test_it_prints_a_line_for_each_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| 10^15 FLOPs | 1,000 | 2,000 | growth |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| gated", "| full"]


def test_a_folder_has_the_report_and_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--out", "told"]) == 0
    table = capsys.readouterr().out.partition("told/")[0]
    told = Path("told", "report.md").read_text("utf-8")
    assert table in told and "# FLOPs by length: model" in told
    found = json.loads(Path("told", "report.json").read_text("utf-8"))["flops"]
    assert [(it["workflow"], it["tokens"]) for it in found] == [
        ("gated", 1000), ("gated", 2000), ("full", 1000), ("full", 2000),
    ]  # fmt: skip
    assert all(it["flops"] > 0 for it in found)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["flops", "nowhere"], "nowhere cannot be read"),
        (["flops", "model", "--workflow", "gated", "--length", "100", "--rounds", "0"], "rounds is 0"),
    ],
)
def test_what_cannot_be_ends_with_2(words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert wrong in capsys.readouterr().err


def test_experts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model", "config.json").write_text(json.dumps({**CONFIG, "model_type": "mixtral"}))
    assert main(COMMAND) == 2
    assert "model_type is 'mixtral'" in capsys.readouterr().err
