"""Reports on hand-made training runs: every number worked out by hand, the picture looked into."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memagent import SettingsError
from memagent.reports.training import as_json, as_markdown, load_runs, smooth, write_report
from memagent.training.metrics import open_metrics
from memagent.training.settings import PolicySettings, TrainingSettings

Change = Callable[[int], dict[str, float]]


def step(number: int) -> dict[str, float]:
    """The metrics of a training step."""
    values = {
        "reward": number / 10,
        "loss": 0.01 * number,
        "failed": 1.0,
        "failed_cut": number % 2,
        "equal_groups": 0.5,
    }
    return values | {"rollout_seconds": 60.0, "update_seconds": 30.0}


def run(
    folder: Path, steps: int = 4, settings: TrainingSettings | None = None, change: Change = lambda _: {}
) -> Path:
    """A run with an evaluation before it and after each second step."""
    with open_metrics(folder, (settings or TrainingSettings(steps=4)).record()) as metrics:
        metrics.write("evaluation", 0, {"score": 10.0, "half_width": 4.0, "failed": 0.0, "count": 64.0})
        for number in range(1, steps + 1):
            metrics.write("training", number, step(number) | change(number))
            if number % 2 == 0:
                score = {"score": min(20.0 * number, 98.0), "half_width": 5.0, "failed": 0.0, "count": 64.0}
                metrics.write("evaluation", number, score)
    return folder


def render(*folders: Path) -> tuple[str, dict[str, Any]]:
    """What is written, without the pictures."""
    runs = load_runs(folders)
    return as_markdown(runs, {}), json.loads(as_json(runs))


def test_the_numbers_are_those_worked_by_hand(tmp_path: Path) -> None:
    text, data = render(
        run(tmp_path / "reader", change=lambda number: {"reward": 0.9} if number == 3 else {})
    )
    assert "- reader: the default model, 4 of 4 steps. 4 attempts failed, and count as 0: 2 of them" in text
    assert "| reader | 0:06:00 | 0.100 | 0.900 (step 3) | 0.400 | 10.0 | 80.0 (step 4) | 80.0 ± 5.0 |" in text
    assert data["runs"]["reader"]["reward"] == {
        "first": 0.1, "best": 0.9, "best_step": 3, "last": 0.4, "last_step": 4,
    }  # fmt: skip
    assert data["runs"]["reader"]["seconds"] == 360.0
    assert data["runs"]["reader"]["settings"]["steps"] == 4


def test_several_tasks_have_a_table_of_their_own(tmp_path: Path) -> None:
    def by_task(number: int) -> dict[str, float]:
        return {f"reward/{task}": number / 4 for task in "ab"} | {
            f"equal_groups/{task}": 0.25 for task in "ab"
        }

    text, data = render(run(tmp_path / "reader", change=by_task))
    assert "| reader | a | 0.250 | 1.000 (step 4) | 1.000 | 0.25 | 0.25 (step 1) | 0.25 |" in text
    assert data["runs"]["reader"]["tasks"]["b"]["reward"]["last"] == 1.0
    assert "equal groups" not in render(run(tmp_path / "other"))[0]


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    folder = run(tmp_path / "tiny")
    assert [training.name for training in load_runs([folder, folder / ".." / folder.name])] == ["tiny"]


def test_runs_of_one_name_have_those_of_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [run(Path(name)) for name in ("tiny", "a/reader", "b/reader")]
    assert [training.name for training in load_runs(folders)] == ["tiny", "a/reader", "b/reader"]
    monkeypatch.chdir("a/reader")
    assert load_runs([Path()])[0].name == "reader"


def test_a_model_is_named_with_its_run(tmp_path: Path) -> None:
    settings = TrainingSettings(steps=4, policy=PolicySettings(model="a|b"))
    assert "- one: a\\|b, 4 of 4 steps." in render(run(tmp_path / "one", settings=settings))[0]


def test_a_run_under_way_is_called_so_and_its_torn_line_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path / "reader", steps=3)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    text, _ = render(folder)
    assert "2 of 4 steps. **Not finished: 2 steps are missing.**" in text


def test_what_is_not_a_number_is_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path / "reader", change=lambda number: {"reward": math.nan} if number == 2 else {})
    assert list(load_runs([folder])[0].values("training", "reward")) == [1, 3, 4]
    json.loads(as_json(load_runs([folder])), parse_constant=pytest.fail)


def test_smoothing_is_a_centred_mean() -> None:
    assert smooth([1.0, 2.0, 6.0, 4.0], 3) == [1.5, 3.0, 4.0, 5.0]
    assert smooth([1.0, 2.0], 1) == [1.0, 2.0] and smooth([], 3) == []


def test_a_warm_start_and_a_run_without_evaluation_have_a_report(tmp_path: Path) -> None:
    with open_metrics(tmp_path / "warm", TrainingSettings().record()) as metrics:
        metrics.write("warm_start", 1, {"loss": 2.5, "tokens": 16000.0, "update_seconds": 3.0})
        metrics.write(
            "warm_start", 2, {"loss": 1.5, "tokens": 17000.0, "update_seconds": 3.0, "new_thing": 1.0}
        )
    text, _ = render(tmp_path / "warm")
    assert "| warm | 0:00:06 | – | – | – | – | – | – |" in text
    written = write_report([tmp_path / "warm"], tmp_path / "out")
    if any(path.suffix == ".png" for path in written):
        assert [path.name for path in written][2:] == ["training.png"]


def test_the_picture_is_drawn_and_named_in_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = write_report([run(tmp_path / "one"), run(tmp_path / "two", steps=2)], tmp_path / "out")
    assert [path.name for path in files] == ["report.json", "report.md", "training.png"]
    assert "![training](training.png)" in files[1].read_text("utf-8")
    data = files[2].read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG") and width > 600 and height > 400


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The figures that are saved, by the names of their files."""
    figure = pytest.importorskip("matplotlib.figure")
    saved: dict[str, Any] = {}
    monkeypatch.setattr(
        figure.Figure, "savefig", lambda self, path, **_: saved.setdefault(path.stem, self), raising=True
    )
    return saved


