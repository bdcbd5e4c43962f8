"""Ways to read a long document, ours and other people's, with the same model: score, time and cost.

Each reader runs in its own process and environment, with the same model, documents and scorer. The server
counts what was computed and which calls had to wait for others (`model_server.py` describes the models).
`simulated`: all readers at once (a few for long documents), each with its own GPU, on documents of
`ledgers.py`. `embedded`: memagent's embedded model, one reader after the other, on RULER's examples. `bare`:
the same without the adapter.

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
from model_server import MODELS, SIMULATED
from outcomes import FOR_SHORT_DOCUMENTS, Result

from memagent.reading.workflows import workflows

_TASKS = ("niah_single_1", "niah_multikey_1")  # of RULER, for the embedded model
_READS = 16  # at once, for the utilisation
_FEW = 3  # readers that two cores serve side by side without a wait
_LOOKAHEAD = 8
_MORE_THAN_FIT = 1000  # passages: `rag` shows as many as its window holds
_SIZES = {SIMULATED: ("documents", "chunks", "scaling")}
_EMBEDDED_SIZES = ("documents", "tokens", "trouble")

Keep = Callable[[Result], None]


def contestants_of(names: Sequence[str], setting: str) -> list[Contestant]:
    """Peers and our workflows, some of them with other settings too: all of them, or those named."""

    def ours(name: str, suffix: str = "", **values: Any) -> Contestant:
        settings = {"workflow": name, "model": setting, **values}
        return Contestant(f"memagent {name}{suffix}", "ours", json.dumps(settings))

    everyone = [
        *PEERS,
        *(ours(it) for it in workflows() if setting != SIMULATED or it not in FOR_SHORT_DOCUMENTS),
    ]
    if setting == SIMULATED:
        looking = [name for name, it in workflows().items() if it.looks_ahead]
        everyone += [ours(name, " ahead", lookahead=_LOOKAHEAD) for name in looking]
        everyone += [ours("rag", " filled", passages=_MORE_THAN_FIT)]
    else:
        everyone += [ours("gated", " screened", screen=True)]
    return [it for it in everyone if not names or it.name.removeprefix("memagent ") in names]


def run_simulated(args: argparse.Namespace, left: Sequence[Contestant], keep: Keep) -> None:
    """Let all contestants read at the same time, each with its own GPU; long documents a few at a time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(model_server.serving(SIMULATED))
        write = partial(ledgers.write_ledger, folder)
        documents = [
            write(kind, args.chunks, seed) for seed in range(args.documents) for kind in ("values", "hops")
        ]
        lengths = [write("hops", chunks, 0) for chunks in args.scaling]
        crowd = [write("hops", max(2, args.chunks // 3), seed) for seed in range(1, _READS + 1)]
        benches = [stack.enter_context(closing(Bench(it, SIMULATED, folder, port))) for it in left]
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


def run_embedded(args: argparse.Namespace, setting: str, left: Sequence[Contestant], keep: Keep) -> None:
    """Let the contestants read RULER's examples with the embedded model, one after the other."""
    chunk_tokens = model_server.reader_budgets()["chunk_tokens"]
    with tempfile.TemporaryDirectory() as name, model_server.serving(setting) as port:
        write = partial(ledgers.write_example, Path(name), tokens=args.tokens, chunk_tokens=chunk_tokens)
        documents = [write(task, number=number) for number in range(args.documents) for task in _TASKS]
        beginning = ledgers.write_beginning(documents[0])
        for contestant in left:
            with closing(Bench(contestant, setting, Path(name), port)) as bench:
                bench.warm_up(beginning)
                (bench.compare if args.trouble else bench.read_all)(documents)
                keep(bench.result)


class Record:
    """The results so far, kept on disk if there is a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.sizes: dict[str, dict[str, Any]] = {}
        self._told = measure.provenance()
        self.results: list[Result] = []

    def resume(self, sizes: dict[str, Any]) -> None:
        """Load what the file holds. Raises `ValueError` if it was measured with other sizes."""
        if not self._path or not self._path.exists():
            return
        earlier = json.loads(self._path.read_text("utf-8"))
        for setting, it in earlier["sizes"].items():
            if sizes.get(setting, it) != it:
                raise ValueError(f"{self._path} has {setting} with {it}, not with {sizes[setting]}")
        self.results = [Result.load(it) for it in earlier["results"]]
        self.sizes = earlier["sizes"]
        self._told["continues"] = [*earlier.get("continues", []), earlier["command"]]

    def keep(self, sizes: dict[str, Any], result: Result) -> None:
        """Add a result and write the record."""
        self.results.append(result)
        self.sizes[result.setting] = sizes[result.setting]
        results = {"sizes": self.sizes, "results": [it.told() for it in self.results]}
        measure.write_json(self._path, self._told | results)

    def of(self, setting: str) -> list[Result]:
        """The results of a setting, in the order of its table."""
        names = [it.name for it in contestants_of([], setting)]
        return sorted(
            (it for it in self.results if it.setting == setting), key=lambda it: names.index(it.name)
        )


def report(record: Record, setting: str) -> Iterator[str]:
    """The tables of a setting, and what they leave out."""
    results = record.of(setting)
    yield f"{setting}: {json.dumps(record.sizes[setting])}"
    yield measure.table(outcomes.head(results), outcomes.rows(results))
    for left_out, reason in outcomes.NOT_COMPARABLE.items():
        yield f"{left_out} is not comparable with this model: {reason}."
    if scaled := [*outcomes.scaling_rows(results)]:
        lengths = record.sizes[setting]["scaling"]
        head = ("chunks", *map(str, lengths), "exponent", "busy with 16 reads")
        yield measure.table(head, scaled)
    if goals := [*outcomes.goals(results)]:
        yield measure.table(("peer", "ours, as good or better", "of its time", "a third"), goals)
    if setting == SIMULATED:
        late = max(outcome.late_seconds for it in results for outcome in (*it.clean, *it.failing))
        yield f"At worst the simulated GPU was {late:.2f} s behind its clock."


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    several: dict[str, Any] = {"nargs": "+", "default": []}
    parser.add_argument("--setting", **several | {"default": MODELS[:2]}, choices=MODELS, help="both")
    parser.add_argument("--only", **several, metavar="NAME", help="some of the readers")
    parser.add_argument("--documents", type=int, default=2, help="of each kind (2)")
    parser.add_argument(
        "--chunks", type=int, default=24, help="simulated: of each document, 5000 tokens each"
    )
    parser.add_argument(
        "--scaling", type=int, nargs="+", default=[32, 64, 128, 256], help="simulated: chunks"
    )
    parser.add_argument(
        "--tokens", type=int, default=2048, help="embedded: of each of RULER's examples (2048)"
    )
    parser.add_argument("--trouble", action="store_true", help="embedded: failing calls and a kill as well")
    parser.add_argument("--resume", action="store_true", help="measure only what the file of --json lacks")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw plots (needs the extra report)")
    measure.add_json_flag(parser)
    args = parser.parse_args()
    if args.resume and not args.json:
        parser.error("--resume needs a file to continue: --json FILE")
    if not any(contestants_of(args.only, setting) for setting in args.setting):
        known = ", ".join(it.name for it in contestants_of([], args.setting[-1]))
        parser.error(f"no such reader; choose from {known}")
    return args


def main() -> None:
    """Compare, print, write, draw."""
    args = _arguments()
    sizes = {
        setting: {name: getattr(args, name) for name in _SIZES.get(setting, _EMBEDDED_SIZES)}
        for setting in args.setting
    }
    record = Record(args.json)
    if args.resume:
        try:
            record.resume(sizes)
        except ValueError as error:
            sys.exit(f"{error}: give the same sizes, or another file")
    for setting in args.setting:
        done = {it.name for it in record.of(setting)}
        left = [it for it in contestants_of(args.only, setting) if it.name not in done]
        run = run_simulated if setting == SIMULATED else partial(run_embedded, setting=setting)
        if left:
            run(args, left=left, keep=partial(record.keep, sizes))
    for setting in record.sizes:
        print(*report(record, setting), sep="\n\n", end="\n\n", flush=True)
    if args.plot:
        compare_plot.draw([it.told() for it in record.results], args.plot)


if __name__ == "__main__":
    main()
