"""Ways to read a long document, ours and other people's, on one simulated 7B model: score, time and cost.

Each reader runs in a process of its own, in the environment that it needs, against a GPU of its own
(`model_server.py` says what that is), all at the same time: same model, same documents (`ledgers.py`),
same scorer. What was computed, and what had to wait for what, is counted by the server.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import compare_plot
import ledgers
import measure
import model_server
import outcomes
import peers
from environments import Process, environment
from ledgers import Ledger
from outcomes import Outcome, Result, longest_chain

from memagent.engines.adapters import adapter_of, trained_with
from memagent.reading.workflows import WORKFLOWS
from memagent.settings import EngineSettings
from memagent.tasks.scoring import score_reply

_FOR_SHORT_DOCUMENTS = ("full", "truncate")
_TASKS = ("niah_single_1", "niah_multikey_1")  # of RULER, for the embedded model
_FAILURES = 0.1
_READS = 16  # at once, for the utilisation


@dataclass(frozen=True)
class Contestant:
    """A reader of `peers.py`, its settings, and its environment where that is not ours."""

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
    """One contestant at its GPU."""

    def __init__(self, contestant: Contestant, folder: Path, port: int) -> None:
        self._contestant, self._port = contestant, port
        self._gpu = contestant.name.replace(" ", "-").replace("/", "-")
        self._traces = folder / self._gpu
        self._traces.mkdir()
        self._process = self._start()
        self._jobs = 0
        self.result = Result(contestant.name, contestant.is_ours, self._process.versions)

    def _start(self) -> Process:
        it = self._contestant
        python = environment(it.environment) if it.environment else Path(sys.executable)
        url = f"http://127.0.0.1:{self._port}/{self._gpu}/v1"
        return Process(python, Path(peers.__file__), it.reader, url, it.settings)

    def close(self) -> None:
        """End its process."""
        self._process.close()

    def warm_up(self, document: Ledger) -> None:
        """Read a document, so that all is imported and connected."""
        self._read([document])

    def read_all(self, documents: Sequence[Ledger]) -> None:
        """Read each document as it is."""
        self.result.clean = [self._read([it]) for it in documents]
        self._note("read")

    def compare(self, documents: Sequence[Ledger]) -> None:
        """Read each document as it is and with failing calls, and one with a kill on half of the way."""
        self.read_all(documents)
        self.result.failing = [
            self._read([it], _FAILURES, seed) for seed, it in enumerate(documents, start=1)
        ]
        self._kill(documents[0], self.result.clean[0].calls)
        self._note("compared")

    def measure_scaling(self, documents: Sequence[Ledger]) -> None:
        """Read documents of growing length."""
        self.result.scaling = [self._read([it]) for it in documents]
        self._note("scaled")

    def measure_utilisation(self, documents: Sequence[Ledger]) -> None:
        """Read several documents at once."""
        self.result.at_once = self._read(documents)
        self._note("read at once")

    def _note(self, done: str) -> None:
        print(f"{self._contestant.name}: {done}", file=sys.stderr)

    def _job(self, documents: Sequence[Ledger]) -> dict[str, Any]:
        self._jobs += 1
        names = [self._traces / f"{self._jobs}-{place}" for place in range(len(documents))]
        return {"tasks": [it.task(name) for it, name in zip(documents, names, strict=True)]}

    def _read(self, documents: Sequence[Ledger], failures: float = 0.0, seed: int = 0) -> Outcome:
        model_server.reset(self._port, self._gpu, failures, seed)
        return self._outcome(documents, self._process.ask(self._job(documents)))

    def _kill(self, document: Ledger, calls: int) -> None:
        """Kill the process once half of its calls have ended, and let another do the same job."""
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

    def _outcome(self, documents: Sequence[Ledger], told: dict[str, Any]) -> Outcome:
        calls, busy, late = model_server.record(self._port, self._gpu)
        made = [call for call in calls if call.status == 200]
        cached = sum(call.cached_tokens for call in made)
        pairs = zip(documents, told["answers"], strict=True)
        return Outcome(
            kind=documents[0].kind,
            chunks=documents[0].chunks,
            score=fmean(score_reply("string_match_all", answer, it.answers) for it, answer in pairs),
            silent=told["errors"].count(""),
            errors=[error for error in told["errors"] if error],
            seconds=told["seconds"],
            calls=len(made),
            failed_calls=len(calls) - len(made),
            critical_path=longest_chain(made),
            computed_tokens=sum(call.prompt_tokens for call in made) - cached,
            cached_tokens=cached,
            completion_tokens=sum(call.completion_tokens for call in made),
            busy_seconds=busy,
            late_seconds=late,
        )


def contestants_of(names: Sequence[str], embedded: bool) -> list[Contestant]:
    """Peers and our workflows, all of them or those that are named."""
    ours = [
        Contestant(f"memagent {name}", "ours", json.dumps({"workflow": name, "embedded": embedded}))
        for name in WORKFLOWS
        if name not in _FOR_SHORT_DOCUMENTS
    ]
    everyone = [*PEERS, *ours]
    return [it for it in everyone if not names or it.name.removeprefix("memagent ") in names]


def run(args: argparse.Namespace, folder: Path, port: int) -> list[Result]:
    """Let all contestants read everything, side by side."""
    write = partial(ledgers.write_ledger, folder)
    documents = [
        write(kind, args.chunks, seed) for seed in range(args.documents) for kind in ("values", "hops")
    ]
    lengths = [write("hops", chunks, 0) for chunks in args.scaling]
    crowd = [write("hops", max(2, args.chunks // 3), seed) for seed in range(1, _READS + 1)]
    with ExitStack() as stack:
        benches = [Bench(it, folder, port) for it in contestants_of(args.only, embedded=False)]
        for bench in benches:
            stack.callback(bench.close)
        with ThreadPoolExecutor(len(benches)) as pool:
            list(pool.map(lambda bench: bench.warm_up(crowd[0]), benches))
            list(pool.map(lambda bench: bench.compare(documents), benches))
            ours = [bench for bench in benches if bench.result.ours]
            list(pool.map(lambda bench: bench.measure_scaling(lengths), ours))
        for bench in ours:  # sixteen reads are enough for the client's processor
            bench.measure_utilisation(crowd)
        return [bench.result for bench in benches]


def run_embedded(args: argparse.Namespace, folder: Path, port: int) -> list[Result]:
    """Let the contestants read RULER's examples with the embedded model, one after the other."""
    trained = trained_with(adapter_of(EngineSettings(), "llamacpp"))
    chunk_tokens = trained.budgets.get("chunk_tokens", ledgers.CHUNK_TOKENS)
    write = partial(ledgers.write_example, folder, tokens=args.tokens, chunk_tokens=chunk_tokens)
    documents = [write(task, number=number) for number in range(args.documents) for task in _TASKS]
    results = []
    for contestant in contestants_of(args.only, embedded=True):
        bench = Bench(contestant, folder, port)
        bench.read_all(documents)
        bench.close()
        results.append(bench.result)
    return results


