"""presets/small/choosing.py: what it trains, where it stops, and where it continues."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from memagent.training.metrics import open_metrics
from small_commands import Command, Commands, load_script

TASKS = ("niah_multikey_1", "niah_multiquery", "two_hops")


class Maker:
    """Makes the folder of a reader, the metrics of a run, or rows; `sampled` has scores of steps."""

    def __init__(self) -> None:
        self.sampled = {0: 0.25}

    def __call__(self, command: Command, out: Path) -> None:
        if command[:2] == ("train", "run"):
            out.mkdir(parents=True, exist_ok=True)
            rows = out / "metrics.jsonl"
            with open_metrics(out, {}, rows.stat().st_size if rows.exists() else None) as metrics:
                values = {"reward": 0.5, "equal_groups": 0.25, "reward/two_hops": 0.125}
                metrics.write("training", int(setting(command, "steps")), values)
        elif not command[0].endswith("measure.py"):
            out.mkdir(parents=True, exist_ok=True)
        else:
            self.measure(command, out)

    def measure(self, command: Command, out: Path) -> None:
        step, count = int(out.stem.split("-")[2][4:]), int(command[command.index("--count") + 1])
        row = {"score": 0.5, "sampled": self.sampled.get(step, 0.5), "needed": 2, "needed noted": 1}
        row |= {"others": 10, "others noted": 1}
        out.parent.mkdir(parents=True, exist_ok=True)
        rows = ({"id": str(number), "task": TASKS[number % 3], **row} for number in range(count))
        out.write_text("".join(json.dumps(record) + "\n" for record in rows))


def setting(command: tuple[str, ...], name: str) -> str:
    """What a command sets."""
    return next(word for word in command if word.startswith(f"{name}=")).partition("=")[2]


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def commands(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Commands]:
    commands = Commands(maker)
    return load_script("choosing.py", commands, monkeypatch), commands


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> None:
    words = ("--out", str(out), "--seeds", "2", "--steps", "60", "--checked", "30", "--count", "3")
    monkeypatch.setattr(sys, "argv", ["choosing.py", *words, "--last-count", "6", "--jobs", "1", *more])
    module.main()


def trained(commands: Commands) -> list[tuple[str, int]]:
    """The runs that were begun or continued, each with the step that it went to."""
    runs = (command for command in commands.called if command[:2] == ("train", "run"))
    return [
        (Path(command[command.index("--out") + 1]).name.removesuffix("-run"), int(setting(command, "steps")))
        for command in runs
    ]


def test_each_arm_of_each_seed_is_measured_at_every_report(
    commands: tuple[ModuleType, Commands], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, recorder = commands
    run(module, monkeypatch, tmp_path, "--set", "loss.overlong_tokens=0")
    runs = trained(recorder)
    for seed in range(2):
        for arm in ("trajectory", "answer"):
            assert [step for name, step in runs if name == f"{arm}-seed{seed}"] == [20, 30, 40, 60]
    assert [name for name, _ in runs][:4] == ["trajectory-seed0"] * 2 + ["answer-seed0"] * 2, (
        "the check is first"
    )
    for command in recorder.called:
        assert ("loss.overlong_tokens=0" in command) == (command[:2] == ("train", "run"))
        if command[:2] == ("train", "run"):
            name = Path(command[command.index("--out") + 1]).name
            assert setting(command, "loss.credit") == name.partition("-")[0]
            assert Path(setting(command, "policy.model")).name == f"forms-{name.split('-')[1]}"
    report = (tmp_path / "report.md").read_text()
    assert "| 20, 2, all | 50, 50, 50, 10 | 50, 50, 50, 10 | 0.50, 0.25 |" in report
    assert (
        "| 60, 2, two_hops | 50, 50, 50, 10 | 50, 50, 50, 10 | 0.12 |" in report and "Stopped" not in report
    )
    with gzip.open(tmp_path / "metrics.jsonl.gz", "rt") as file:
        packed = [json.loads(line) for line in file]
    assert [(row["run"], row["step"]) for row in packed] == [
        (f"{arm}-seed{seed}", step)
        for arm in ("answer", "trajectory") for seed in (0, 1) for step in (20, 30, 40, 60)
    ]  # fmt: skip
    with gzip.open(tmp_path / "rows.jsonl.gz", "rt") as file:
        assert len([*file]) == 2 * 2 * (6 + 2 * (3 * 3 + 6)), (
            "of both seeds and sizes: the start, and both arms"
        )


def test_a_first_seed_whose_sampled_score_has_not_doubled_ends_it(
    commands: tuple[ModuleType, Commands], maker: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, recorder = commands
    maker.sampled[30] = 0.49
    with pytest.raises(
        SystemExit, match=r"Stopped after 30 steps of seed 0: .* 3 small .* from 25.0 to 49.0"
    ):
        run(module, monkeypatch, tmp_path)
    assert {name for name, _ in trained(recorder)} == {"trajectory-seed0", "answer-seed0"}
    assert (tmp_path / "report.md").read_text().startswith("Stopped after 30 steps")
    run(module, monkeypatch, tmp_path, "--checked", "0", "--seeds", "1")


def test_a_second_start_continues_where_it_stopped(
    commands: tuple[ModuleType, Commands], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, recorder = commands
    recorder.fails_at = "answer-seed1-step040-large"
    with pytest.raises(SystemExit):
        run(module, monkeypatch, tmp_path)
    first = trained(recorder)
    recorder.called.clear()
    recorder.fails_at = ""
    run(module, monkeypatch, tmp_path)
    assert trained(recorder) == [("answer-seed1", 40), ("answer-seed1", 60)] and ("answer-seed1", 40) in first
    assert not [
        command
        for command in recorder.called
        if command[:2] == ("train", "sft") or command[0].endswith("copying.py")
    ]
