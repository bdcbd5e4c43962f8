"""`kill -9` at random moments of an evaluation, then --resume: the rows of a run that was never cut off."""

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


def command(base_url: str, folder: Path, examples: Path) -> list[str]:
    return [
        sys.executable, "-m", "memagent", "eval", "--examples", str(examples), "--workflow", "gated",
        "--workflow", "full", "--workflow", "map_reduce", "--samples-per-example", "2", "--out", str(folder),
        "--base-url", base_url, "--chunk-tokens", "150", "--concurrency", "4", "--resume",
    ]  # fmt: skip


def rows_of(folder: Path) -> list[str]:
    """The rows in order, without the seconds, and the checksums over them."""
    lines = (folder / "rows.jsonl").read_text("utf-8").splitlines()
    return sorted(json.dumps({**json.loads(line), "seconds": 0, "crc32": ""}) for line in lines)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "facts.jsonl"
    rows = [
        {"problem": "Which facts?", "document": facts_document(4, seed), "answers": [f"FACT-{seed % 5}"]}
        for seed in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("kills_due", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_killed_evaluation_resumes(
    kills_due: int, serve: Callable[..., Server], tmp_path: Path, examples: Path
) -> None:
    chance = random.Random(1)
    calm = serve()
    whole = command(calm.base_url, tmp_path / "calm", examples)
    done = subprocess.run(whole, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = rows_of(tmp_path / "calm")
    assert len(expected) == 12 * 3 * 2
    header = json.loads((tmp_path / "calm" / "run.json").read_text("utf-8"))
    assert header["command"].startswith(f"memagent eval --examples {examples} --workflow gated")

    server, folder = serve(latency_seconds=0.03), tmp_path / "killed"
    kills = 0
    while True:
        process = subprocess.Popen(
            command(server.base_url, folder, examples), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=os.environ, text=True,
        )  # fmt: skip
        if kills < kills_due:
            before = len(server.requests)
            wanted = chance.choice([0, *range(2, 40)])  # 0: before the first call, wherever it is
            wait_for(lambda end=before + wanted: len(server.requests) >= end, process)
            time.sleep(chance.random() * (0.5 if wanted == 0 else 0.02))
            process.kill()
            kills += 1
        _, stderr = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == -9, stderr
    assert kills == kills_due and rows_of(folder) == expected, "none lost, none twice"
    assert all(line.endswith("}") for line in (folder / "rows.jsonl").read_text("utf-8").splitlines())
    most_in_flight = 4  # each kill loses the attempts that were under way, of at most 6 calls each
    assert len(server.paid) <= len(calm.paid) + kills_due * most_in_flight * 6
