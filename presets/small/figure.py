"""From nothing to the figure: what a small reader keeps at 8K to 4M tokens, before and after reinforcement.

    python presets/small/figure.py --out runs/figure

For each seed it trains a reader by copying and imitation, and from there two more by reinforcement: with the
advantage given to every conversation, and to the answer alone. All of them read needles, variables and
questions of two hops at every length; the first seed's also without a memory. Started again, it goes on where
it stopped: trainings from their newest checkpoint, readings from their last row. --quick runs all of it with
next to no training, to see whether it runs.

Writes OUT/figure.json and OUT/figure.md, and OUT/figure.png where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from memagent.tasks import write_examples
from memagent.tasks.scoring import confidence_interval
from memagent.training.rewards import load_function

HERE = Path(__file__).parent
PRESET = HERE.parent / "small.toml"
TASKS = ("niah_single_1", "niah_multikey_1", "vt")
LENGTHS = tuple(2**power for power in range(13, 23))  # 8K to 4M
WITHOUT_MEMORY = ("truncate", "rag")
FROM_READER = ("policy.random_weights=false", "copying.steps=0", "warm_start.steps=0")
QUICK = (
    "copying.steps=2", "warm_start.steps=2", "warm_start.count=8", "steps=2", "rollout.groups=2",
    "rollout.attempts=2", "evaluation.count=4", "evaluation.every=2",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    out: Path
    seeds: range
    workflow: str
    lengths: tuple[int, ...]
    count: int
    quick: bool

    def settings(self, seed: int, *more: str) -> list[str]:
        """The flags of a training."""
        templates = HERE / f"{self.workflow}.toml"
        read = f"read.workflow={self.workflow}", f"read.templates={templates}"
        pairs = (*(QUICK if self.quick else ()), f"seed={seed}", *read, *more)
        return [word for pair in pairs for word in ("--set", pair)]


def main() -> None:
    """Run everything that is missing, seed by seed, the shortest first, and draw what there is after each."""
    plan = _asked()
    plan.out.mkdir(parents=True, exist_ok=True)
    for seed in plan.seeds:
        made = list(readers(plan, seed))
        for length in plan.lengths:
            for name, reader in made:
                read_at(plan, seed, name, reader, length)
            draw(plan)


def memagent(*words: object) -> None:
    """Run a command of memagent; its failure, which it has told of, ends the script."""
    if code := subprocess.run([sys.executable, "-m", "memagent", *map(str, words)], check=False).returncode:
        raise SystemExit(code if code > 0 else 128 - code)


def readers(plan: Plan, seed: int) -> Iterator[tuple[str, Path]]:
    """The readers of a seed with their names, each trained first if it is not there."""
    warm = trained(plan, f"{plan.workflow}-warm-seed{seed}", plan.settings(seed, "steps=0"))
    yield "warm start", warm
    for name, credit in (("reinforcement", "trajectory"), ("credit to the answer alone", "answer")):
        more = f"policy.model={warm}", f"loss.credit={credit}", *FROM_READER
        yield name, trained(plan, f"{plan.workflow}-{credit}-seed{seed}", plan.settings(seed, *more))


def trained(plan: Plan, name: str, settings: list[str]) -> Path:
    """A folder with the model of a run: made, continued, or found finished."""
    run, reader = plan.out / name, (plan.out / f"{name}-reader").resolve()
    if not reader.exists():
        memagent("train", PRESET, "--out", run, "--resume", "--quiet", *settings)
        memagent("train", "export", run, "--to", "merged", "--out", reader, "--quiet")
    return reader


def read_at(plan: Plan, seed: int, name: str, reader: Path, length: int) -> None:
    """Have a reader read the examples of a length, those that it has not read yet."""
    hops = plan.out / f"two-hops-{length}-seed{seed}.jsonl"
    if not hops.exists():
        make = load_function(f"{HERE / 'data.py'}:two_hops")
        write_examples(hops, (make(index, length, f"figure {seed}") for index in range(plan.count)))
    asked = [word for task in TASKS for word in ("--task", task)]
    budgets = {"window": 704, "problem": 48, "chunk": 256, "memory": 96, "answer": 48}
    common = [
        "--engine", "transformers", "--model", reader, *asked, "--length", length, "--examples", hops,
        "--count", plan.count, "--seed", 1000 + seed, "--resume", "--quiet",
        *(word for budget, tokens in budgets.items() for word in (f"--{budget}-tokens", tokens)),
    ]  # fmt: skip
    with_memory = "--reader", plan.workflow, "--templates", HERE / f"{plan.workflow}.toml"
    memagent("eval", *common, *with_memory, "--out", _rows(plan, seed, name, length))
    if name == "reinforcement" and seed == plan.seeds[0]:
        for reader_name in WITHOUT_MEMORY:
            out = _rows(plan, seed, reader_name, length)
            memagent("eval", *common, "--reader", reader_name, "--out", out)


def draw(plan: Plan) -> None:
    """Write the table and the figure of all rows that there are."""
    scores = gathered(plan)
    table = {
        name: {length: {"score": mean, "low": low, "high": high, "examples": count}
               for length, (mean, low, high, count) in of.items()}
        for name, of in scores.items()
    }  # fmt: skip
    (plan.out / "figure.json").write_text(json.dumps(table, indent=1) + "\n")
    lengths = sorted({length for of in scores.values() for length in of})
    lines = ["| tokens | " + " | ".join(map(_size, lengths)) + " |", "|---" * (len(lengths) + 1) + "|"]
    for name, of in scores.items():
        cells = (
            f"{of[it][0]:.0f} ({of[it][1]:.0f} to {of[it][2]:.0f})" if it in of else "" for it in lengths
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    (plan.out / "figure.md").write_text("\n".join(lines) + "\n")
    _plot(plan.out / "figure.png", scores)


Scores = dict[str, dict[int, tuple[float, float, float, int]]]
"""For each reader and length the mean score in percent, its 95% interval, and the number of examples."""


def gathered(plan: Plan) -> Scores:
    """The scores of all seeds together."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place in sorted((plan.out / "rows").glob("*/*/*/rows.jsonl")):
        name, length, _ = place.relative_to(plan.out / "rows").parts[:3]
        rows = map(json.loads, place.read_text().splitlines())
        found[name][int(length)] += [row["score"] for row in rows]
    return {
        name: {length: _estimated(values) for length, values in sorted(of.items())}
        for name, of in found.items()
    }


