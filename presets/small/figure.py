"""From nothing to the figure: what a small reader keeps at 8K to 4M tokens, before and after reinforcement.

    python presets/small/figure.py --out runs/figure

For each seed it trains a reader by copying and imitation, and from there two more by reinforcement: with the
advantage given to every conversation, and to the answer alone. They read as `gated` does. From the first one,
readers with other --workflows are trained too, by a short imitation of an oracle that reads as they do, and
then by reinforcement. All of them read needles, variables and questions of two hops at every length, the
shortest first. What one chunk has room for is read too, as `gated` does, by the reinforced reader: the ends
of each document, and the passages that BM25 ranks best. So many --jobs run side by side, on one core each.
The essays must be fetched first (`memagent data fetch essays`): the small sample makes other documents.
Started again, it continues where it stopped: trainings from their newest checkpoint, readings from their last
row. --quick runs all of it with next to no training, to see whether it runs.

Writes OUT/figure.json and OUT/figure.md; with matplotlib, OUT/figure.png and OUT/workflows.png too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from memagent.documents.cutting import cut
from memagent.reading.ranking import best_passages
from memagent.reading.workflows import workflows
from memagent.reading.workflows.whole import head_and_tail
from memagent.tasks import Corpora, write_examples
from memagent.tasks.corpora import sample_warning
from memagent.tasks.scoring import confidence_interval
from memagent.training.data import load_function
from memagent.training.settings import load_training
from memagent.types import Example

HERE = Path(__file__).parent
PRESET = HERE.parent / "small.toml"
LENGTHS = tuple(2**power for power in range(13, 23))  # 8K to 4M
WARM, RL = "warm start", "reinforcement"
CREDITS = {RL: "trajectory", "credit to the answer alone": "answer"}
TRUNCATED, RETRIEVED = "the document's ends, read as gated", "four passages by BM25, read as gated"
CHUNK, PASSAGE = 250, 60  # tokens
GATED = "gated"
OTHERS: dict[str, dict[str, int]] = {  # workflows, and the settings that they change
    "overwrite": {},
    "heads": {"heads": 4, "memory_tokens": 96},
    "evidence": {"memory_tokens": 256},
    "parallel": {"rounds": 1},
    "tree": {"shards": 4},
    "reread": {"rounds": 2},
}
WINDOW = 1024  # tokens, of readers with another workflow
ORDER = (*CREDITS, WARM, *OTHERS, RETRIEVED, TRUNCATED)  # in tables and the figures
TASKS = 4  # that take turns in the examples
LOOKAHEAD = 16  # chunks: full batches, with the replies that one after the other would get
ANOTHER_START = ("warm_start.steps=500", "warm_start.decay_steps=200")  # for another workflow
QUICK = (
    "warm_start.steps=2", "warm_start.count=8", "steps=2", "rollout.groups=2", "rollout.attempts=2",
    "optimizer.updates=2", "evaluation.count=4", "evaluation.every=2",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    out: Path
    seeds: range
    workflows: tuple[str, ...]
    lengths: tuple[int, ...]
    count: int
    tokens: int
    jobs: int
    quick: bool

    def examples(self, length: int) -> int:
        """How many examples of each task a reader reads at a length."""
        return max(1, min(self.count, self.tokens // length))

    def settings(self, seed: int, *more: str) -> list[str]:
        """The flags of a training."""
        pairs = (f"seed={seed}", *more, *(QUICK if self.quick else ()))
        return [word for pair in pairs for word in ("--set", pair)]

    def another(self, workflow: str) -> list[str]:
        """What a reader with another workflow sets."""
        read = {"workflow": workflow, "templates": _templates(workflow), **OTHERS[workflow]}
        return [
            *(f"read.{name}={value}" for name, value in read.items()),
            f"engine.window_tokens={WINDOW}", *ANOTHER_START,
        ]  # fmt: skip


def main() -> None:
    """Run everything that is missing, the shortest documents first; draw what there is after each length."""
    plan = _asked()
    if (essays := Corpora().find("essays")).origin == "sample":
        print(sample_warning(essays.name), file=sys.stderr)
    plan.out.mkdir(parents=True, exist_ok=True)
    changes = {name: ["warm_start.steps=0", f"loss.credit={credit}"] for name, credit in CREDITS.items()}
    changes |= {workflow: plan.another(workflow) for workflow in plan.workflows}
    side_by_side(plan, (partial(train_all, plan, seed, changes) for seed in plan.seeds))
    names = (WARM, *changes, TRUNCATED, RETRIEVED)
    for length in plan.lengths:
        for seed in plan.seeds:
            write_documents(plan, seed, length)
        side_by_side(plan, (partial(read_at, plan, seed, it, length) for seed in plan.seeds for it in names))
        draw(plan)


Job = Callable[[], "list[Job] | None"]
"""Does something, and returns what can be done now."""


def side_by_side(plan: Plan, jobs: Iterable[Job]) -> None:
    """Do all of it, and what follows from it, so many at a time.

    The first failure ends it once the running jobs have ended.
    """
    with ThreadPoolExecutor(plan.jobs) as workers:
        waiting = {workers.submit(job) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                waiting |= {workers.submit(job) for it in done for job in it.result() or ()}
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def train_all(plan: Plan, seed: int, changes: dict[str, list[str]]) -> list[Job]:
    """Train a seed's reader by copying and imitation; what follows trains the others from it."""
    copied, warm = _folder(plan, "copied", seed), _folder(plan, WARM, seed)
    copy(copied, seed, plan.quick)
    train(warm, plan.settings(seed, "steps=0", f"policy.model={copied}"))
    return [
        partial(train, _folder(plan, name, seed), plan.settings(seed, f"policy.model={warm}", *more))
        for name, more in changes.items()
    ]


