"""The snippets of the README and the docs run, against a real server on loopback."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import memagent
from memagent.cli import main
from memagent.evaluation.rows import EvaluationRow
from memagent.reading.progress import Result
from memagent.runs.files import FileRow
from memagent.settings import settings_by_name
from memagent.strict import StrictModel
from memagent.training.settings import TrainingSettings, load_training
from memagent.types import Example, Spent
from server import Messages, Server

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [
    *sorted({*PAGES, *ROOT.glob("*.md")}),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "recipes").rglob("*.md")),
]
_MAX_LINE = 119
_VERBS = ("run", "sft", "collect", "export")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets(language: str) -> Iterator[object]:
    for page in PAGES:
        for number, (fence_language, code) in enumerate(_FENCE.findall(page.read_text("utf-8")), 1):
            if fence_language == language:
                yield pytest.param(code, id=f"{page.name}-{number}")


def commands(page: Path) -> Iterator[str]:
    """The memagent commands of the shell snippets that need nothing which only a user has."""
    for language, code in _FENCE.findall(page.read_text("utf-8")):
        for line in code.replace("\\\n", " ").splitlines() if language == "sh" else ():
            needs_a_user = "--model" in line or "--base-url" in line
            if re.search(r"(^|\| )memagent ", line) and not needs_a_user:
                yield line


def reply(messages: Messages) -> str:
    """A model that copies what it is to take a note on, and answers all questions alike."""
    match = re.search(r"<(text-\w+)>\n(.*?)\n</\1>", messages[-1]["content"], re.DOTALL)
    return match[2] if match else "a hat"


@pytest.fixture
def workplace(serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples, and an endpoint in the environment."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("OPENAI_BASE_URL", serve(reply).base_url)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("code", [*snippets("python")])
def test_python_snippets_run(code: str, workplace: Path) -> None:
    run_python(code)


def run_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name == "README.md" else pytest.mark.slow)
        for page in PAGES
        if [*commands(page)]
    ],
)
def test_a_page_runs_in_its_order(page: Path, workplace: Path) -> None:
    for line in commands(page):
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        stopped = 3 if "--max-calls" in line else 0
        assert done.returncode == stopped, f"{line}\n{done.stderr}"
        assert stopped or " diff " in line or done.stdout.strip(), line  # that memory is always the same
    for language, code in _FENCE.findall(page.read_text("utf-8")):
        if language == "python":
            run_python(code)


@pytest.mark.parametrize("code", [*snippets("toml")])
def test_toml_snippets_are_accepted(code: str, workplace: Path) -> None:
    keys = tomllib.loads(code).keys()
    if "rollout" in keys:
        Path("training.toml").write_text(code, "utf-8")
        load_training("training.toml")
        return
    flag = "--templates" if "update" in keys else "--config"
    Path("snippet.toml").write_text(code, "utf-8")
    command = [sys.executable, "-m", "memagent", "ask", "What?", "examples/blue_carbuncle.txt"]
    command += [flag, "snippet.toml", *(["--workflow", "overwrite"] if flag == "--templates" else [])]
    # The snippet's own endpoint is not there: the environment's wins over a file's.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def said_commands() -> Iterator[object]:
    """Every memagent command in the fences of all pages, those that need a user's things as well."""
    for page in ALL_PAGES:
        for language, code in _FENCE.findall(page.read_text("utf-8")):
            for line in code.replace("\\\n", " ").splitlines() if language in ("sh", "text", "bash") else ():
                for part in re.findall(r"(?:^|[|&] |-m )memagent ([a-z][^|&#]*)", line):
                    yield pytest.param(part.split(), id=f"{page.name}: {part[:60]}")


@cache
def known_flags(*command: str) -> set[str]:
    """The flags that the help of a command tells."""
    with redirect_stdout(io.StringIO()) as out:
        main([*command, "--help"])
    if "--help-all" in out.getvalue():
        with redirect_stdout(out):
            main([*command, "--help-all"])
    return {*re.findall(r"--[a-z0-9-]+", out.getvalue())}


@pytest.mark.parametrize("words", [*said_commands()])
def test_commands_and_their_flags_exist(words: list[str]) -> None:
    if words[0] == "train" and words[1] not in _VERBS:
        words = ["train", "run", *words[1:]]
    command = words[: 2 if words[0] in ("data", "models", "train", "notes") else 1]
    assert {word for word in words if word.startswith("--")} <= known_flags(*command)


def test_every_command_is_on_the_page_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for group in ([], ["data"], ["models"], ["notes"], ["train"]):
        main([*group, "--help"])
        for name in re.findall(r"^  ([a-z]+)  ", capsys.readouterr().out.partition("Commands:")[2], re.M):
            assert f"`{' '.join([*group, name])}" in page


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", _FENCE.sub("", page.read_text("utf-8"))):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_short_but_for_tables(page: Path) -> None:
    lines = enumerate(page.read_text("utf-8").splitlines(), 1)
    assert [number for number, line in lines if len(line) > _MAX_LINE and line[0] != "|"] == []


def test_every_setting_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    for name, (_, setting) in settings_by_name().items():
        default = f"`{setting.default}`" if setting.default not in (None, "") else ""
        default = default.lower() if isinstance(setting.default, bool) else default
        row = f"| `{name}` | {default} | {setting.description} |"
        assert row in page, f"docs/settings.md lacks this row:\n{row}"


def test_settings_that_are_gone_are_not_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(settings_by_name())


def test_every_field_of_a_journal_is_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "file-formats.md").read_text("utf-8")
    engine = memagent.ScriptedEngine(lambda messages: "MEMORY\na hat")
    settings = memagent.Settings(read=memagent.ReadSettings(workflow="gated"))
    trace = tmp_path / "journal.jsonl"
    memagent.read("Who?", memagent.text_document("A hat."), engine=engine, trace=trace, settings=settings)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert {line["type"] for line in lines} == {"header", "reply", "conversation", "answer"}
    assert {name for line in lines for name in line if f"`{name}`" not in page} == set()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("file-formats", Result),
        ("file-formats", Example),
        ("file-formats", FileRow),
        ("evaluation", EvaluationRow),
    ],
)
def test_every_field_is_documented(name: str, kind: type[Any]) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    names = {field.name for of in (kind, Spent) for field in fields(of)} - {"spent"}  # which is flattened
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_every_setting_of_training_is_documented() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    table = page.partition("| setting | default |")[2].partition("\n\n")[0]
    documented: set[str] = set()
    for row in table.splitlines()[2:]:
        part = ""
        for name in re.findall(r"`([\w.*]+)`", row.split("|")[1]):
            part, _, last = name.rpartition(".") if "." in name else (part, ".", name)
            documented.add(f"{part}.{last}".lstrip("."))
    known: set[str] = set()
    for name, setting in TrainingSettings.model_fields.items():
        inner = type(setting.default).model_fields if isinstance(setting.default, StrictModel) else ()
        whole = {f"{name}.*"} if name in ("engine", "read") else set()
        known |= whole or {f"{name}.{field}" for field in inner} or {name}
    assert documented == known


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    names = set(memagent.__all__) - {"__version__"}
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_there_are_snippets() -> None:
    assert len(list(snippets("python"))) >= 3 and sum(len(list(commands(page))) for page in PAGES) >= 5
