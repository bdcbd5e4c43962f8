"""`memagent ask --each`: the table, what is said beside it, and the exit code."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from memagent.storage import Log
from server import Server, lasting_fault, refusal

pytestmark = pytest.mark.usefixtures("gated")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    (tmp_path / "docs").mkdir()
    for number in range(6):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"FACT-{number}: lamp{number}", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "docs"


def ask(server: Server, *words: str) -> list[str]:
    return ["ask", "--each", "Which facts?", "docs", *words, "--base-url", server.base_url, "--retries", "0"]


def table(path: str = "table.csv") -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_of_answers(serve: Serve, folder: Path, capsys: Capture) -> None:
    server = serve(lambda messages: "FACT-2: lamp2")
    (folder / "empty.txt").touch()
    assert main(ask(server, "--out", "table.csv", "--cite")) == 0
    out, err = capsys.readouterr()
    assert out == "table.csv: 6 of 7 answered, 6 of them now, 1 no text\n" and "7 of 7" in err
    rows = table()
    assert [row["file"] for row in rows] == [f"docs/{name}.txt" for name in (*range(6), "empty")]
    assert rows[2]["sources"] == "characters 0 to 13: 'FACT-2: lamp2'"
    assert rows[3]["sources"] == "nothing in the file says: FACT-2: lamp2"
    assert rows[6]["status"] == "no text" and rows[6]["error"] == "docs/empty.txt is empty"
    calls = len(server.paid)
    assert main(ask(server, "--out", "table.csv", "--cite", "--json", "--quiet")) == 0
    out, err = capsys.readouterr()
    assert err == "" and json.loads(out) == {
        "table": "table.csv", "rows": 7, "answered": 6, "no_text": 1, "kept": 6
    }  # fmt: skip
    with Log(folder.parent / ".table.csv.memagent" / "record.jsonl"):  # of another run
        assert main(ask(server, "--out", "table.csv")) == 2
    assert len(server.paid) == calls


def test_failures_are_rows_and_end_with_code_3(serve: Serve, folder: Path, capsys: Capture) -> None:
    server = serve(faults=lasting_fault(refusal(400, "no such luck"), spared=4))
    assert main(ask(server, "--out", "table.jsonl", "--concurrency", "1")) == 3
    out, err = capsys.readouterr()
    assert "2 of 6 answered, 2 of them now, 4 failed" in out
    assert "docs/2.txt failed: " in err and "no such luck" in err
    rows = [json.loads(line) for line in Path("table.jsonl").read_text("utf-8").splitlines()]
    assert [row["status"] for row in rows] == ["answered"] * 2 + ["failed"] * 4
    assert main(ask(serve(), "--out", "table.jsonl", "--resume")) == 0


def test_a_file_that_cannot_be_read_is_named_once(serve: Serve, folder: Path, capsys: Capture) -> None:
    (folder / "broken.txt").symlink_to("nowhere")
    assert main(ask(serve(), "--out", "table.csv", "--dry-run")) == 0
    assert main(ask(serve(), "--out", "table.csv")) == 3
    messages = [line for line in capsys.readouterr().err.splitlines() if "broken.txt" in line]
    assert messages == ["docs/broken.txt cannot be read: No such file or directory"] * 2


def test_a_limit_ends_a_run_with_code_3(serve: Serve, folder: Path, capsys: Capture) -> None:
    limits = ["--max-tokens", "1500", "--memory-tokens", "50", "--answer-tokens", "50"]
    assert main(ask(serve(), "--out", "table.csv", *limits)) == 3
    out, err = capsys.readouterr()
    assert (
        "not read" in out
        and "--max-tokens 1500 leaves no room for a call" in err
        and "; run the same command again" in err
    )
    assert (
        main(["ask", "Which facts?", "docs/1.txt", "--base-url", serve().base_url, "--max-tokens", "9"]) == 3
    )
    assert "--max-tokens 9 leaves no room for a call" in capsys.readouterr().err


def test_a_dry_run_tells_the_cost_and_leaves_nothing(serve: Serve, folder: Path, capsys: Capture) -> None:
    server = serve()
    prices = ["--prompt-price", "1", "--completion-price", "2", "--dry-run"]
    assert main(ask(server, *prices)) == 0
    out = capsys.readouterr().out
    assert "6 files: 6 answers to find" in out and "at most: 12 calls" in out and ", cost 0.0" in out
    assert main(ask(server, *prices, "--json", "--max-cost", "0.001")) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert (estimate["files"], estimate["calls"], estimate["exceeded"]) == (6, 12, "--max-cost 0.001")
    for limit, expected in (
        ("--max-calls 1", "--max-calls 1"),
        ("--max-calls 2", ""),
        ("--max-tokens 9",) * 2,
    ):
        assert main(ask(server, *prices, "--json", *limit.split())) == 0  # two calls for each file
        assert json.loads(capsys.readouterr().out)["exceeded"] == expected
    assert server.paid == [] and sorted(path.name for path in folder.parent.iterdir()) == ["docs"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ask", "--each", "What?", "docs"], 2, "--out"),
        (["ask", "--each", "What?", "-", "--out", "table.csv"], 4, "standard input is one document"),
        (["ask", "--each", "What?", "docs", "--out", "table.csv", "--max-cost", "nan"], 2, "-cost is nan"),
    ],
)
def test_what_is_wrong_is_said(
    serve: Serve, folder: Path, capsys: Capture, words: list[str], code: int, message: str
) -> None:
    assert main([*words, "--base-url", serve().base_url]) == code
    assert message in capsys.readouterr().err and sorted(path.name for path in folder.parent.iterdir()) == [
        "docs"
    ]


@pytest.mark.slow
def test_few_open_files_are_enough(serve: Serve, folder: Path) -> None:
    server = serve(latency_seconds=0.02)
    for number in range(100):
        (folder / f"{number}.txt").write_text(f"FACT-{number}: lamp{number}", "utf-8")
    command = [sys.executable, "-m", "memagent", *ask(server, "--out", "table.csv", "--concurrency", "90")]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 96; exec "$@"', "sh", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("table.csv: 100 of 100 answered")
    assert server.most_in_flight > 4
