"""`memagent ask` against a server that fails in every way comes to what it comes to without faults."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server import (
    PASSING_FAULTS,
    WORDINGS,
    Server,
    facts_document,
    lasting_fault,
    no_faults,
    refusal,
    seeded_faults,
)

Serve = Callable[..., Server]
CHUNKS = 14
SEEDS = (1, 2, 3)
TIMEOUT_SECONDS = 1.0


def ask(
    server: Server, document: Path, trace: Path, *options: str, retries: int = 8
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "memagent", "ask", "What are all the facts?", str(document)),
            *("--base-url", server.base_url, "--model", "test-model", "--trace", str(trace), "--json"),
            *("--chunk-tokens", "120", "--memory-tokens", "300", "--answer-tokens", "300"),
            *("--timeout-seconds", str(TIMEOUT_SECONDS), "--retries", str(retries), *options),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def outcome(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a read came to, without what depends on the clock or the place."""
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return {name: result[name] for name in result if name not in ("seconds", "trace")}


def in_order(digests: list[str]) -> list[str]:
    """Each prompt once; on a busy machine a reply may come too late and be asked for again."""
    return list(dict.fromkeys(digests))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "facts.txt"
    path.write_text(facts_document(CHUNKS), "utf-8")
    return path


@pytest.mark.parametrize("workflow", ["overwrite", "gated"])
def test_faults_change_neither_the_memory_nor_the_answer(
    workflow: str, serve: Serve, document: Path, tmp_path: Path
) -> None:
    servers = [serve(), *(serve(faults=seeded_faults(0.3, seed)) for seed in SEEDS)]

    def read(number: int) -> dict[str, Any]:
        trace = tmp_path / f"{number}.jsonl"
        return outcome(ask(servers[number], document, trace, "--workflow", workflow))

    with ThreadPoolExecutor() as pool:  # side by side: most of the time is spent in pauses
        faultless, *others = pool.map(read, range(len(servers)))
    assert [f"FACT-{number}: " in faultless["answer"] for number in range(CHUNKS)] == [
        number % 3 > 0 for number in range(CHUNKS)
    ]
    for server, other in zip(servers[1:], others, strict=True):
        assert other == faultless
        assert len(server.asked) > faultless["calls"]  # there were faults
        assert in_order(server.paid) == servers[0].paid


def test_each_kind_of_fault_is_met(serve: Serve, document: Path, tmp_path: Path) -> None:
    """All kinds in turn, so that no seed has to be trusted to have met them."""
    kinds = iter(PASSING_FAULTS.values())
    server = serve(faults=lambda digest, attempt: None if attempt else next(kinds, None))
    faultless = outcome(ask(serve(), document, tmp_path / "faultless.jsonl"))
    assert outcome(ask(server, document, tmp_path / "faults.jsonl")) == faultless
    assert next(kinds, None) is None
    assert len(server.asked) >= faultless["calls"] + len(PASSING_FAULTS)


def test_a_call_that_stays_bad_ends_the_read_resumably(serve: Serve, document: Path, tmp_path: Path) -> None:
    faultless = serve()
    expected = outcome(ask(faultless, document, tmp_path / "faultless.jsonl"))
    trace = tmp_path / "read.jsonl"
    server = serve(faults=lasting_fault(refusal(503, "out of order", {"Retry-After": "0"}), spared=5))

    failed = ask(server, document, trace, retries=2)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "failed 3 times, last: HTTP 503" in failed.stderr
    assert "out of order" in failed.stderr
    assert "--resume" in failed.stderr
    assert str(trace) in failed.stderr.replace("\n", "")
    assert "Traceback" not in failed.stderr
    assert len(set(server.paid)) == 5

    server.faults = no_faults
    assert outcome(ask(server, document, trace, "--resume")) == expected
    assert in_order(server.paid) == faultless.paid


@pytest.mark.parametrize("wording", WORDINGS)
def test_a_small_window_is_no_obstacle(wording: str, serve: Serve, document: Path, tmp_path: Path) -> None:
    server, trace = serve(window=1130, wording=wording), tmp_path / "read.jsonl"
    result = outcome(ask(server, document, trace))
    assert len(set(server.paid)) == result["calls"]
    assert len(server.asked) > len(server.paid)
    lines = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    spans = [line["span"] for line in lines if line.get("span")]
    assert [span[0] for span in spans] == [0, *(span[1] for span in spans[:-1])]
    assert spans[-1][1] == len(document.read_text("utf-8"))


def test_a_server_that_is_not_there_is_an_error_with_a_next_step(
    serve: Serve, document: Path, tmp_path: Path
) -> None:
    server = serve()
    server.close()
    failed = ask(server, document, tmp_path / "read.jsonl", retries=1)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert server.base_url in failed.stderr
    assert "--resume" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_server_runs_alone_too() -> None:
    script = Path(__file__).parents[1] / "server.py"
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{address}/models", timeout=30) as reply:
                assert json.load(reply)["data"] == [{"id": "test-model"}]
        finally:
            process.kill()
