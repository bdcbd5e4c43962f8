"""Ways to read a long document, ours and other people's, with the same model: score, time and cost.

Each reader runs in its own process and environment, with the same model, documents and scorer. The server
counts what was computed and which calls had to wait for others (`model_server.py` describes the model).
All readers read at once (a few for long documents), each with its own GPU, on documents of `ledgers.py`.

Results are written to the file of `--json` as they come; `--resume` measures the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import compare_plot
import ledgers
import measure
import model_server
import outcomes
from bench import PEERS, Bench, Contestant
from outcomes import FOR_SHORT_DOCUMENTS, Result

from memagent.reading.workflows import workflows

_READS = 16  # at once, for the utilisation
_FEW = 3  # readers that two cores serve side by side without a wait
_LOOKAHEAD = 8
_AHEAD = (
    "evidence",
    "gated",
    "heads",
    "reread",
)  # of those installed, whose replies may leave the memory alone
# Made for what a real model finds hard: one that reads perfectly shows nothing of that.
_NOT_MEASURED = (*FOR_SHORT_DOCUMENTS, "auto", "notes", "select", "tally")
_MORE_THAN_FIT = 1000  # passages: `rag` shows as many as its window holds
_SIZES = ("documents", "chunks", "scaling")

Keep = Callable[[Result], None]


def contestants_of(names: Sequence[str]) -> list[Contestant]:
    """Peers and our workflows, some of them with other settings too: all of them, or those named."""

    def ours(name: str, suffix: str = "", **values: Any) -> Contestant:
        settings = {"workflow": name, **values}
        return Contestant(f"memagent {name}{suffix}", "ours", json.dumps(settings))

    everyone = [
        *PEERS,
        *(ours(workflow) for workflow in workflows() if workflow not in _NOT_MEASURED),
        *(ours(item, " ahead", lookahead=_LOOKAHEAD) for item in _AHEAD if item in workflows()),
        ours("rag", " filled", passages=_MORE_THAN_FIT),
    ]
    return [
        contestant
        for contestant in everyone
        if not names or contestant.name.removeprefix("memagent ") in names
    ]


def run(args: argparse.Namespace, left: Sequence[Contestant], keep: Keep) -> None:
    """Let all contestants read at the same time, each with its own GPU; long documents a few at a time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(model_server.serving())
        write = partial(ledgers.write_ledger, folder)
        documents = [
            write(kind, args.chunks, seed) for seed in range(args.documents) for kind in ("values", "hops")
        ]
        lengths = [write("hops", chunks, 0) for chunks in args.scaling]
        crowd = [write("hops", max(2, args.chunks // 3), seed) for seed in range(1, _READS + 1)]
        benches = [stack.enter_context(closing(Bench(contestant, folder, port))) for contestant in left]
        ours = [bench for bench in benches if bench.result.ours]
        with ThreadPoolExecutor(len(benches)) as pool:
            list(pool.map(lambda bench: bench.warm_up(crowd[0]), benches))
            list(pool.map(lambda bench: bench.compare(documents), benches))
        with ThreadPoolExecutor(_FEW) as pool:
            list(pool.map(lambda bench: bench.measure_scaling(lengths), ours))
        for bench in ours:  # one by one: sixteen reads keep the client's processor busy
            bench.measure_utilisation(crowd)
        for bench in benches:
            keep(bench.result)


class Record:
    """The results so far, kept on disk if there is a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.sizes: dict[str, Any] = {}
        self._told = measure.provenance()
        self.results: list[Result] = []

    def resume(self, sizes: dict[str, Any]) -> None:
        """Load what the file holds. Raises `ValueError` if it was measured with other sizes."""
        if not self._path or not self._path.exists():
            return
        earlier = json.loads(self._path.read_text("utf-8"))
        if earlier["sizes"] != sizes:
            raise ValueError(f"{self._path} was measured with {earlier['sizes']}, not with {sizes}")
        self.results = [Result.load(result) for result in earlier["results"]]
        self.sizes = earlier["sizes"]
        self._told["continues"] = [*earlier.get("continues", []), earlier["command"]]

    def keep(self, sizes: dict[str, Any], result: Result) -> None:
        """Add a result and write the record."""
        self.results.append(result)
        self.sizes = sizes
        results = {"sizes": self.sizes, "results": [item.told() for item in self.results]}
        measure.write_json(self._path, self._told | results)

    def sort_results(self) -> list[Result]:
        """The results in the order of the table; those of workflows that are not installed come last."""
        names = [contestant.name for contestant in contestants_of([])]
        return sorted(self.results, key=lambda item: [*names, item.name].index(item.name))


def report(record: Record) -> Iterator[str]:
    """The tables, and what they leave out."""
    results = record.sort_results()
    yield json.dumps(record.sizes)
    yield measure.table(outcomes.head(results), outcomes.rows(results))
    for left_out, reason in outcomes.NOT_COMPARABLE.items():
        yield f"{left_out} is not comparable with this model: {reason}."
    if scaled := [*outcomes.scaling_rows(results)]:
        lengths = record.sizes["scaling"]
        head = ("chunks", *map(str, lengths), "exponent", "busy with 16 reads")
        yield measure.table(head, scaled)
    if goals := [*outcomes.goals(results)]:
        yield measure.table(("peer", "ours, as good or better", "of its time", "a third"), goals)
    late = max(outcome.late_seconds for result in results for outcome in (*result.clean, *result.failing))
    yield f"At worst the simulated GPU was {late:.2f} s behind its clock."


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the readers")
    parser.add_argument("--documents", type=int, default=2, help="of each kind (2)")
    parser.add_argument("--chunks", type=int, default=24, help="of each document, 5000 tokens each")
    parser.add_argument("--scaling", type=int, nargs="+", default=[32, 64, 128, 256], help="chunks")
    parser.add_argument("--resume", action="store_true", help="measure only what the file of --json lacks")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw plots (needs the extra report)")
    measure.add_json_flag(parser)
    args = parser.parse_args()
    if args.resume and not args.json:
        parser.error("--resume needs a file to continue: --json FILE")
    if not contestants_of(args.only):
        known = ", ".join(contestant.name for contestant in contestants_of([]))
        parser.error(f"no such reader; choose from {known}")
    return args


def main() -> None:
    """Compare, print, write, draw."""
    args = _arguments()
    sizes = {name: getattr(args, name) for name in _SIZES}
    record = Record(args.json)
    if args.resume:
        try:
            record.resume(sizes)
        except ValueError as error:
            sys.exit(f"{error}: give the same sizes, or another file")
    done = {result.name for result in record.results}
    if left := [contestant for contestant in contestants_of(args.only) if contestant.name not in done]:
        run(args, left, partial(record.keep, sizes))
    print(*report(record), sep="\n\n", end="\n\n", flush=True)
    if args.plot:
        compare_plot.draw([result.told() for result in record.results], args.plot)


if __name__ == "__main__":
    main()
