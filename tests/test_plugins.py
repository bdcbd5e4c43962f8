"""A package of somebody else adds a workflow, a format and an engine, as ours are added."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memagent.plugins import load_all
from memagent.reading.workflows import workflows

PACKAGE = Path(__file__).parent / "plugin"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the package as pip would lay it out; nothing else is there."""
    folder = tmp_path / "site"
    about = folder / "skim-0.1.dist-info"
    about.mkdir(parents=True)
    shutil.copy(PACKAGE / "skim.py", folder)
    groups = tomllib.loads((PACKAGE / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: skim\nVersion: 0.1\n", "utf-8")
    return folder


def memagent(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memagent", *words]
    paths = filter(None, (str(installed), os.environ.get("PYTHONPATH")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=installed.parent
    )


def test_it_reads_and_resumes_with_its_own_settings(installed: Path) -> None:
    (installed.parent / "a.shout").write_text(
        "\n\n".join(f"THE LAMP IS {n}. " * 12 for n in range(9)), "utf-8"
    )
    words = ["ask", "Which lamp?", "a.shout", "--engine", "parrot", "--model", "Polly", "--workflow", "skim",
             "--every", "3", "--chunk-tokens", "50", "--trace", "read.jsonl", "--json"]  # fmt: skip
    stopped = memagent(installed, *words, "--max-calls", "2")
    assert stopped.returncode == 3, stopped.stderr
    done = memagent(installed, *words, "--resume")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["workflow"] == "skim" and result["answer"].startswith("Polly saw")
    assert result["calls"] == -(-result["chunks"] // 3) + 1 > 3
    lines = [json.loads(line) for line in (installed.parent / "read.jsonl").read_text("utf-8").splitlines()]
    assert lines[0]["every"] == 3
    assert next(line["memory"] for line in lines if line["type"] == "conversation") > "Polly saw 0", (
        "it is not loud"
    )
    other = memagent(installed, *words, "--resume", "--every", "2")
    assert other.returncode != 0 and "every" in other.stderr


def test_it_stands_in_the_help_and_is_checked_as_ours_are(installed: Path) -> None:
    help_text = " ".join(memagent(installed, "ask", "--help-all").stdout.split())
    assert "--every N which chunks skim reads: every 2nd, every 3rd ... (2)" in help_text
    assert "skim" in help_text and "parrot" in help_text
    wrong = memagent(installed, "ask", "Which?", "skim.py", "--every", "0")
    assert wrong.returncode == 2 and "every is 0: it must be above 0" in wrong.stderr


def test_one_that_fails_is_left_out_with_a_warning(installed: Path) -> None:
    (installed / "skim.py").write_text("raise RuntimeError('too old')", "utf-8")
    done = memagent(installed, "doctor")
    assert "skim of the package skim cannot be loaded (RuntimeError: too old)" in " ".join(
        done.stderr.split()
    )
    assert done.returncode != 1, "no defect"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("WORKFLOW = None", "TypeError: skim:WORKFLOW is a NoneType without run"),
        ("raise SystemExit(9)", "SystemExit: 9"),
    ],
)
def test_one_that_is_none_or_ends_the_program_is_left_out_with_a_warning(
    code: str, why: str, installed: Path
) -> None:
    (installed / "skim.py").write_text(code, "utf-8")
    done = memagent(installed, "ask", "--help-all")
    assert f"skim of the package skim cannot be loaded ({why})" in " ".join(done.stderr.split())
    assert done.returncode == 0 and "evidence" in done.stdout


@pytest.mark.slow
def test_the_version_loads_none(installed: Path) -> None:
    (installed / "skim.py").write_text("raise SystemExit(9)", "utf-8")
    done = memagent(installed, "--version")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("memagent ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cite", "model", "passages"])
def test_one_whose_setting_is_named_as_ours_is_left_out_with_a_warning(name: str, installed: Path) -> None:
    code = (installed / "skim.py").read_text("utf-8")
    (installed / "skim.py").write_text(code.replace("every: Positive", f"{name}: Positive"), "utf-8")
    done = memagent(installed, "ask", "--help")
    assert done.returncode == 0
    assert f"the workflow skim is left out: its setting {name} is another's" in " ".join(done.stderr.split())
    assert "which chunks skim reads" not in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_format_named_as_ours_is_left_out_with_a_warning(installed: Path) -> None:
    points = next(installed.glob("*.dist-info")) / "entry_points.txt"
    points.write_text(points.read_text("utf-8").replace("shout =", "txt ="), "utf-8")
    (installed.parent / "a.txt").write_text("THE LAMP IS 4.", "utf-8")
    done = memagent(installed, "text", "a.txt")
    assert done.stdout == "THE LAMP IS 4."
    assert "the format txt of the package skim:read_shout is left out" in " ".join(done.stderr.split())


def test_none_is_missing_and_all_of_ours_are_declared() -> None:
    declared = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"][
        "entry-points"
    ]
    assert set(declared["memagent.workflows"]) == set(workflows())
    assert set(declared["memagent.engines"]) <= set(load_all("engines")) | {"transformers"}


def test_the_page_shows_this_package() -> None:
    page = (PACKAGE.parents[1] / "docs" / "plugins.md").read_text("utf-8")
    code = (PACKAGE / "skim.py").read_text("utf-8")
    snippet = page.partition("# skim.py\n")[2].partition("```")[0]
    assert "async def skim(" in snippet and snippet.partition("\n\n\n")[2] in code
