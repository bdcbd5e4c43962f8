"""presets/small/figure.py: what it trains and reads, in which order, and what it makes of the rows."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from small_commands import Command, Commands, load_script

pytestmark = pytest.mark.slow

LENGTHS = ("2048", "4096")
SCORES = {"careful": 0.5, "careful-reinforced": 1.0, "passages": 0.25}


def make(command: Command, out: Path) -> None:
    """The folder of a reader, or rows with a reader's score."""
    if not command[0].endswith("measure.py"):
        out.mkdir(parents=True, exist_ok=True)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    name = Path(command[1]).name.rpartition("-seed")[0]
    row = {
        "task": "vt", "haystack": "essays, sha256 0", "score": SCORES.get(name, 0.0), "needed": 4,
        "needed noted": 3, "held": 2, "others": 10, "others noted": 1, "idle": 5, "idle writes": 0,
    }  # fmt: skip
    if "--samples" in command:
        row["sampled"] = 0.25
    out.write_text("".join(json.dumps({"id": str(number), **row}) + "\n" for number in range(2)))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Commands]:
    commands = Commands(make)
    return load_script("figure.py", commands, monkeypatch), commands


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> None:
    words = ("--out", str(out), "--seeds", "2", "--count", "4", "--lengths", *LENGTHS, *more)
    monkeypatch.setattr(sys, "argv", ["figure.py", *words])
    module.main()


def trained(commands: Commands) -> list[str]:
    """The readers that were made, in order."""
    return [
        Path(command[command.index("--out") + 1]).name
        for command in commands.called
        if command[:2] == ("train", "export")
    ]


def test_every_reader_is_trained_from_what_it_begins_with_and_reads_every_length(
    commands: tuple[ModuleType, Commands],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module, recorder = commands
    novel = tmp_path / "novel.txt"
    novel.write_text("A novel.")
    run(module, monkeypatch, tmp_path, "--texts", str(novel))
    assert "essays: using the small sample" in capsys.readouterr().err
    readers = trained(recorder)
    assert len(readers) == len(set(readers)) == 2 * len(module.READERS)
    for seed in range(2):
        assert readers.index(f"careful-seed{seed}") < readers.index(f"undecided-seed{seed}")
        assert readers.index(f"undecided-seed{seed}") < readers.index(f"undecided-reinforced-seed{seed}")
    for command in recorder.called:
        if command[0] == "train" and command[1] != "export":
            name = Path(command[command.index("--out") + 1]).name
            assert (command[1] == "run") == ("reinforced" in name or "credit" in name)
            assert ("loss.credit=shuffled" in command) == ("shuffled" in name)
            assert ("loss.credit=updates" in command) == ("updates" in name)
            assert ("warm_start.steps=0" in command) == (command[1] == "run")
            assert ("loss.credit=answer" in command) == ("answer" in name)
            start = next(word for word in command if word.startswith("policy.model="))
            origin = "copied" if name.startswith("careful-seed") else name.partition("-")[0]
            assert Path(start).name.startswith(
                "careful" if command[1] == "sft" and origin != "copied" else origin
            )
    figure = json.loads((tmp_path / "figure.json").read_text())
    assert [*figure] == ["essays", "novel", "essays, vt", "novel, vt"]
    expected = {"careful": 50.0, "careful, reinforced": 100.0, "four passages": 25.0, "undecided": 0.0}
    for name, score in expected.items():
        assert {size: of["score"]["seeds"] for size, of in figure["essays"][name].items()} == {
            length: [score, score] for length in LENGTHS
        }
    assert figure["novel"]["careful"]["2048"]["needed"] == {"mean": 75.0, "seeds": [75.0, 75.0]}
    assert figure["essays"]["careful"]["2048"]["chunks without a fact"] == {"idle": 20, "idle writes": 0}
    table = (tmp_path / "figure.md").read_text()
    assert "| careful | 50 ± 0 |  | 75 ± 0 | 10 ± 0 |" in table and "Haystack: essays, sha256 0" in table
    assert "| undecided, thought forced | 0 ± 0 | 25 ± 0 |" in table
    with gzip.open(tmp_path / "rows.jsonl.gz", "rt") as rows:
        assert len([*rows]) == 2 * 2 * 2 * 2 * len(module.READINGS)


def test_intervals_are_students_across_seeds(commands: tuple[ModuleType, Commands]) -> None:
    interval = commands[0].interval
    assert interval([60.0, 70.0, 80.0]) == "70 ± 25" and interval([60.0]) == "60"


def test_a_second_start_trains_nothing_again(
    commands: tuple[ModuleType, Commands], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, recorder = commands
    recorder.fails_at = "overwrite-seed1"
    with pytest.raises(SystemExit):
        run(module, monkeypatch, tmp_path)
    assert not (tmp_path / "figure.json").exists()
    first = set(trained(recorder))
    recorder.called.clear()
    recorder.fails_at = ""
    run(module, monkeypatch, tmp_path)
    assert "overwrite-seed1" in trained(recorder) and not first & set(trained(recorder))


def test_some_readers_are_made_from_those_that_they_begin_with_and_nothing_else(
    commands: tuple[ModuleType, Commands], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, recorder = commands
    run(module, monkeypatch, tmp_path, "--readers", "undecided, reinforced", "four passages")
    names = ("careful", "undecided", "undecided-reinforced", "passages")
    assert sorted(trained(recorder)) == sorted(f"{name}-seed{seed}" for name in names for seed in range(2))
    assert [*json.loads((tmp_path / "figure.json").read_text())["essays"]] == [
        "undecided, reinforced",
        "four passages",
    ]
