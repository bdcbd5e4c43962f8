"""Kill `memagent tally` with signal 9 twenty times: the same table in the end, and little is paid twice.

`KILLS=3 python -m pytest -m slow tests/e2e/test_tally_kill.py` kills it three times.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memagent.reading.tally.plan import Plan
from server import Messages, Server
from waiting import wait_for

KILLS = int(os.environ.get("KILLS", "20"))
CALLS = 3
"""How many calls are in flight at most: only those may be paid twice."""

LATENCY_SECONDS = 0.05
PATIENCE_SECONDS = 300.0
PLAN = Plan(
    row="one payment",
    fields=({"name": "who", "type": "text"}, {"name": "amount", "type": "money"}),  # type: ignore[arg-type]
    sql="SELECT who, SUM(amount), COUNT(*) FROM rows GROUP BY who",
)


def letters() -> str:
    chance = random.Random(0)
    return "\n".join(
        f"# Letter {number}\n\n{'The weather is fair. ' * chance.randrange(8)}"
        f"Firm {number % 7} got {chance.randrange(1000)}.50 EUR from us.\n"
        for number in range(90)
    )


def reply(messages: Messages) -> str:
    prompt = messages[-1]["content"]
    if prompt.rstrip().endswith("The JSON object:"):
        return PLAN.model_dump_json()
    stated = re.findall(r"(Firm \d) got ([\d.]+ EUR)", prompt)
    return json.dumps([{"who": who, "amount": amount} for who, amount in [*stated, ("Firm 8", "7 EUR")]])


def start(server: Server, document: Path, trace: Path) -> subprocess.Popen[str]:
    """The command that begins the read, or continues it."""
    command = [
        *(sys.executable, "-m", "memagent", "tally", "How much did each firm get?", str(document), "--json"),
        *("--base-url", server.base_url, "--model", "test-model", "--concurrency", str(CALLS)),
        *("--chunk-tokens", "60", "--trace", str(trace), *(["--resume"] if trace.exists() else [])),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The answer, its table, and how many calls it took."""
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    result = json.loads(out)
    return {name: result[name] for name in ("answer", "table", "calls")}


@pytest.mark.slow
def test_a_tally_that_is_killed_in_the_middle(serve: Callable[..., Server], tmp_path: Path) -> None:
    document, trace = tmp_path / "letters.md", tmp_path / "killed.jsonl"
    document.write_text(letters(), "utf-8")
    untouched, server = serve(reply), serve(reply, latency_seconds=LATENCY_SECONDS)
    expected = finish(start(untouched, document, tmp_path / "untouched.jsonl"))
    assert (
        expected["table"]["coverage"]["rows"] == 90 and expected["calls"] == len(untouched.paid) > 2 * KILLS
    )

    chance, kills = random.Random(1), 0
    for target in sorted(chance.sample(range(expected["calls"] - CALLS), KILLS)):
        process = start(server, document, trace)
        wait_for(lambda target=target: len(set(server.paid)) >= target, process, PATIENCE_SECONDS)
        time.sleep(chance.uniform(0, 2 * LATENCY_SECONDS))
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert server.paid_twice <= kills * CALLS

    assert finish(start(server, document, trace)) == expected
    assert kills == KILLS and sorted(set(server.paid)) == sorted(untouched.paid)
    assert server.paid_twice <= KILLS * CALLS
