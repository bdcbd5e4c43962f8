"""Kill a server with signal 9 in the middle of many reads: all finish, and little is paid twice.

`KILLS=10 python -m pytest -m slow tests/served/test_kill.py` kills it ten times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server import Server, facts_document
from waiting import wait_for

KILLS = int(os.environ.get("KILLS", "2"))
CALLS = 8
PATIENCE_SECONDS = 120.0


def start(engine: Server, data: Path) -> tuple[subprocess.Popen[str], str]:
    """The command, and the address that it serves at."""
    command = [
        *(sys.executable, "-m", "memagent", "serve", "--port", "0", "--data", str(data)),
        *("--base-url", engine.base_url, "--model", "test-model", "--concurrency", str(CALLS)),
        *("--chunk-tokens", "120", "--memory-tokens", "500", "--answer-tokens", "500"),
        *("--workflow", "overwrite"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    line = process.stderr.readline()
    assert "serving test-model at " in line, line + process.stderr.read()
    return process, line.split(" at ")[1].split("/v1")[0]


def reads(address: str) -> list[dict[str, Any]]:
    """All reads, as the server lists them."""
    listing: list[dict[str, Any]] = httpx2.get(f"{address}/v1/reads?limit=1000", timeout=60).json()["data"]
    return listing


@pytest.mark.parametrize(("count", "kills"), [(6, 1), pytest.param(50, KILLS, marks=pytest.mark.slow)])
def test_reads_survive_kills(count: int, kills: int, serve: Callable[..., Server], tmp_path: Path) -> None:
    engine, data = serve(latency_seconds=0.03), tmp_path / "data"
    process, address = start(engine, data)
    with httpx2.Client(base_url=address, timeout=60) as client:
        for number in range(count):
            body = {
                "problem": "What are all the facts?",
                "document": facts_document(50, seed=number, words=8),
            }
            assert client.post("/v1/reads", json=body).status_code == 201
    before = 0
    for kill in range(1, kills + 1):
        # Wherever it is: some reads done, some under way, some waiting.
        wait_for(lambda target=count * 6 * kill // (kills + 1): len(engine.paid) >= target, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert engine.paid_twice <= before
        before += CALLS  # those in flight may be paid for again
        process, address = start(engine, data)
    wait_for(lambda: all(read["state"] == "done" for read in reads(address)), process, PATIENCE_SECONDS)
    assert len(reads(address)) == count
    assert engine.paid_twice <= before
    with httpx2.Client(base_url=address, timeout=60) as client:
        for number, read in enumerate(reversed(reads(address))):
            result = client.get(f"/v1/reads/{read['id']}/result").json()
            text = facts_document(50, seed=number, words=8)
            facts = [word for word in text.replace(".", "").split() if word.startswith("FACT")]
            assert all(fact in result["answer"] for fact in facts)
            assert result["calls"] > 4
    process.send_signal(signal.SIGTERM)  # a clean end
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, stderr
    assert stderr == ""
