"""How fast a text is split into chunks, and how much memory that takes, up to a gigabyte.

Each run has its own process, so that its peak memory can be measured: memagent without a tokenizer (the
estimate), with one, and the tokenizer alone on pieces of a chunk's size. Runs are interleaved. Not covered:
conversion of formats, models.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import median

import measure

_CHUNK_TOKENS = 5000
_VOCABULARY = 49_152
_WAYS = ("estimate", "tokenizer", "tokenizer alone")


@dataclass(frozen=True)
class Run:
    """One pass over a text. `counted` is how many characters were counted per character of text."""

    way: str
    megabytes: int
    seconds: float
    processor_seconds: float
    peak_mebibytes: float
    chunks: int
    tokens: int
    counted: float

    @property
    def speed(self) -> float:
        """MB/s by the clock."""
        return self.megabytes / self.seconds

    @property
    def processor_speed(self) -> float:
        """MB per second of processor time, which other work on the machine disturbs least."""
        return self.megabytes / self.processor_seconds


def with_estimate(path: Path, _: Path | None) -> tuple[int, int, float]:
    """memagent without a tokenizer."""
    from memagent.documents.tokens import estimate_tokens

    return _chunk(path, estimate_tokens)


def with_tokenizer(path: Path, tokenizer: Path | None) -> tuple[int, int, float]:
    """memagent with a tokenizer."""
    from memagent.documents.tokens import load_tokenizer

    assert tokenizer
    return _chunk(path, load_tokenizer(tokenizer))


def _chunk(path: Path, count_tokens: Callable[[str], int]) -> tuple[int, int, float]:
    from memagent.documents.chunking import split
    from memagent.documents.opening import open_document

    chunks = tokens = characters = counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return count_tokens(text)

    for chunk in split(open_document(path), _CHUNK_TOKENS, count):
        chunks, tokens, characters = chunks + 1, tokens + chunk.tokens, characters + len(chunk.text)
    return chunks, tokens, counted / characters


def tokenizer_alone(path: Path, tokenizer: Path | None) -> tuple[int, int, float]:
    """The same call of the tokenizer, on pieces of 4 characters per token, with nothing around it."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    chunks = tokens = 0
    with path.open(encoding="utf-8", newline="") as file:
        while piece := file.read(4 * _CHUNK_TOKENS):
            tokens += len(encoder.encode_batch_fast([piece], add_special_tokens=False)[0])
            chunks += 1
    return chunks, tokens, 1.0


def peak_mebibytes() -> float:
    """The peak memory of this process, from /proc/self/status if there is one, else from getrusage."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except OSError:
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def work(way: str, path: Path, tokenizer: Path | None) -> None:
    """Make one run and print it as JSON."""
    passes = dict(zip(_WAYS, (with_estimate, with_tokenizer, tokenizer_alone), strict=True))
    if way != _WAYS[2]:
        import_module("memagent.documents.opening")  # not part of what is measured
    processor, started = time.process_time(), time.perf_counter()
    chunks, tokens, counted = passes[way](path, tokenizer)
    run = Run(
        way=way,
        megabytes=round(path.stat().st_size / 10**6),
        seconds=time.perf_counter() - started,
        processor_seconds=time.process_time() - processor,
        peak_mebibytes=peak_mebibytes(),
        chunks=chunks,
        tokens=tokens,
        counted=counted,
    )
    print(json.dumps(asdict(run)))


def start(way: str, path: Path, tokenizer: Path | None) -> Run:
    """Make one run in a fresh process."""
    command = [sys.executable, __file__, "--work", way, "--text", str(path)]
    command += ["--tokenizer", str(tokenizer)] if tokenizer else []
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment)
    return Run(**json.loads(done.stdout))


def runs(args: argparse.Namespace, folder: Path) -> Iterator[Run]:
    """Make all runs, size by size, with the ways interleaved."""
    ways = _WAYS if args.tokenizer else _WAYS[:1]
    for megabytes in args.sizes:
        path = folder / f"{megabytes}.txt"
        measure.write_text(path, args.text, megabytes * 10**6)
        rounds = args.rounds if megabytes <= args.rounds_up_to else 1
        for turn in range(rounds):
            for way in ways:
                print(f"{megabytes} MB, {way}, round {turn + 1} of {rounds}", file=sys.stderr)
                yield start(way, path, None if way == "estimate" else args.tokenizer)
        path.unlink()


def summary(done: Sequence[Run]) -> Iterable[Sequence[object]]:
    """A row for each size and way; ratios are medians over rounds, by processor time."""
    for megabytes in dict.fromkeys(run.megabytes for run in done):
        of_size = [run for run in done if run.megabytes == megabytes]
        alone = [run.processor_speed for run in of_size if run.way == "tokenizer alone"]
        for way in dict.fromkeys(run.way for run in of_size):
            mine = [run for run in of_size if run.way == way]
            speeds = [run.processor_speed for run in mine]
            ratio = median(map(float.__truediv__, speeds, alone)) if alone and way != "estimate" else None
            yield (
                f"{megabytes} MB",
                way,
                median(run.speed for run in mine),
                median(speeds),
                "" if ratio is None else f"{ratio:.2f}",
                f"{max(run.peak_mebibytes for run in mine):.0f}",
                f"{mine[0].counted:.3f}",
                len(mine),
            )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000], metavar="MB")
    parser.add_argument("--text", type=Path, nargs="+", default=[measure.STORY], help="texts to vary")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; without it the estimate only")
    parser.add_argument("--train-tokenizer", action="store_true", help="make --tokenizer from --text first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rounds-up-to", type=int, default=100, metavar="MB", help="larger: one round")
    parser.add_argument("--work", choices=_WAYS, help=argparse.SUPPRESS)
    measure.add_json_flag(parser)
    args = parser.parse_args()
    if args.work:
        return work(args.work, args.text[0], args.tokenizer)
    if args.train_tokenizer:
        if not args.tokenizer:
            parser.error("--train-tokenizer needs --tokenizer, the file to write")
        lines = (line for text in args.text for line in text.read_text("utf-8").splitlines(keepends=True))
        measure.train_tokenizer(lines, _VOCABULARY, args.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        done = list(runs(args, Path(folder)))
    head = ("text", "counting", "MB/s", "MB/CPU s", "of alone", "peak MiB", "counted", "runs")
    print(measure.table(head, summary(done)))
    record = measure.provenance()
    record["versions"] = {name: measure.find_version(name) for name in ("memagent", "tokenizers")}
    record["runs"] = [asdict(run) for run in done]
    measure.write_json(args.json, record)
    return None


if __name__ == "__main__":
    main()