@pytest.mark.parametrize("steps", [1, 4, 120])
def test_every_run_has_a_line_of_rewards_and_one_of_scores(
    tmp_path: Path, figures: dict[str, Any], steps: int
) -> None:
    write_report([run(tmp_path / name, steps=steps) for name in ("a", "b")], tmp_path / "out")
    rewards, equal, scores = figures["training"].axes
    assert [axes.get_title("left") for axes in (rewards, equal, scores)] == [
        "Mean reward of a step's attempts", "Share of groups whose rewards are all equal",
        "Held-out score, % (band: 95% interval)",
    ]  # fmt: skip
    named = [line for line in rewards.lines if line.get_label() in ("a", "b")]
    assert [line.get_label() for line in named] == ["a", "b"]
    reward = [number / 10 for number in range(1, steps + 1)]
    assert list(named[0].get_ydata()) == pytest.approx(smooth(reward, 5 if steps == 120 else 1))
    assert len(rewards.lines) == (4 if steps == 120 else 2), "smooth lines have their values behind them"
    line = next(line for line in scores.lines if line.get_label() == "a")
    assert list(line.get_ydata())[:2] == ([10.0] if steps == 1 else [10.0, 40.0])
    assert [text.get_text() for text in figures["training"].legends[0].get_texts()] == ["a", "b"]


def test_the_same_metrics_give_the_same_report(tmp_path: Path) -> None:
    with open_metrics(tmp_path / "reader", TrainingSettings().record()) as metrics:
        metrics.write("training", 1, {"reward": 0.5, "new": 1.0, "other": 2.0})
    first, second = (write_report([tmp_path / "reader"], tmp_path / name) for name in ("one", "two"))
    assert len(first) >= 2
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_without_matplotlib_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files = write_report([run(tmp_path / "reader")], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "pip install -e '.[report]'" in text and "![" not in text
    assert sorted(path.name for path in files) == ["report.json", "report.md"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"settings\.json cannot be read"):
        write_report([tmp_path / "nothing"], tmp_path / "out")
    with open_metrics(tmp_path / "empty", {}):
        pass
    with pytest.raises(SettingsError, match="no step yet in empty"):
        write_report([tmp_path / "empty"], tmp_path / "out")
