"""Kill a read with signal 9 at many moments; it ends as if nothing had been, and pays little twice.

`map_reduce` and `notes` have several calls in flight: only those may be paid twice.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server import Server, facts_document
from waiting import wait_for

PARAGRAPHS = 56  # some 40 chunks
CALLS = {"overwrite": 1, "gated": 1, "map_reduce": 4, "notes": 4}
"""How many calls each workflow may have in flight."""
LATENCY_SECONDS = 0.03
PATIENCE_SECONDS = 60.0


def start(server: Server, document: Path, trace: Path, workflow: str) -> subprocess.Popen[str]:
    """The command that begins the read, or goes on with it."""
    command = [
        *(sys.executable, "-m", "memagent", "ask", "What are all the facts?", str(document), "--json"),
        *("--base-url", server.base_url, "--model", "test-model", "--workflow", workflow),
        *("--concurrency", str(CALLS[workflow])),
        *("--chunk-tokens", "75", "--memory-tokens", "500", "--answer-tokens", "500"),
        *("--trace", str(trace), *(["--resume"] if trace.exists() else [])),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the read came to, without what depends on the clock or the place."""
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    result: dict[str, Any] = json.loads(out)
    # Which of the calls side by side had to wait for which is a matter of the clock.
    return {name: result[name] for name in result if name not in ("seconds", "trace", "critical_path")}


@pytest.mark.parametrize(
    ("workflow", "kills_due"),
    [("gated", 2), ("notes", 2), *(pytest.param(name, 10, marks=pytest.mark.slow) for name in CALLS)],
)
def test_a_read_that_is_killed_many_times(
    workflow: str, kills_due: int, serve: Callable[..., Server], tmp_path: Path
) -> None:
    document, trace = tmp_path / "facts.txt", tmp_path / "killed.jsonl"
    document.write_text(facts_document(PARAGRAPHS, words=30), "utf-8")
    untouched, server = serve(), serve(latency_seconds=LATENCY_SECONDS)
    expected = finish(start(untouched, document, tmp_path / "untouched.jsonl", workflow))
    assert expected["calls"] == len(untouched.paid) >= 3 * kills_due

    chance, kills = random.Random(workflow), 0
    # Each moment is a number of conversations and a fraction of a call: in flight, or just recorded.
    for target in sorted(chance.sample(range(expected["calls"] - 1), kills_due)):
        process = start(server, document, trace, workflow)
        wait_for(lambda target=target: len(set(server.paid)) >= target, process)
        time.sleep(chance.uniform(0, 2 * LATENCY_SECONDS))
        process.kill()
        process.communicate()
        assert server.paid_twice <= kills * CALLS[workflow]  # for each kill so far, this one not counted
        kills += process.returncode == -signal.SIGKILL

    assert finish(start(server, document, trace, workflow)) == expected
    assert kills > 0 and server.paid_twice <= kills * CALLS[workflow]
    assert sorted(set(server.paid)) == sorted(untouched.paid)
    if CALLS[workflow] == 1:
        assert list(dict.fromkeys(server.paid)) == untouched.paid
