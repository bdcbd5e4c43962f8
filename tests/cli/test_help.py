"""The help of every command, and what a shell completes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fixtures import Capture, Patch
from memagent.cli import main
from memagent.errors import SettingsError
from memagent.settings import load_settings, settings_by_name

COMMANDS = [
    "ask", "show", "data", "data make", "data filter", "eval", "train", "report", "models", "models fetch",
    "doctor",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: Capture) -> None:
    assert main([*command.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: memagent {command}") and err == ""


def options(listing: str) -> set[str]:
    """The options in a list of them."""
    return set(re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", listing, re.MULTILINE))


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (
            "ask",
            "--question --json --continue --resume --dry-run --each --out --quiet --model --base-url --cite",
        ),
        ("eval", "--task --length --examples --workflow --count --out --resume --dry-run --model --base-url"),
        ("serve", "--host --port --keys --data --quiet --model --base-url"),
        ("mcp", "--folder --http --port --keys --notebooks --quiet --model --base-url"),
        ("doctor", "--model --base-url"),
        ("notes add", "--text --json --notebooks --quiet --model --base-url"),
    ],
)
def test_help_lists_what_most_need_and_help_all_the_rest(command: str, needed: str, capsys: Capture) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out.partition("\nOptions:\n")[2]
    common_options = options(out)
    assert {*needed.split(), "--help-all"} <= common_options and len(common_options) <= 14
    more = re.search(rf"memagent {command} --help-all lists (\d+) more options", " ".join(out.split()))
    assert main([*command.split(), "--help-all"]) == 0
    all_options = options(capsys.readouterr().out.partition("\nOptions:\n")[2])
    assert more and len(all_options) == len(common_options) + int(more[1]) and common_options < all_options


def test_settings_stand_under_their_headings(capsys: Capture) -> None:
    assert main(["ask", "--help-all"]) == 0
    own, _, rest = capsys.readouterr().out.partition("How a model is reached:")
    engine, _, read = rest.partition("How a document is read:")
    for name, (part, _) in settings_by_name().items():
        assert f"--{name.replace('_', '-')}" in (engine if part == "engine" else read)
    assert "--questions" in own and "--model" not in own
    assert "auto, evidence, full" in " ".join(read.split()) and "MEMAGENT_MODEL" in read


def test_a_shell_completes_commands_and_flags(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("_MEMAGENT_COMPLETE", "bash_source")
    assert main([]) == 0
    assert "complete" in capsys.readouterr().out
    expected_of = {
        "memagent as": "plain,ask",
        "memagent ask --workf": "plain,--workflow",
        "memagent train sf": "plain,sft",
        "memagent data make niah_mult": "plain,niah_multivalue",
        "memagent ask What ex": "file,ex",
        "memagent ask --templates ex": "file,ex",
        "memagent train pre": "file,pre",
        "memagent train preset.toml --res": "plain,--resume",
        "memagent eval --examples ex": "file,ex",
        "memagent notes add it ex": "file,ex",
    }
    for typed, expected in expected_of.items():
        monkeypatch.setenv("_MEMAGENT_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
        assert main([]) == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("group", ["", "data", "models", "train"])
def test_a_list_of_commands_says_what_each_does_in_full(group: str, capsys: Capture) -> None:
    assert main([*group.split(), "--help"]) == 0
    listing = capsys.readouterr().out.partition("Commands:")[2]
    assert listing.strip() and "..." not in listing


def test_a_wrong_value_is_named_by_its_flag_and_in_python_by_its_name(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert main(["ask", "What?", str(tmp_path / "a.txt"), "--chunk-tokens", "0", "--top-p", "2"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "--chunk-tokens is 0: it must be above 0" in err and "--top-p is 2.0: it must be at most 1" in err
    with pytest.raises(SettingsError, match="arguments: chunk_tokens is 0: it must be above 0"):
        load_settings({"chunk_tokens": 0})
