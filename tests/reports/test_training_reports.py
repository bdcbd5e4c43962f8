"""Reports on hand-made training runs: every number worked out by hand, every picture looked into."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memagent import SettingsError
from memagent.reports.curves import Point, curve, load_runs, score_curve, smoothed, stem
from memagent.reports.measures import STAGES
from memagent.reports.training import as_json, as_markdown, write_report
from memagent.training.metrics import open_metrics
from memagent.training.settings import LossSettings, PolicySettings, TrainingSettings

DOCS = Path(__file__).parent.parent.parent / "docs" / "training.md"
Change = Callable[[int], dict[str, float]]


def step(number: int) -> dict[str, float]:
    """Every training metric at a step, all different."""
    values = {name: (place + 1) * 0.01 * number for place, name in enumerate(STAGES["training"])}
    values |= {"reward": number / 10, "failed": 1.0, "failed_cut": number % 2}
    return values | {"rollout_seconds": 60.0, "update_seconds": 30.0}


def run(
    folder: Path, steps: int = 4, settings: TrainingSettings | None = None, change: Change = lambda _: {}
) -> Path:
    """A run with an evaluation before it and after each second step."""
    with open_metrics(folder, (settings or TrainingSettings(steps=4)).recorded()) as metrics:
        metrics.write("evaluation", 0, {"score": 10.0, "half_width": 4.0, "failed": 0.0, "count": 64.0})
        for number in range(1, steps + 1):
            metrics.write("training", number, step(number) | change(number))
            if number % 2 == 0:
                score = {"score": min(20.0 * number, 98.0), "half_width": 5.0, "failed": 0.0, "count": 64.0}
                metrics.write("evaluation", number, score)
    return folder


def told(*folders: Path) -> tuple[str, dict[str, Any]]:
    """What is written, without the pictures."""
    runs = load_runs(folders)
    return as_markdown(runs, {}), json.loads(as_json(runs))


def test_the_numbers_are_those_worked_by_hand(tmp_path: Path) -> None:
    text, data = told(run(tmp_path / "reader", change=lambda number: {"reward": 0.9} if number == 3 else {}))
    assert "- reader: the embedded model, 4 of 4 steps. 4 attempts failed, and count as 0: " in text
    assert "count as 0: 2 without an answer at its limit of tokens, 2 with an empty one." in text
    assert "| reader | 0:06:00 | 0.100 | 0.900 (step 3) | 0.400 | 10.0 | 80.0 (step 4) | 80.0 ± 5.0 |" in text
    assert "| reward | 0.1 → 0.4 |" in text and "| updates cut, % | 13 → 52 |" in text
    assert "| held out: examples | 64 → 64 |" in text
    assert data["runs"]["reader"]["reward"] == {
        "first": 0.1, "best": 0.9, "best_step": 3, "last": 0.4, "last_step": 4,
    }  # fmt: skip
    assert data["runs"]["reader"]["seconds"] == 360.0
    curves = {(it["stage"], it["measure"]): it["points"] for it in data["curves"]}
    assert curves["evaluation", "score"] == [
        [0, 10.0, 6.0, 14.0],
        [2, 40.0, 35.0, 45.0],
        [4, 80.0, 75.0, 85.0],
    ]
    assert [point[1] for point in curves["training", "reward"]] == [0.1, 0.2, 0.9, 0.4]


def test_settings_that_differ_from_the_defaults_are_told(tmp_path: Path) -> None:
    settings = TrainingSettings(steps=4, policy=PolicySettings(model="a/b", lora_rank=8))
    other = settings.changed(loss=LossSettings(credit="answer"))
    text, _ = told(run(tmp_path / "one", settings=settings), run(tmp_path / "two", settings=other))
    table = text.partition("## Settings")[2].partition("##")[0]
    assert [line for line in table.splitlines() if line][2:] == [
        "| steps | 100 | 4 | 4 |",
        "| policy.model | – | a/b | a/b |",
        "| policy.lora_rank | 0 | 8 | 8 |",
        "| loss.credit | trajectory | trajectory | answer |",
    ]
    text, _ = told(run(tmp_path / "plain", settings=TrainingSettings()))
    assert "All are the defaults." in text


def test_seeds_of_one_name_are_one_curve(tmp_path: Path) -> None:
    folders = [
        run(tmp_path / f"tiny-seed{seed}", settings=TrainingSettings(steps=4, seed=seed), change=change)
        for seed, change in enumerate(
            (lambda _: {"reward": 0.2}, lambda _: {"reward": 0.6}, lambda _: {"reward": 0.7})
        )
    ]
    runs = load_runs(folders)
    assert {it.series for it in runs} == {"tiny"}
    assert curve(runs, "training", "reward")[0] == Point(1, 0.5, 0.2, 0.7)
    assert score_curve(runs)[0] == Point(0, 10.0, 10.0, 10.0)
    text, data = told(*folders)
    assert "| seed | 0 | 0, 1, 2 |" in text and "| reward | 0.5 → 0.5 |" in text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| tiny-seed")] == [
        "| tiny-seed0", "| tiny-seed1", "| tiny-seed2",
    ]  # fmt: skip
    assert {it["series"] for it in data["curves"]} == {"tiny"}


def test_a_run_given_twice_is_no_second_seed(tmp_path: Path) -> None:
    folder = run(tmp_path / "tiny-seed0")
    assert [it.series for it in load_runs([folder, folder / ".." / folder.name])] == ["tiny-seed0"]


def test_a_seed_alone_keeps_its_name_and_equal_names_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [run(Path(name)) for name in ("tiny-seed3", "a/reader", "b/reader")]
    assert [it.series for it in load_runs(folders)] == ["tiny-seed3", "a/reader", "b/reader"]
    monkeypatch.chdir("a/reader")
    assert load_runs([Path()])[0].name == "reader"
    assert [stem(name) for name in ("a-seed12", "a_seed_1", "a-seed", "seedling")] == [
        "a",
        "a",
        "a-seed",
        "seedling",
    ]


def test_a_run_under_way_is_called_so_and_its_torn_line_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path / "reader", steps=3)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    text, _ = told(folder)
    assert "2 of 4 steps. **Not finished: 2 steps are missing.**" in text


def test_what_is_not_a_number_is_left_out_of_curves(tmp_path: Path) -> None:
    folder = run(tmp_path / "reader", change=lambda number: {"loss": math.nan} if number == 2 else {})
    assert [it.step for it in curve(load_runs([folder]), "training", "loss")] == [1, 3, 4]
    json.loads(told(folder) and as_json(load_runs([folder])), parse_constant=pytest.fail)


def test_smoothing_is_a_centred_mean() -> None:
    assert smoothed([1.0, 2.0, 6.0, 4.0], 3) == [1.5, 3.0, 4.0, 5.0]
    assert smoothed([1.0, 2.0], 1) == [1.0, 2.0] and smoothed([], 3) == []


def test_a_warm_start_and_a_run_without_evaluation_have_a_report(tmp_path: Path) -> None:
    with open_metrics(tmp_path / "warm", TrainingSettings().recorded()) as metrics:
        metrics.write("warm_start", 1, {"loss": 2.5, "tokens": 16000.0, "update_seconds": 3.0})
        metrics.write(
            "warm_start", 2, {"loss": 1.5, "tokens": 17000.0, "update_seconds": 3.0, "new_thing": 1.0}
        )
    text, _ = told(tmp_path / "warm")
    assert "| warm | 0:00:06 | – | – | – | – | – | – |" in text
    assert "| warm start: trained on, tokens | 16,000 → 17,000 |" in text
    assert "| warm start: new thing | 1 → 1 |" in text
    written = write_report([tmp_path / "warm"], tmp_path / "out")
    if any(path.suffix == ".png" for path in written):
        assert [path.name for path in written][2:] == ["warm_start.png"]


def test_pictures_are_drawn_and_named_in_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = write_report([run(tmp_path / "one"), run(tmp_path / "two", steps=2)], tmp_path / "out")
    pictures = [path for path in files if path.suffix == ".png"]
    assert [path.stem for path in pictures] == [
        "reward", "held-out_score", "optimisation", "clipping", "memory", "groups", "speed",
    ]  # fmt: skip
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    for path in pictures:
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert data.startswith(b"\x89PNG") and width > 600 and height > 400
        assert f"]({path.name})" in text


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
def test_all_that_is_drawn_lies_inside_its_panel(tmp_path: Path, figures: dict[str, Any], steps: int) -> None:
    names = ("reader", "tiny-seed0", "tiny-seed1")
    write_report([run(tmp_path / name, steps=steps) for name in names], tmp_path / "out")
    lines = [(panel, line) for it in figures.values() for panel in it.axes for line in panel.lines]
    assert len(figures) == 7 and len(lines) >= 40
    for panel, line in lines:
        low, high = panel.get_ylim()
        assert all(low <= value <= high for value in line.get_ydata()), panel.get_title("left")


def test_shares_are_drawn_in_percent_and_seeds_as_a_mean(tmp_path: Path, figures: dict[str, Any]) -> None:
    for name, cut in (("a-seed0", 0.1), ("a-seed1", 0.3), ("b", 0.5)):
        run(tmp_path / name, change=lambda _, cut=cut: {"cut": cut})  # type: ignore[misc]
    write_report([tmp_path / name for name in ("a-seed0", "a-seed1", "b")], tmp_path / "out")
    panel = next(it for it in figures["memory"].axes if "cut" in it.get_title("left"))
    assert {it.get_label(): list(it.get_ydata()) for it in panel.lines} == {
        "a": pytest.approx([20.0] * 4), "b": pytest.approx([50.0] * 4),
    }  # fmt: skip
    assert [text.get_text() for text in figures["memory"].legends[0].get_texts()] == ["a", "b"]


def test_the_same_metrics_give_the_same_report(tmp_path: Path) -> None:
    with open_metrics(tmp_path / "reader", TrainingSettings().recorded()) as metrics:
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
    (tmp_path / "empty" / "settings.json").write_text("[1]")
    with pytest.raises(SettingsError, match="holds no settings"):
        write_report([tmp_path / "empty"], tmp_path / "out")


def test_the_docs_name_every_metric() -> None:
    section = DOCS.read_text("utf-8").partition("## Watching a run")[2].partition("\n## ")[0]
    tables = section.split("| metric | meaning |")[1:]
    named = [re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for table in tables]
    found = [[name for cell in cells for name in re.findall(r"`(\w+)`", cell)] for cells in named]
    assert found == [list(STAGES[stage]) for stage in ("training", "warm_start", "evaluation")]
