"""What the benchmarks share: texts of any size, rows, tables, and a record of where numbers come from."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

STORY = Path(__file__).parent.parent / "examples" / "blue_carbuncle.txt"
_SYLLABLES = ("ka", "lo", "mi", "ren", "tas", "vor", "el", "dun", "shi", "bra", "que", "zen", "pol", "ith")
_WORD = re.compile(r"\b[a-z]{5,}\b")
_EVERY = 40  # one in this many longer words is replaced


@contextmanager
def start(script: str, *words: str) -> Iterator[int]:
    """Run a server in its own process for the block; yields its port, which it prints first."""
    process = subprocess.Popen([sys.executable, script, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def vary(text: str, size_bytes: int) -> Iterator[str]:
    """Repeat `text` up to `size_bytes`, never the same twice: paragraphs are reordered and some words
    replaced by invented ones or numbers, so that no cache of words or texts helps.
    """
    produced_bytes, copy = 0, 0
    paragraphs = text.split("\n\n")
    while produced_bytes < size_bytes:
        chance = random.Random(copy)
        chance.shuffle(paragraphs)
        strange = partial(_strange, chance)
        piece = _WORD.sub(strange, "\n\n".join(paragraphs)) + "\n\n"
        piece = piece.encode()[: size_bytes - produced_bytes].decode(errors="ignore")
        if not piece:
            return
        produced_bytes += len(piece.encode())
        copy += 1
        yield piece


def _strange(chance: random.Random, word: re.Match[str]) -> str:
    if chance.random() * _EVERY > 1:
        return word[0]
    if chance.random() < 0.2:
        return str(chance.randrange(10**6))
    return "".join(chance.choices(_SYLLABLES, k=3))


def write_text(path: Path, sources: Sequence[Path], size_bytes: int) -> None:
    """Fill a file with a varied text."""
    text = "\n\n".join(source.read_text("utf-8") for source in sources)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(vary(text, size_bytes))


def train_tokenizer(texts: Iterable[str], vocabulary: int, target: Path) -> None:
    """Train a byte-level BPE tokenizer, as most models have, with so many tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(target))
    print(f"{target}: {tokenizer.get_vocab_size()} tokens", file=sys.stderr)


def name_model(model: str) -> str:
    """What rows and folders call a model: a GGUF's file without its ending, or the last part of a name."""
    return Path(model).name.removesuffix(".gguf")


def load_rows(path: Path, *, missing_ok: bool = False) -> list[dict[str, Any]]:
    """The rows of a file: JSON lines or a JSON list, gzipped if its name ends in .gz.

    With `missing_ok` there are none if there is no such file.
    """
    if missing_ok and not path.exists():
        return []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = list(file)
    is_list = bool(lines) and lines[0].startswith("[")
    rows: list[dict[str, Any]] = json.loads("".join(lines)) if is_list else list(map(json.loads, lines))
    return rows


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def provenance() -> dict[str, Any]:
    """When, where and by which command this process was run."""
    command = shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": command,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}{_vector_unit()}",
        "python": platform.python_version(),
    }


def find_version(package: str) -> str:
    """A package's version, or a dash."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def print_versions(packages: Iterable[str], file: IO[str]) -> None:
    """Print the versions of those that are installed, as a line of JSON."""
    versions = {package: find_version(package) for package in packages}
    installed = {package: number for package, number in versions.items() if number != "-"}
    print(json.dumps(installed), file=file, flush=True)


def _vector_unit() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    return next((f", {name.upper()}" for name in ("avx2", "asimd") if f" {name}" in flags), "")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, all but the first column right-aligned."""
    texts = [[f"{item:.3g}" if isinstance(item, float) else str(item) for item in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, texts)])


def make_parser(text: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows the text, a script's docstring, as it stands."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add the `--json` flag that most benchmarks have."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")


def write_json(path: Path | None, record: dict[str, Any]) -> None:
    """Write a record to the path of `--json`, if given, atomically."""
    if path:
        beside = path.with_name(f"{path.name}.part")
        beside.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        beside.replace(path)
