"""In place of the commands that presets/small runs: they are recorded, and their files made at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from types import ModuleType

import pytest

from memagent.training.data import load_function

Command = tuple[str, ...]


class Commands:
    """Records each command and has `make` write what it would; one whose output is `fails_at` fails."""

    def __init__(self, make: Callable[[Command, Path], None]) -> None:
        self._make = make
        self.called: list[Command] = []
        self.fails_at = ""

    def __call__(self, *words: object) -> None:
        command = tuple(map(str, words[2:] if words[0] == "-m" else words))
        self.called.append(command)
        out = Path(command[command.index("--out") + 1])
        if self.fails_at and self.fails_at in str(out):
            raise SystemExit(1)
        self._make(command, out)


def load_script(name: str, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script of that name in presets/small, which runs these commands."""
    path = Path(__file__).parents[1] / "presets" / "small" / name
    module = sys.modules[load_function(f"{path}:main").__module__]
    for function in [*vars(module).values()]:  # those that it shares with another script look there
        if isfunction(function) and "python" in function.__globals__:
            monkeypatch.setitem(function.__globals__, "python", commands)
    return module