def main() -> None:
    """Compare, print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=2, help="of each kind")
    parser.add_argument("--chunks", type=int, default=24, help="of each document, 5000 tokens each")
    parser.add_argument("--scaling", type=int, nargs="+", default=[32, 64, 128, 256], help="chunks")
    parser.add_argument("--embedded", action="store_true", help="the embedded model, with RULER's examples")
    parser.add_argument("--tokens", type=int, default=4096, help="of each of RULER's examples")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the readers")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw a picture (needs the extra report)")
    measure.add_json_flag(parser)
    args = parser.parse_args()
    if not contestants_of(args.only, args.embedded):
        parser.error(f"no reader has such a name: {', '.join(it.name for it in contestants_of([], False))}")
    compare = run_embedded if args.embedded else run
    with tempfile.TemporaryDirectory() as name, model_server.serving(args.embedded) as port:
        results = compare(args, Path(name), port)
    print(measure.table(outcomes.head(results), outcomes.rows(results)), end="\n\n")
    if not args.embedded:
        for left_out, reason in outcomes.NOT_COMPARABLE.items():
            print(f"{left_out} is not comparable on a scripted endpoint: {reason}.")
        head = ("chunks", *map(str, args.scaling), "exponent", "busy with 16 reads")
        print()
        print(measure.table(head, outcomes.scaling_rows(results)), end="\n\n")
    print(
        measure.table(("peer", "ours, as good or better", "of its time", "a third"), outcomes.goals(results))
    )
    late = max(outcome.late_seconds for it in results for outcome in (*it.clean, *it.failing))
    if not args.embedded:
        print(f"\nAt worst the simulated GPU was {late:.2f} s behind its clock.")
    record = measure.provenance()
    record["results"] = [asdict(it) | {"exponent": it.exponent} for it in results]
    measure.write_json(args.json, record)
    if args.plot:
        compare_plot.draw(record["results"], args.plot)


if __name__ == "__main__":
    main()
