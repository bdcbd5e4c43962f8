"""One contestant of `compare.py` with its own GPU: the process that reads, and what the server counted."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import model_server
import peers
from environments import Process, environment
from ledgers import Ledger
from outcomes import Outcome, Result, longest_chain

from memagent.tasks.scoring import score_reply

_FAILURES = 0.1


@dataclass(frozen=True)
class Contestant:
    """A reader of `peers.py`, its settings, and its environment if that is not ours."""

    name: str
    reader: str
    settings: str
    environment: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is one of our workflows."""
        return not self.environment


PEERS = (
    Contestant("LangChain refine", "langchain", "refine", "langchain"),
    Contestant("LangChain map-reduce", "langchain", "map_reduce", "langchain"),
    Contestant("LlamaIndex refine", "llamaindex", "refine", "llamaindex"),
    Contestant("LlamaIndex tree-summarize", "llamaindex", "tree_summarize", "llamaindex"),
    Contestant("MemAgent's loop, re-created", "published", "", "openai"),
    Contestant("plain RAG (BM25)", "plain_rag", "", "bm25s"),
)


class Bench:
    """One contestant with its own GPU."""

    def __init__(self, contestant: Contestant, folder: Path, port: int) -> None:
        self._contestant, self._port = contestant, port
        self._gpu = contestant.name.replace(" ", "-").replace("/", "-")
        self._traces = folder / self._gpu
        self._traces.mkdir()
        self._process = self._start()
        self._jobs = 0
        self.result = Result(contestant.name, contestant.is_ours, self._process.versions)

    def _start(self) -> Process:
        contestant = self._contestant
        python = environment(contestant.environment) if contestant.environment else Path(sys.executable)
        url = f"http://127.0.0.1:{self._port}/{self._gpu}/v1"
        return Process(python, Path(peers.__file__), contestant.reader, contestant.settings, url)

    def close(self) -> None:
        """End its process."""
        self._process.close()

    def warm_up(self, document: Ledger) -> None:
        """Read a document, so that everything is imported and connected."""
        self._read([document])

    def compare(self, documents: Sequence[Ledger]) -> None:
        """Read each document as it is and with failing calls, and one with a kill halfway through."""
        self.result.clean = [self._read([document]) for document in documents]
        self.result.failing = [
            self._read([document], _FAILURES, seed) for seed, document in enumerate(documents, start=1)
        ]
        self._kill(documents[0], self.result.clean[0].calls)
        self._note("compared")

    def measure_scaling(self, documents: Sequence[Ledger]) -> None:
        """Read documents of growing length."""
        self.result.scaling = [self._read([document]) for document in documents]
        self._note("scaled")

    def measure_utilisation(self, documents: Sequence[Ledger]) -> None:
        """Read several documents at once."""
        self.result.at_once = self._read(documents)
        self._note("read at once")

    def _note(self, done: str) -> None:
        print(f"{self._contestant.name}: {done}", file=sys.stderr, flush=True)

    def _job(self, documents: Sequence[Ledger]) -> dict[str, Any]:
        self._jobs += 1
        names = [self._traces / f"{self._jobs}-{number}" for number in range(len(documents))]
        return {"tasks": [document.task(name) for document, name in zip(documents, names, strict=True)]}

    def _read(self, documents: Sequence[Ledger], failures: float = 0.0, seed: int = 0) -> Outcome:
        model_server.reset(self._port, self._gpu, failures, seed)
        return self._outcome(documents, self._process.ask(self._job(documents)))

    def _kill(self, document: Ledger, calls: int) -> None:
        """Kill the process after half of its calls, and let another do the same job."""
        model_server.reset(self._port, self._gpu)
        job = self._job([document])
        self._process.begin(job)
        while not self._is_half_done(calls):
            time.sleep(0.02)
        self._process.kill()
        self._process = self._start()
        self.result.killed = outcome = self._outcome([document], self._process.ask(job))
        self.result.paid_again = outcome.calls - calls

    def _is_half_done(self, calls: int) -> bool:
        begun, *_ = model_server.record(self._port, self._gpu)
        return bool(begun) and sum(call.ended > 0 for call in begun) >= calls // 2

    def _outcome(self, documents: Sequence[Ledger], reply: dict[str, Any]) -> Outcome:
        calls, busy, late = model_server.record(self._port, self._gpu)
        successful_calls = [call for call in calls if call.status == 200]
        cached = sum(call.cached_tokens for call in successful_calls)
        pairs = zip(documents, reply["answers"], strict=True)
        return Outcome(
            kind=documents[0].kind,
            chunks=documents[0].chunks,
            score=fmean(score_reply("string_match_all", answer, pair.answers) for pair, answer in pairs),
            silent=reply["errors"].count(""),
            errors=[error for error in reply["errors"] if error],
            seconds=reply["seconds"],
            calls=len(successful_calls),
            failed_calls=len(calls) - len(successful_calls),
            critical_path=longest_chain(successful_calls),
            computed_tokens=sum(call.prompt_tokens for call in successful_calls) - cached,
            cached_tokens=cached,
            completion_tokens=sum(call.completion_tokens for call in successful_calls),
            busy_seconds=busy,
            late_seconds=late,
        )
