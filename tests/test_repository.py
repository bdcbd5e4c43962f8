"""What stands beside the package says the same as the package: versions, the MCP entry, llms.txt."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memagent.cli import main

ROOT = Path(__file__).parent.parent
SERVER = json.loads((ROOT / "server.json").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_versions_agree() -> None:
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    packages = [package["version"] for package in SERVER["packages"]]
    assert cited and {SERVER["version"], *packages, *cited} == {PROJECT["version"]}


def test_the_registry_s_entry_starts_the_server_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    package = SERVER["packages"][0]
    extra = re.fullmatch(rf"{PROJECT['name']}\[(\w+)\]", package["runtimeArguments"][0]["value"])
    assert package["identifier"] == PROJECT["name"] in PROJECT["scripts"]
    assert extra and extra[1] in PROJECT["optional-dependencies"]
    assert len(SERVER["description"]) <= 100  # as the registry demands
    assert f"mcp-name: {SERVER['name']} " in (ROOT / "README.md").read_text("utf-8")  # the proof of ownership
    command, *flags = package["packageArguments"]
    main([command["value"], "--help-all"])
    known = capsys.readouterr().out
    assert {flag["name"] for flag in flags if f"{flag['name']} " not in known} == set()


def test_llms_txt_is_up_to_date() -> None:
    process = subprocess.run(
        [sys.executable, "-c", "import llms; print(llms.index(), end='')"],
        cwd=ROOT / "docs", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert (ROOT / "llms.txt").read_text("utf-8") == process.stdout, "run python docs/llms.py"


@pytest.mark.parametrize("command", ["memagent", "python -m memagent"])
def test_the_version_is_told(command: str) -> None:
    words = [str(Path(sys.executable).parent / "memagent")]
    if command != "memagent":
        words = [sys.executable, "-m", "memagent"]
    output = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True).stdout
    assert output == f"memagent {PROJECT['version']}\n"
