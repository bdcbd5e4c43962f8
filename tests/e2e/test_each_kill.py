"""`kill -9` at random moments of `ask --each`: no file is lost, and little is paid twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from server import Server, facts_document
from waiting import wait_for

FILES, CALLS = 40, 4


def start(server: Server, folder: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "memagent", "ask", "--each", "Which facts?", str(folder), "--quiet", "--out",
        str(folder.parent / "table.jsonl"), "--base-url", server.base_url, "--chunk-tokens", "75",
        "--memory-tokens", "300", "--concurrency", str(CALLS), "--retries", "0", "--workflow", "gated",
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    )


def answers(folder: Path) -> dict[str, str]:
    rows = (folder.parent / "table.jsonl").read_text("utf-8").splitlines()
    return {Path(row["file"]).name: row["answer"] for row in map(json.loads, rows)}


@pytest.mark.parametrize("kills_due", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_run_resumes(kills_due: int, serve: Callable[..., Server], tmp_path: Path) -> None:
    calm, server = serve(), serve(latency_seconds=0.01)
    folders = [tmp_path / "calm" / "docs", tmp_path / "killed" / "docs"]
    for folder in folders:
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / f"{number:03}.txt").write_text(facts_document(1 + number % 3, number), "utf-8")
    whole = start(calm, folders[0])
    assert whole.wait(60) == 0, whole.communicate()
    expected = answers(folders[0])
    assert len(expected) == FILES and all(expected.values())

    chance, kills = random.Random(3), 0
    while True:
        process = start(server, folders[1])
        if kills < kills_due:
            before, wanted = len(server.paid), chance.choice([0, *range(2, 40)])
            wait_for(lambda end=before + wanted: len(server.paid) >= end, process)
            time.sleep(chance.random() * 0.02)
            process.kill()
            kills += 1
        out, err = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == -9, err
    assert kills == kills_due and answers(folders[1]) == expected
    assert server.paid_twice <= kills_due * CALLS, "nothing but what was in flight"
    assert out.startswith(f"{tmp_path / 'killed' / 'table.jsonl'}: {FILES} of {FILES} answered")
    assert not list((folders[1].parent / ".table.jsonl.memagent" / "journals").iterdir())

    paid_before = len(server.paid)
    (folders[1] / "001.txt").write_text(facts_document(1, 99), "utf-8")
    process = start(server, folders[1])
    assert process.wait(60) == 0 and "1 of them now" in process.communicate()[0]
    assert 0 < len(server.paid) - paid_before <= 4, "the one that changed"
