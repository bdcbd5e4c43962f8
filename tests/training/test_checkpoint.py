"""Checkpoints: whole or not there, the newest ones, and what is said of one that cannot be used."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memagent.errors import SettingsError  # noqa: E402
from memagent.training.run import (  # noqa: E402
    CHECKPOINTS,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    write_tensors,
)


def state(step: int) -> dict[str, Any]:
    return {"progress": {"step": step}, "weights": torch.full((3,), float(step))}


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / CHECKPOINTS).iterdir())


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 7, state(7), keep=2)
    assert path == newest_checkpoint(tmp_path)
    loaded = load_checkpoint(path)
    assert loaded["progress"] == {"step": 7} and torch.equal(loaded["weights"], torch.full((3,), 7.0))


def test_the_newest_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    write_tensors(tmp_path / CHECKPOINTS / "reference.pt", {})
    for step in (999_998, 999_999, 1_000_000):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    assert names(tmp_path) == ["reference.pt", "step-1000000.pt", "step-999999.pt"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest.name == "step-1000000.pt", "by number, not by name"


def test_a_folder_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") is None
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / CHECKPOINTS / ".step-000001.pt.part").touch()
    assert newest_checkpoint(tmp_path) is None


def test_a_kill_while_writing_leaves_the_last_whole_one(tmp_path: Path) -> None:
    class Kill:
        def __reduce__(self) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    save_checkpoint(tmp_path, 1, state(1), keep=1)
    if not (process := os.fork()):
        save_checkpoint(tmp_path, 2, {"weights": torch.zeros(1000), "kill": Kill()}, keep=1)
    os.waitpid(process, 0)
    assert [name[:16] for name in names(tmp_path)] == [".step-000002.pt.", "step-000001.pt"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and load_checkpoint(newest)["progress"] == {"step": 1}
    save_checkpoint(tmp_path, 2, state(2), keep=1)
    assert names(tmp_path) == ["step-000002.pt"], "what was left half written is deleted"


@pytest.mark.parametrize("size", [0, 10, 400, 1400])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, size: int) -> None:
    path = save_checkpoint(tmp_path, 1, state(1), keep=1)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SettingsError, match=r"step-000001.pt is not a checkpoint .*remove it to continue"):
        load_checkpoint(path)


def test_a_file_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return print, ("run",)

    path = save_checkpoint(tmp_path, 1, {"code": Code()}, keep=1)
    with pytest.raises(SettingsError, match="is not a checkpoint"):
        load_checkpoint(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).touch()
    with pytest.raises(SettingsError, match=r"step-000001\.pt cannot be written"):
        save_checkpoint(tmp_path, 1, state(1), keep=1)


def test_a_full_disk_is_named_and_leaves_the_last_whole_one(tmp_path: Path) -> None:
    last = save_checkpoint(tmp_path, 1, state(1), keep=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # as if there were no more room
    try:
        with pytest.raises(SettingsError, match=r"step-000002\.pt cannot be written, perhaps .* is full"):
            save_checkpoint(tmp_path, 2, {"weights": torch.zeros(1_000_000)}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == [last.name] and load_checkpoint(last)["progress"] == {"step": 1}
