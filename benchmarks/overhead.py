"""What a reader adds to each model call: time per chunk against an endpoint that answers at once.

memagent reads the file, splits it, keeps a journal and retries; the bare loop only posts the same requests.
`--peers` adds the openai client and LangChain's and LlamaIndex's refine chains, each in its own environment,
created on first use. All take turns in separate processes, so that a busy machine disturbs all alike. Not
covered: a model, TLS, a network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import contestants
import measure
import parts
import zero_server
from environments import Process, environment

from memagent import Read, open_document
from memagent.documents.tokens import estimate_tokens
from memagent.engines.openai import Connection, OpenAIEngine
from memagent.engines.requests import Requests
from memagent.settings import ReadSettings
from memagent.types import Model

_CHUNK_BYTES = 20_000  # 5000 tokens of four bytes
_CHUNKS = {1: 256, 16: 32, 256: 8}  # of the document, by concurrent reads, to keep the runs short
_OURS = ("bare", "memagent", "memagent+journal")
_PEERS = ("openai", "langchain", "llamaindex")


@dataclass(frozen=True)
class Timing:
    """One run of one contestant. The server counted the `calls`."""

    contestant: str
    reads: int
    calls: int
    seconds: float
    processor_seconds: float

    @property
    def milliseconds(self) -> float:
        """Wall time per call: the reciprocal of the throughput."""
        return self.seconds / self.calls * 1000

    @property
    def processor_milliseconds(self) -> float:
        """The client's processor time per call, which other work on the machine disturbs least."""
        return self.processor_seconds / self.calls * 1000


class Worker(Process):
    """A contestant in its own process."""

    def __init__(self, name: str, python: Path, port: int) -> None:
        super().__init__(python, Path(contestants.__file__), name, str(port))
        self.name = name
        self.port = port

    def run(self, reads: int, document: Path, requests: Path) -> Timing:
        """Let it read a document `reads` times at once."""
        before = zero_server.completions(self.port)
        took = self.ask({"reads": reads, "document": str(document), "requests": str(requests)})
        return Timing(self.name, reads, zero_server.completions(self.port) - before, **took)


class _Noting(Requests):
    """Records the requests that it makes."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.bodies: list[dict[str, Any]] = []

    def body(self, *given: Any, **named: Any) -> dict[str, Any]:
        self.bodies.append(super().body(*given, **named))
        return self.bodies[-1]


async def note_requests(document: Path, port: int) -> list[dict[str, Any]]:
    """The bodies of all requests of a read."""
    connection = Connection(f"http://127.0.0.1:{port}/v1")
    engine = OpenAIEngine(Model("zero", estimate_tokens), connection)
    engine.requests = noting = _Noting(connection)
    async for _ in Read(
        contestants.PROBLEM, open_document(document), engine, ReadSettings(workflow="overwrite")
    ):
        pass
    await engine.aclose()
    return noting.bodies


@dataclass
class Comparison:
    """All timings, the server's own milliseconds per call by concurrency, and the contestants' versions."""

    timings: list[Timing] = field(default_factory=list)
    ceilings: dict[int, float] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)


def compare(folder: Path, args: argparse.Namespace, port: int) -> Comparison:
    """Let all contestants run."""
    done = Comparison()
    with ExitStack() as stack:
        workers = [Worker(name, Path(sys.executable), port) for name in _OURS]
        workers += [Worker(name, environment(name), port) for name in (_PEERS if args.peers else ())]
        for worker in workers:
            stack.callback(worker.close)
            done.versions[worker.name] = worker.versions
        for reads in args.reads:
            document, requests = folder / f"{reads}.txt", folder / f"{reads}.json"
            chunks = _CHUNKS.get(reads, 16)
            measure.write_text(document, args.text, chunks * _CHUNK_BYTES)
            bodies = asyncio.run(note_requests(document, port))
            requests.write_text(json.dumps(bodies), "utf-8")
            encoded = [json.dumps(body).encode() for body in bodies]
            done.ceilings[reads] = 1000 * zero_server.seconds_per_call(port, encoded, reads)
            for worker in workers:  # connections, imports, caches
                worker.run(reads, document, requests)
            for turn in range(args.rounds):
                print(f"{reads} concurrent, round {turn + 1} of {args.rounds}", file=sys.stderr)
                done.timings += [worker.run(reads, document, requests) for worker in workers]
    return done


def summary(timings: Sequence[Timing], ceilings: dict[int, float]) -> Iterable[Sequence[object]]:
    """A row for each concurrency and contestant; ratios are medians of the ratios of each round."""
    for reads, ceiling in ceilings.items():
        rows = [timing for timing in timings if timing.reads == reads]
        bare = [timing for timing in rows if timing.contestant == "bare"]
        for name in dict.fromkeys(timing.contestant for timing in rows):
            mine = [timing for timing in rows if timing.contestant == name]
            clock, clock_ratio = _median_and_ratio(mine, bare, attrgetter("milliseconds"))
            own, own_ratio = _median_and_ratio(mine, bare, attrgetter("processor_milliseconds"))
            yield (
                reads,
                name,
                *(f"{item:.2f}" for item in (clock, clock_ratio, own, own_ratio)),
                f"{1000 / clock:.0f}",
            )
        yield reads, "server, raw sockets", f"{ceiling:.2f}", "", "", "", f"{1000 / ceiling:.0f}"


def _median_and_ratio(
    mine: Sequence[Timing], bare: Sequence[Timing], value: Callable[[Timing], float]
) -> tuple[float, float]:
    ratios = [value(one) / value(other) for one, other in zip(mine, bare, strict=True)]
    return median(map(value, mine)), median(ratios)


def share(alone: dict[str, float], timings: Sequence[Timing]) -> Iterable[tuple[str, str]]:
    """Where a chunk's time goes in a single read: the bare loop, parts run alone, and the rest."""
    of = {
        name: median(
            timing.processor_milliseconds
            for timing in timings
            if timing.contestant == name and timing.reads == 1
        )
        for name in _OURS
    }
    known = of["bare"] + sum(alone.values())
    rows = {
        "HTTP (the bare loop)": of["bare"],
        **alone,
        "the rest: the engine, generators, budgets": of["memagent+journal"] - known,
        "all of memagent, with a journal": of["memagent+journal"],
    }
    yield from ((name, f"{milliseconds:.3f}") for name, milliseconds in rows.items())


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--reads", type=int, nargs="+", default=list(_CHUNKS), help="concurrent reads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", action="store_true", help="also openai, LangChain and LlamaIndex")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="how long the endpoint takes per call")
    parser.add_argument("--text", type=Path, nargs="+", default=[measure.STORY])
    measure.add_json_flag(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, zero_server.serving(args.delay_ms / 1000) as port:
        done = compare(Path(name), args, port)
        alone = parts.measure(Path(name, f"{args.reads[0]}.txt"), Path(name), max(args.rounds, 5))
    head = ("reads", "contestant", "ms/chunk", "of bare", "CPU ms/chunk", "of bare", "chunks/s")
    print(measure.table(head, summary(done.timings, done.ceilings)), end="\n\n")
    if 1 in args.reads:
        print(measure.table(("one read, with a journal", "CPU ms/chunk"), share(alone, done.timings)))
    record = measure.provenance()
    record |= {"versions": done.versions, "server_ms": done.ceilings, "parts_ms": alone}
    record["timings"] = [asdict(timing) for timing in done.timings]
    measure.write_json(args.json, record)


if __name__ == "__main__":
    main()
