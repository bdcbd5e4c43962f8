"""`benchmarks/loong.py`: what Loong's scorer reads, from a checkout of Loong of two reports and a paper."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import BENCHMARKS
from files import write_files
from server import Server

pytestmark = pytest.mark.slow

REPORT = {"type": "financial", "language": "en", "level": 1, "set": 1, "shuffle_doc": False}
TEMPLATE = "{docs}\n\n{instruction}\n\n{question}"
ROWS: list[dict[str, Any]] = [
    REPORT
    | {"id": "report", "doc": ["LAMP CO", "INK INC"], "question": "What did INK INC earn?", "answer": "$7"}
    | {"instruction": "Read the reports.", "prompt_template": TEMPLATE},
    REPORT
    | {"id": "paper", "type": "paper", "level": 3, "doc": ["2401.1.md"], "question": "On lamps", "answer": {}}
    | {"instruction": "Which cite it?", "prompt_template": "{instruction}\n\n#Papers:\n{docs}"},
    REPORT | {"id": "zh", "language": "zh"},
    REPORT | {"id": "case", "type": "legal", "language": "zh"},
]


@pytest.fixture
def loong(tmp_path: Path) -> Path:
    """A checkout of Loong."""
    texts = {
        "doc/financial/2023-INK INC-j.txt": "Of another year.",
        "doc/financial/2024-INK INC-j.txt": "INK INC earned $7.",
        "doc/financial/2024-LAMP CO-j.txt": "LAMP CO earned $3.",
        "doc/paper/2401.1.md": "# On lamps\nWe cite nobody.",
        "loong.jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS),
    }
    write_files(tmp_path / "Loong/data", texts)
    return tmp_path / "Loong"


def answer(loong: Path, server: Server) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"{BENCHMARKS}/loong.py", str(loong), "--out", str(loong / "answers.jsonl")]
    command += ["--base-url", server.base_url, "--model", "test-model", "--workflow", "full"]
    return subprocess.run(command, capture_output=True, text=True, env={"XDG_CONFIG_HOME": str(loong)})


def test_rows_have_the_answers_and_a_second_run_asks_nothing(loong: Path) -> None:
    with Server(lambda messages: "Seven.") as server:
        assert answer(loong, server).returncode == 0
        prompts = {body["messages"][-1]["content"] for body in server.asked}
        assert answer(loong, server).returncode == 0
        assert len(server.asked) == len(prompts) == 2
    answered = [json.loads(line) for line in (loong / "answers.jsonl").read_text("utf-8").splitlines()]
    expected = [row | {"generate_response": "Seven."} for row in ROWS[:2]]
    assert sorted(answered, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    reports = next(prompt for prompt in prompts if "INK" in prompt)
    assert "《j》\nLAMP CO earned $3.\n\n《j》\nINK INC earned $7.\n\n" in reports
    assert "Read the reports.\n\nWhat did INK INC earn?" in reports
    assert "another year" not in reports
    papers = next(prompt for prompt in prompts if "Which cite" in prompt)
    assert "On lamps\n# On lamps\nWe cite nobody." in papers
    assert "#Papers:" not in papers


def test_what_fails_is_asked_again(loong: Path) -> None:
    with Server(lambda messages: "", listed=None) as server:
        failed = answer(loong, server)
        assert "report: " in failed.stderr
        assert failed.returncode == 1
        assert "2 of 2 reads failed: the same command tries them again" in failed.stderr
        assert not (loong / "answers.jsonl").exists()
    with Server(lambda messages: "Seven.") as server:
        answer(loong, server)
    assert len((loong / "answers.jsonl").read_text("utf-8").splitlines()) == 2


def test_a_missing_document_is_named(loong: Path) -> None:
    (loong / "data/doc/paper/2401.1.md").unlink()
    with Server(lambda messages: "Seven.") as server:
        stopped = answer(loong, server)
    assert stopped.returncode == 1
    assert "has no document '2401.1.md': take data/doc from Loong's commit 494f5fb" in stopped.stderr
