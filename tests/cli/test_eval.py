"""`memagent eval`: what it prints, what it keeps, and which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from memagent.cli.evaluate import redact_command
from server import lasting_fault, refusal


@pytest.fixture
def examples(tmp_path: Path) -> str:
    path = tmp_path / "hats.jsonl"
    rows = [
        {"problem": f"Whose hat? {n}", "document": f"A hat of {n}. " * 9, "answers": ["hat"]}
        for n in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


@pytest.fixture
def command(tmp_path: Path, examples: str, serve: Serve, monkeypatch: Patch) -> list[str]:
    monkeypatch.setenv("OPENAI_BASE_URL", serve(lambda messages: "a hat").base_url)
    monkeypatch.chdir(tmp_path)
    return ["eval", "--examples", examples, "--workflow", "full", "--workflow", "gated", "--out", "rows"]


def lines(folder: str = "rows") -> list[str]:
    return Path(folder, "rows.jsonl").read_text("utf-8").splitlines()


def test_the_scores_go_to_stdout_and_the_progress_to_stderr(command: list[str], capsys: Capture) -> None:
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out.startswith("**full**, examples per cell: 4\n\n| task |")
    assert out.count("| hats | 100.0 [51, 100] |") == 2
    assert "| workflow | size | document | calls | critical path |" in out
    assert "hats, as it is, full: 100.0, 4 attempts" in err and "gated: 100.0, 4 attempts" in err
    assert len(lines()) == 8


def test_a_dry_run_says_what_it_costs_at_most(
    command: list[str], capsys: Capture, serve: Serve, monkeypatch: Patch
) -> None:
    server = serve(lambda messages: "a hat")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    prices = ["--prompt-price", "0", "--completion-price", "1000000"]
    assert main([*command, *prices, "--dry-run", "--answer-tokens", "8", "--memory-tokens", "20"]) == 0
    out, _ = capsys.readouterr()
    assert "| hats | as it is | full | 4 | 4 |" in out and "| 32 | 32 |\n" in out
    assert "at most for all attempts: 12 calls" in out and "cost 144" in out
    assert not Path("rows").exists() and not server.asked


def test_a_dry_run_estimates_where_there_is_no_model(examples: str, capsys: Capture) -> None:
    for arguments in (
        ["--examples", examples],
        ["--task", "niah_single_1", "--length", "1024", "--count", "1"],
    ):
        assert main(["eval", *arguments, "--workflow", "full", "--out", "rows", "--dry-run"]) == 0
        out, err = capsys.readouterr()
        assert "at most for all attempts" in out and "token counts are estimates" in out
        assert "no model is fetched yet\nestimated" in err


def test_the_usual_workflow_is_that_of_ask(command: list[str], capsys: Capture) -> None:
    plain = [word for word in command if word not in ("--workflow", "full", "gated")]
    assert main(plain) == 0
    assert capsys.readouterr().out.startswith("**auto**, examples per cell: 4\n")
    assert json.loads(Path("rows/run.json").read_text())["plan"]["workflows"] == ["auto"]


def test_quiet_says_nothing_on_stderr(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_tasks_lengths_and_counts_are_taken_from_flags(command: list[str], capsys: Capture) -> None:
    flags = ["eval", "--task", "niah_single_1", "--task", "squad", "--length", "1024", "--documents", "3",
             "--workflow", "full", "--count", "2", "--seed", "5", "--out", "made"]  # fmt: skip
    assert main(flags) == 0
    rows = [json.loads(line) for line in lines("made")]
    assert sorted((row["task"], row["length"], row["documents"], row["index"]) for row in rows) == [
        ("niah_single_1", 1024, None, 0),
        ("niah_single_1", 1024, None, 1),
        ("squad", None, 3, 0),
        ("squad", None, 3, 1),
    ]
    assert {row["example_id"].split("-")[2] for row in rows} == {"5"}
    err = capsys.readouterr().err
    assert "lengths in tokens are estimated" in err and "squad: using the small sample" in err


def test_rows_name_the_haystack_and_a_sample_is_reported(
    command: list[str], examples: str, capsys: Capture
) -> None:
    rows = [json.loads(line) for line in Path(examples).read_text("utf-8").splitlines()]
    rows[1]["haystack"] = "sample of essays, sha256 1"
    Path(examples).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert main([*command, "--quiet"]) == 0
    assert sorted(json.loads(line)["haystack"] for line in lines())[5:] == ["", *2 * [rows[1]["haystack"]]]
    assert "essays: using the small sample" in capsys.readouterr().err


def test_sources_are_not_for_rows(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--cite"]) == 2
    assert "--cite" in capsys.readouterr().err


def test_a_small_set_is_read_whole(command: list[str]) -> None:
    assert (
        main(["eval", "--task", "musique", "--documents", "20", "--workflow", "truncate", "--out", "all"])
        == 0
    )
    assert len(lines("all")) == 15


def test_the_scorer_is_the_one_asked_for(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--scorer", "exact_match", "--samples-per-example", "2", "--count", "1"]) == 0
    out, err = capsys.readouterr()
    assert "| hats | 100.0 [0, 100] |" in out, "articles do not count"
    assert "at temperature 0 all samples of an example are the same" in err
    assert len(lines()) == 4


def test_resume_says_what_is_there(command: list[str], capsys: Capture) -> None:
    assert main(command) == 0
    whole = lines()
    Path("rows", "rows.jsonl").write_text("\n".join(whole[:5]) + "\n" + whole[5][:30], "utf-8")
    capsys.readouterr()
    assert main([*command, "--resume"]) == 0
    assert "5 of 8 attempts are already done" in capsys.readouterr().err
    assert len(lines()) == 8
    assert main(command) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*command, "--resume", "--temperature", "1"]) == 2
    assert "settings.temperature was 0.0, now it is 1.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workflow", "full"], "which examples"),
        (["--workflow", "full", "--task", "vt"], "needs a size"),
        (["--workflow", "full", "--examples", "no.jsonl"], "no.jsonl"),
        (["--workflow", "full", "--examples", "{file}", "--count", "0"], "count is 0"),
        (["--workflow", "rag", "--examples", "{file}", "--passages", "0"], "passages is 0"),
        (["--workflow", "full", "--examples", "{file}", "--temperature", "9"], "temperature is 9"),
        (["--workflow", "gated", "--examples", "{file}", "--templates", "no.toml"], "no.toml"),
        (["--workflow", "full", "--task", "niah_single_1", "--length", "20"], "too few"),
        (["--workflow", "full", "--task", "musique", "--documents", "4", "--count", "99"], "15 questions"),
        (
            ["--workflow", "full", "--task", "niah_single_2", "--length", "2048", "--essays", "no.txt"],
            "no.txt",
        ),
    ],
)
def test_settings_that_cannot_be_end_with_2(
    command: list[str], examples: str, arguments: list[str], words: str, capsys: Capture
) -> None:
    arguments = [word.replace("{file}", examples) for word in arguments]
    assert main(["eval", "--out", "out", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err.partition("error: ")[2]


def test_one_failure_is_reported_and_all_failures_exit_with_3(
    command: list[str], serve: Serve, monkeypatch: Patch, capsys: Capture
) -> None:
    server = serve(lambda messages: "a hat", lasting_fault(refusal(503, "on fire"), spared=5))
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    assert main([*command, "--retries", "0"]) == 0
    out, err = capsys.readouterr()
    assert "of 8 attempts failed and count as 0" in err and "| hats |" in out
    assert main([*command[:-1], "all", "--retries", "0"]) == 3
    out, err = capsys.readouterr()
    assert "every attempt failed" in err and "on fire" in err and "| hats | 0.0 [" in out
    assert len(lines("all")) == 8


def test_the_key_is_in_no_command() -> None:
    words = [
        "/bin/memagent",
        "eval",
        "--api-key",
        "sk-1",
        "--api=sk-1",
        "--base-url",
        "http://me:pw@h/v1",
        "a b",
    ]
    expected = "memagent eval --api-key ... --api=... --base-url http://h/v1 'a b'"
    assert redact_command(words, "sk-1") == expected
    assert redact_command(["memagent", "eval", "--out", "x"], None) == "memagent eval --out x"