def python(*words: object, cores: int = 1) -> None:
    """Run Python with these arguments; a failure, which it has told of, ends this script."""
    environment = os.environ | {"OMP_NUM_THREADS": str(cores)}
    command = [sys.executable, *map(str, words)]
    if code := subprocess.run(command, check=False, env=environment).returncode:
        raise SystemExit(code if code > 0 else 128 - code)


def memagent(*words: object, cores: int = 1) -> None:
    """Run a command of memagent."""
    python("-m", "memagent", *words, cores=cores)


def copy(model: Path, seed: int, quick: bool) -> None:
    """Make the folder of a model that can copy, unless it is there."""
    if not model.exists():
        few = ("--steps", 2, "--count", 8) if quick else ()
        python(HERE / "copying.py", "--out", model, "--seed", seed, *few)


def train(reader: Path, settings: list[str]) -> None:
    """Make the folder of a reader: trained, continued, or found finished."""
    run = reader.with_name(f"{reader.name}-run")
    if not reader.exists():
        memagent("train", PRESET, "--out", run, "--resume", "--quiet", *settings)
        memagent("train", "export", run, "--to", "merged", "--out", reader, "--quiet")


def write_documents(plan: Plan, seed: int, length: int) -> None:
    """Write the examples of a length, and what one chunk has room for of each."""
    example, count_tokens = (load_function(f"{HERE / 'data.py'}:{it}") for it in ("example", "count_tokens"))
    count = count_tokens()

    def ends(wanted: Example) -> str:
        return head_and_tail(wanted.document, CHUNK, count)

    def found(wanted: Example) -> str:
        passages = [text for text, *_ in cut([wanted.document], PASSAGE, count)]
        best = best_passages(wanted.problem, passages, CHUNK // PASSAGE)
        return "\n".join(passages[place] for place in sorted(best))

    place = {name: _documents(plan, seed, length, name) for name in (TRUNCATED, RETRIEVED, RL)}
    if place[RL].exists():
        return
    examples = [example(index, length, f"figure {seed}") for index in range(TASKS * plan.examples(length))]
    for name, shortened in ((TRUNCATED, ends), (RETRIEVED, found)):
        write_examples(place[name], (replace(it, document=shortened(it), evidence=()) for it in examples))
    write_examples(place[RL], examples)


def read_at(plan: Plan, seed: int, name: str, length: int) -> None:
    """Have a reader read the documents of a length, those that it has not read yet."""
    model = RL if name in (TRUNCATED, RETRIEVED) else name
    workflow = name if name in OTHERS else GATED
    trained, parts = (
        load_training(PRESET),
        ("problem_tokens", "chunk_tokens", "memory_tokens", "answer_tokens"),
    )
    read: dict[str, object] = {
        "window_tokens": WINDOW if name in OTHERS else trained.engine.window_tokens,
        "workflow": workflow, "templates": _templates(workflow),
        **{part: getattr(trained.read, part) for part in parts},
        **OTHERS.get(name, {}),
    }  # fmt: skip
    if workflows()[workflow].looks_ahead:
        read["lookahead"] = LOOKAHEAD
    memagent(
        "eval", "--engine", "transformers", "--model", _folder(plan, model, seed),
        "--examples", _documents(plan, seed, length, name),
        *(word for flag, value in read.items() for word in (f"--{flag.replace('_', '-')}", value)),
        "--out", _rows(plan, seed, name, length), "--resume", "--quiet",
    )  # fmt: skip


def draw(plan: Plan) -> None:
    """Write the tables and the figure of all rows that there are."""
    scores, by_task = gathered(plan), gathered(plan, by_task=True)
    told: dict[str, object] = {"haystacks": _haystacks(plan)}
    told |= {
        name: {length: {"score": mean, "low": low, "high": high, "examples": count}
               for length, (mean, low, high, count) in of.items()}
        for name, of in (scores | by_task).items()
    }  # fmt: skip
    (plan.out / "figure.json").write_text(json.dumps(told, indent=1) + "\n")
    tables = [_table(scores), _table(by_task), *(f"Haystack: {it}" for it in _haystacks(plan))]
    (plan.out / "figure.md").write_text("\n\n".join(tables) + "\n")
    _plot(plan.out / "figure.png", {name: of for name, of in scores.items() if name not in OTHERS})
    if compared := {f"{name}, reinforced": scores[name] for name in OTHERS if name in scores}:
        _plot(plan.out / "workflows.png", {f"{GATED}, reinforced": scores[RL], **compared})


Scores = dict[str, dict[int, tuple[float, float, float, int]]]
"""For each reader and length the mean score in percent, its 95% interval, and the number of examples."""


def gathered(plan: Plan, by_task: bool = False) -> Scores:
    """The scores of all seeds together, of all tasks or each."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    places = sorted((plan.out / "rows").glob("*/*/*/rows.jsonl"))
    for place in sorted(places, key=lambda it: ORDER.index(it.parts[-4])):
        name, length, _ = place.relative_to(plan.out / "rows").parts[:3]
        for row in map(json.loads, place.read_text().splitlines()):
            found[f"{name}, {row['task']}" if by_task else name][int(length)].append(row["score"])
    return {
        name: {length: _estimated(values) for length, values in sorted(of.items())}
        for name, of in found.items()
    }


def _haystacks(plan: Plan) -> list[str]:
    """What the documents of the rows were made from."""
    places = (plan.out / "rows").glob("*/*/*/rows.jsonl")
    rows = (json.loads(line) for place in places for line in place.read_text().splitlines())
    return sorted({row.get("haystack", "") for row in rows} - {""})


def _table(scores: Scores) -> str:
    lengths = sorted({length for of in scores.values() for length in of})
    lines = ["| tokens | " + " | ".join(map(_size, lengths)) + " |", "|---" * (len(lengths) + 1) + "|"]
    for name, of in scores.items():
        cells = (f"{of[it][0]:.0f} [{of[it][1]:.0f}, {of[it][2]:.0f}]" if it in of else "" for it in lengths)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _estimated(values: list[float]) -> tuple[float, float, float, int]:
    low, high = confidence_interval(values)
    return 100 * fmean(values), 100 * low, 100 * high, len(values)


def _templates(workflow: str) -> Path:
    return HERE / f"{workflow}.toml"


def _folder(plan: Plan, name: str, seed: int) -> Path:
    return (plan.out / "readers" / f"{name.replace(' ', '-')}-seed{seed}").resolve()


def _documents(plan: Plan, seed: int, length: int, name: str) -> Path:
    part = {TRUNCATED: "-ends", RETRIEVED: "-passages"}.get(name, "")
    return plan.out / "documents" / f"{length}-seed{seed}{part}.jsonl"


def _rows(plan: Plan, seed: int, name: str, length: int) -> Path:
    return plan.out / "rows" / name / str(length) / f"seed{seed}"


def _plot(path: Path, scores: Scores) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, of) in enumerate(scores.items()):
        apart = 1.03 ** (number - len(scores) / 2)  # so that no interval hides another
        errors = zip(*((mean - low, high - mean) for mean, low, high, _ in of.values()), strict=True)
        means = [mean for mean, *_ in of.values()]
        at = [length * apart for length in of]
        axes.errorbar(at, means, [*errors], marker="o", capsize=3, lw=1.5, elinewidth=0.8, label=name)
    axes.set_xscale("log", base=2)
    ticks = sorted({length for of in scores.values() for length in of})
    axes.set_xticks(ticks, [_size(length) for length in ticks])
    axes.set(xlabel="tokens of the document", ylabel="score", ylim=(-2, 102))
    figure.legend(loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=150)


def _size(tokens: int) -> str:
    return f"{tokens >> 20}M" if tokens >= 1 << 20 else f"{tokens >> 10}K"


def _asked() -> Plan:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--workflows", choices=tuple(OTHERS), nargs="*", default=("overwrite",), help="beside gated"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="in tokens (8K to 4M)")
    parser.add_argument("--count", type=int, default=8, help="examples of each task at a length (8)")
    parser.add_argument("--tokens", type=int, default=1 << 20, help="but of no more tokens than that (1M)")
    parser.add_argument("--jobs", type=int, default=2, help="commands side by side (2)")
    parser.add_argument("--quick", action="store_true", help="next to no training: does it run?")
    given = vars(parser.parse_args())
    given |= {name: tuple(given[name]) for name in ("lengths", "workflows")}
    given["seeds"] = range(given["seeds"])
    return Plan(**given)


if __name__ == "__main__":
    main()