def _estimated(values: list[float]) -> tuple[float, float, float, int]:
    low, high = confidence_interval(values)
    return 100 * fmean(values), 100 * low, 100 * high, len(values)


def _rows(plan: Plan, seed: int, name: str, length: int) -> Path:
    label = name if name in WITHOUT_MEMORY else f"{name}, {plan.workflow}"
    return plan.out / "rows" / label / str(length) / f"seed{seed}"


def _plot(path: Path, scores: Scores) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, of in scores.items():
        means, lows, highs, _ = zip(*of.values(), strict=True)
        axes.plot(list(of), means, marker="o", label=name)
        axes.fill_between(list(of), lows, highs, alpha=0.15)
    axes.set_xscale("log", base=2)
    ticks = sorted({length for of in scores.values() for length in of})
    axes.set_xticks(ticks, [_size(length) for length in ticks])
    axes.set(xlabel="tokens of the document", ylabel="score", ylim=(-2, 102))
    axes.legend()
    figure.savefig(path, dpi=150)


def _size(tokens: int) -> str:
    return f"{tokens >> 20}M" if tokens >= 1 << 20 else f"{tokens >> 10}K"


def _asked() -> Plan:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workflow", choices=("gated", "overwrite"), default="gated")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="in tokens (8K to 4M)")
    parser.add_argument("--count", type=int, default=8, help="examples of each task at a length (8)")
    parser.add_argument("--quick", action="store_true", help="next to no training: does it run?")
    given = parser.parse_args()
    return Plan(given.out, range(given.seeds), given.workflow, tuple(given.lengths), given.count, given.quick)


if __name__ == "__main__":
    main()
