"""Metrics on disk: the lines, what a crash and a resumed run leave of them, and the trackers."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from memagent.errors import SettingsError
from memagent.storage import Log
from memagent.training.metrics import MetricsRow, open_metrics, read_metrics

SETTINGS = {"steps": 3, "loss": {"kl_weight": 0.001}}


@pytest.fixture(autouse=True)
def no_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither package, whatever is installed here; a test that wants one brings it back."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)


def write(folder: Path, steps: range, offset: int | None = None) -> int:
    with open_metrics(folder, SETTINGS, offset) as metrics:
        for step in steps:
            metrics.write("training", step, {"reward": step / 10, "groups": 16})
        return metrics.position()


def test_a_line_a_step_and_the_settings_beside(tmp_path: Path) -> None:
    end = write(tmp_path / "a" / "run", range(1, 3))
    path = tmp_path / "a" / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [{name: value for name, value in line.items() if name != "crc32"} for line in lines] == [
        {"stage": "training", "step": 1, "reward": 0.1, "groups": 16.0},
        {"stage": "training", "step": 2, "reward": 0.2, "groups": 16.0},
    ]
    assert end == path.stat().st_size
    assert json.loads((path.parent / "settings.json").read_text("utf-8")) == SETTINGS


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    assert read_metrics(tmp_path) == [
        MetricsRow("training", 1, {"reward": 0.1, "groups": 16.0}),
        MetricsRow("training", 2, {"reward": 0.2, "groups": 16.0}),
    ]


def test_a_line_may_name_the_haystack(tmp_path: Path) -> None:
    with open_metrics(tmp_path, SETTINGS) as metrics:
        metrics.write("evaluation", 1, {"score": 50}, "essays, sha256 1")
    assert json.loads((tmp_path / "metrics.jsonl").read_text("utf-8"))["haystack"] == "essays, sha256 1"
    assert read_metrics(tmp_path) == [MetricsRow("evaluation", 1, {"score": 50})]


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with open_metrics(tmp_path, SETTINGS) as metrics:
        metrics.write("warm_start", 1, {"loss": 2.5})
        assert read_metrics(tmp_path) == [MetricsRow("warm_start", 1, {"loss": 2.5})]


def test_a_loss_that_blew_up_is_valid_json(tmp_path: Path) -> None:
    with open_metrics(tmp_path, SETTINGS) as metrics:
        metrics.write("training", 1, {"loss": math.nan, "kl": math.inf})
    line = (tmp_path / "metrics.jsonl").read_text("utf-8")
    row = json.loads(line, parse_constant=pytest.fail)
    assert (row["loss"], row["kl"]) == (None, None)
    assert math.isnan(read_metrics(tmp_path)[0].values["loss"])


def test_a_resumed_run_has_the_lines_of_one_that_went_through(tmp_path: Path) -> None:
    write(tmp_path / "through", range(1, 6))
    end = write(tmp_path / "killed", range(1, 3))
    write(tmp_path / "killed", range(3, 5), end)
    with (tmp_path / "killed" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"stage": "training", "st')
    write(tmp_path / "killed", range(3, 6), end)
    through, killed = (tmp_path / name / "metrics.jsonl" for name in ("through", "killed"))
    assert killed.read_bytes() == through.read_bytes()


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    path = tmp_path / "metrics.jsonl"
    for cut in (1, 20):
        path.write_bytes(path.read_bytes()[:-cut])
        assert [row.step for row in read_metrics(tmp_path)] == [1]


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"stage": "training", "step": 2}\n', b"[]\n"])
def test_a_damaged_line_is_an_error(tmp_path: Path, line: bytes) -> None:
    write(tmp_path, range(1, 2))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(line + b"{")
    with pytest.raises(SettingsError, match=r"metrics\.jsonl, line 2: not written by memagent"):
        read_metrics(tmp_path)


def test_a_log_of_something_else_is_an_error(tmp_path: Path) -> None:
    with Log(tmp_path / "metrics.jsonl") as log:
        log.append({"stage": "training"})
    with pytest.raises(SettingsError, match=r"metrics\.jsonl has a line that is not a row of memagent train"):
        read_metrics(tmp_path)


def test_a_folder_without_metrics_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a folder of memagent train"):
        read_metrics(tmp_path / "nothing")


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    write(tmp_path, range(1, 2))
    refused = pytest.raises(SettingsError, match="holds a training run: use `resume`")
    with refused, open_metrics(tmp_path, SETTINGS):
        pass
    assert len(read_metrics(tmp_path)) == 1


def test_a_file_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path) -> None:
    end = write(tmp_path, range(1, 2))
    message = f"has {end} bytes, {end + 1} when"
    with pytest.raises(SettingsError, match=message), open_metrics(tmp_path, SETTINGS, end + 1):
        pass
    assert (tmp_path / "metrics.jsonl").stat().st_size == end


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(SettingsError, match="cannot be written")
    with refused, open_metrics(tmp_path / "file" / "run", SETTINGS):
        pass


def test_without_the_packages_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, range(1, 2))
    assert not caplog.records and sorted(path.name for path in tmp_path.iterdir()) == [
        "metrics.jsonl",
        "settings.json",
    ]


def test_tensorboard_has_each_step_of_a_resumed_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorboard")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    end = write(tmp_path, range(1, 3))
    write(tmp_path, range(3, 5), end)
    write(tmp_path, range(3, 6), end)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    scalars = [(event.step, pytest.approx(event.value)) for event in events.Scalars("training/reward")]
    assert scalars == [(step, step / 10) for step in range(1, 6)]
    assert set(events.Tags()["scalars"]) == {"training/reward", "training/groups"}


class FakeRun:
    """What `wandb.init` returns, as far as it is used."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.axes: list[tuple[str, str]] = []
        self.finished = False

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes.append((name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FakeRun, dict[str, Any]]]:
    """A stand-in for the package; the runs that were started with it, and how."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    started: list[tuple[FakeRun, dict[str, Any]]] = []

    def init(**options: Any) -> FakeRun:
        started.append((FakeRun(), options))
        return started[-1][0]

    module: Any = ModuleType("wandb")
    module.init, module.Settings = init, SimpleNamespace
    monkeypatch.setitem(sys.modules, "wandb", module)
    return started


def test_wandb_gets_the_rows_and_stays_offline_without_a_key(
    tmp_path: Path, wandb: list[tuple[FakeRun, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = write(tmp_path / "run", range(1, 3))
    monkeypatch.setenv("WANDB_API_KEY", "key")
    write(tmp_path / "run", range(3, 4), end)
    (first, options), (second, again) = wandb
    assert first.axes == [("training/*", "training/step")] and first.finished
    assert first.logged[0] == {"training/step": 1, "training/reward": 0.1, "training/groups": 16}
    assert (options["mode"], again["mode"]) == ("offline", None)  # None: as the package finds right
    assert options["config"] == SETTINGS and options["name"] == "run"
    assert options["id"] == again["id"] and [row["training/step"] for row in second.logged] == [3]


def test_a_failing_wandb_is_reported_once_and_not_used_again(
    tmp_path: Path,
    wandb: list[tuple[FakeRun, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(self: FakeRun, values: dict[str, float]) -> None:
        raise RuntimeError("no space left")

    monkeypatch.setattr(FakeRun, "log", full)
    with caplog.at_level(logging.WARNING, "memagent"):
        write(tmp_path, range(1, 4))
    assert [record.getMessage() for record in caplog.records] == [
        "W&B is turned off: RuntimeError: no space left"
    ]
    assert len(read_metrics(tmp_path)) == 3
