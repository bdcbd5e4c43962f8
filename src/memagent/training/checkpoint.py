"""Checkpoints: the state that the rest of a run depends on, in files that are written atomically."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch

from memagent.errors import SettingsError, reason
from memagent.storage import write_in_place

_NAME = re.compile(r"step-(\d+)\.pt")
FOLDER = "checkpoints"


def save(run: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write the state after `step` steps and delete all but the newest `keep`. Raises `SettingsError`."""
    path = run / FOLDER / f"step-{step:06d}.pt"
    write(path, state)
    for old in _list_checkpoints(run)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a file of tensors atomically. Raises `SettingsError` if it cannot be written.

    Deletes partial files left by a killed run, which may be as large as a checkpoint.
    """
    for left in path.parent.glob(".*.pt.*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with write_in_place(path) as place:
            torch.save(state, place)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {reason(error)}") from error
    except RuntimeError as error:  # torch does not say why
        raise SettingsError(f"{path} cannot be written, perhaps because the disk is full: {error}") from error


def newest(run: Path) -> Path | None:
    """The checkpoint that a run continues from, or None."""
    found = _list_checkpoints(run)
    return found[-1] if found else None


def load(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, on the CPU. Raises `SettingsError` if it cannot be read."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise zip, pickle or torch errors
        raise SettingsError(
            f"{path} is not a checkpoint ({error}): remove it to continue from an older one"
        ) from error
    copying = state.get("settings", {}).get("copying")
    if copying and not copying["steps"]:  # a stage that older runs name, and few had
        del state["settings"]["copying"], state["position"]["copying_steps"]
    return state


def _list_checkpoints(run: Path) -> list[Path]:
    folder = run / FOLDER
    named = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return [path for _, path in sorted((int(found[1]), path) for found, path in named if found)]
