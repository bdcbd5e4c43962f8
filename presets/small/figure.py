"""From nothing to the figure: what a small reader keeps, and what reinforcement changes about it.

    python presets/small/figure.py --out runs/figure

One model learns to copy. From there each seed's careful reader imitates an oracle that notes what the
question needs, and an undecided one, from the careful one, an oracle that in two documents of three notes any
facts, whatever the question. Both are reinforced, with the advantage given to every conversation of an
attempt and to its answer alone; or the careful one imitates for as long. Controls are the undecided reader
with nothing but a thought forced at each chunk, with credit to its updates alone, and with advantages
shuffled within each group. Readers that rewrite the memory at each chunk, or keep excerpts, imitate and are
reinforced too; another answers from sentences that BM25 finds, in one search or in two, without a memory. All
of them read the same documents, made of the half of the essays that none has seen, and of each of the
--texts; the shortest first. So many --jobs run side by side, on one core each. The essays must be fetched
first (`memagent data fetch essays`): the small sample makes other documents. Started again, it continues
where it stopped. --quick runs all of it with next to no training.

Writes OUT/figure.json, OUT/figure.md, OUT/rows.jsonl.gz and OUT/metrics.jsonl.gz, the metrics of all
trainings; with matplotlib, OUT/figure.png too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from memagent.tasks import Corpora
from memagent.tasks.corpora import sample_warning
from memagent.training.data import load_function
from memagent.training.metrics import METRICS_FILE, read_metrics

HERE = Path(__file__).parent
PRESET = HERE.parent / "small.toml"
LENGTHS = (8_192, 32_768, 131_072, 524_288)
COPIED = "copied"
TASKS = 3  # that take turns in the documents
room_of = load_function(f"{HERE / 'measure.py'}:room_of")
QUICK = (
    "warm_start.steps=2", "warm_start.count=8", "steps=2", "rollout.groups=2", "rollout.attempts=2",
    "optimizer.updates=2", "evaluation.count=4", "evaluation.every=2",
)  # fmt: skip
MARKS = {"needed": ("o", "full"), "others": ("o", "none"), "score": ("|", "full")}
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # 95% of means of so many seeds lie within that many errors


@dataclass(frozen=True)
class Reader:
    """How a reader is trained: from which other, and with which settings; and how it reads."""

    start: str
    changes: tuple[str, ...] = ()
    reinforced: bool = False
    workflow: str = "gated"

    @property
    def settings(self) -> tuple[str, ...]:
        """What it changes in the preset."""
        stages = ("warm_start.steps=0",) if self.reinforced else ()
        if self.workflow == "gated":  # the preset's
            return (*self.changes, *stages)
        room = [f"read.{name}={tokens}" for name, tokens in room_of(self.workflow).items()]
        return (
            *self.changes, *stages,
            f"read.workflow={self.workflow}", f"read.templates=small/{self.workflow}.toml",
            *room, *(["engine.window_tokens=1024"] if room else ()),
        )  # fmt: skip


def _go_on(steps: int, learning_rate: float, decay_steps: int) -> tuple[str, ...]:
    """The settings of an imitation that begins with a reader."""
    return (
        f"warm_start.steps={steps}", f"warm_start.learning_rate={learning_rate}",
        f"warm_start.decay_steps={decay_steps}", "warm_start.sequences=96", "warm_start.count=4096",
    )  # fmt: skip


LONGER = _go_on(400, 1e-3, 300)  # as many minutes as reinforcement
ANOTHER = _go_on(300, 1e-3, 150)
UNDECIDED = (
    *_go_on(150, 7e-4, 100),
    'warm_start.examples=["small/data.py:undecided", "small/data.py:undecided_brief"]',
)
PASSAGES = (
    *ANOTHER,
    "warm_start.trajectories=small/oracle.py:from_passages",
    'warm_start.examples=["small/data.py:careful"]',
)
MORE = ("steps=80", "optimizer.learning_rate=6e-4")  # 40 at the preset's rate were too few
ANSWER_ALONE, UPDATES_ALONE, SHUFFLED = (
    (f"loss.credit={credit}",) for credit in ("answer", "updates", "shuffled")
)
MASKED = (  # needs no questions
    'data.examples=["small/data.py:masked"]', 'evaluation.examples=["small/data.py:masked_held_out"]',
)  # fmt: skip
READERS = {
    "careful": Reader(COPIED),
    "careful, reinforced": Reader("careful", reinforced=True),
    "careful, imitated for longer": Reader("careful", LONGER),
    "careful, credit to the answer alone": Reader("careful", ANSWER_ALONE, reinforced=True),
    "careful, reinforced on masked facts": Reader("careful", MASKED, reinforced=True),
    "undecided": Reader("careful", UNDECIDED),
    "undecided, reinforced": Reader("undecided", MORE, reinforced=True),
    "undecided, credit to the answer alone": Reader("undecided", (*MORE, *ANSWER_ALONE), reinforced=True),
    "undecided, credit to the updates alone": Reader("undecided", (*MORE, *UPDATES_ALONE), reinforced=True),
    "undecided, shuffled credit": Reader("undecided", (*MORE, *SHUFFLED), reinforced=True),
    "overwrite": Reader("careful", ANOTHER, workflow="overwrite"),
    "overwrite, reinforced": Reader("overwrite", reinforced=True, workflow="overwrite"),
    "evidence": Reader("careful", ANOTHER, workflow="evidence"),
    "evidence, reinforced": Reader("evidence", reinforced=True, workflow="evidence"),
    "passages": Reader("careful", PASSAGES),
}
SAMPLED = ("--samples", 2)  # where a reader may do one thing greedily and another at times
READINGS: dict[str, tuple[str, tuple[object, ...]]] = {  # by which reader, and what measure.py is told
    **{
        name: (name, SAMPLED if name.startswith("undecided") else ())
        for name in READERS if name != "passages"
    },
    "undecided, thought forced": ("undecided", (*SAMPLED, "--think")),
    "four passages": ("passages", ("--passages", 4)),
    "four passages, two searches": ("passages", ("--passages", 4, "--searches", 2)),
    "eight passages": ("passages", ("--passages", 8)),
    "eight passages, two searches": ("passages", ("--passages", 8, "--searches", 2)),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    out: Path
    seeds: range
    lengths: tuple[int, ...]
    texts: tuple[Path, ...]
    count: int
    tokens: int
    jobs: int
    quick: bool
    readers: tuple[str, ...]

    @property
    def trained(self) -> set[str]:
        """The readers that are wanted, and those that they begin with."""
        names = {READINGS[reader][0] for reader in self.readers}
        while starts := {READERS[name].start for name in names} - names - {COPIED}:
            names |= starts
        return names

    def documents(self, length: int) -> int:
        """How many documents of a length a reader reads, as many of each task."""
        return max(TASKS, min(self.count, self.tokens // length) // TASKS * TASKS)

    def folder(self, name: str, seed: int) -> Path:
        """Of a reader."""
        named = COPIED if name == COPIED else f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
        return (self.out / "readers" / named).resolve()

    def rows(self, name: str, length: int, seed: int, text: Path | None) -> Path:
        """Where the rows of a reading are."""
        return self.out / "rows" / name / f"{length}-seed{seed}{f'-{text.stem}' if text else ''}.jsonl"


def main() -> None:
    """Run everything that is missing; draw what there is after each length."""
    plan = _parse_arguments()
    plan.out.mkdir(parents=True, exist_ok=True)
    copy(plan.folder(COPIED, 0), plan.quick)
    map_concurrent(plan, (partial(train, plan, "careful", seed) for seed in plan.seeds))
    for length in plan.lengths:
        map_concurrent(
            plan,
            (
                partial(read, plan, name, length, seed, text)
                for text in (None, *plan.texts) for seed in plan.seeds for name in plan.readers
            ),
        )  # fmt: skip
        draw(plan)


Job = Callable[[], "list[Job] | None"]
"""Does something, and returns what can be done now."""


def map_concurrent(plan: Plan, jobs: Iterable[Job]) -> None:
    """Do all of it, and what follows from it, so many at a time.

    The first failure ends it once the running jobs have ended.
    """
    with ThreadPoolExecutor(plan.jobs) as workers:
        waiting = {workers.submit(job) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                waiting |= {workers.submit(job) for row in done for job in row.result() or ()}
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def python(*words: object) -> None:
    """Run Python with these arguments, on one core; a failure, which it has told of, ends this script."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    if code := subprocess.run(command, check=False, env=environment).returncode:
        raise SystemExit(code if code > 0 else 128 - code)


def copy(model: Path, quick: bool, *arguments: str) -> None:
    """Make the model that can copy, unless it is there. A warning tells of essays that are but a sample."""
    if (essays := Corpora().find("essays")).origin == "sample":
        print(sample_warning(essays.name), file=sys.stderr)
    if not model.exists():
        few = ("--steps", 2, "--count", 8) if quick else ()
        python(HERE / "copying.py", "--out", model, *few, *arguments)


def run_stage(stage: str, run: Path, pairs: Iterable[str]) -> None:
    """Begin or continue a stage of training with these settings."""
    settings = [word for pair in pairs for word in ("--set", pair)]
    python("-m", "memagent", "train", stage, PRESET, "--out", run, "--resume", "--quiet", *settings)


def export(run: Path, reader: Path) -> None:
    """Write the folder of a reader."""
    python("-m", "memagent", "train", "export", run, "--to", "merged", "--out", reader, "--quiet")


def train(plan: Plan, name: str, seed: int) -> list[Job]:
    """Make the folder of a reader: trained, continued, or found finished; those that begin with it follow."""
    wanted, reader = READERS[name], plan.folder(name, seed)
    run = reader.with_name(f"{reader.name}-run")
    if not reader.exists():
        pairs = (f"seed={seed}", f"policy.model={plan.folder(wanted.start, seed)}", *wanted.settings)
        if plan.quick:
            pairs += tuple(
                item for item in QUICK if not (wanted.reinforced and item.startswith("warm_start"))
            )
        run_stage("run" if wanted.reinforced else "sft", run, pairs)
        export(run, reader)
    return [
        partial(train, plan, item, seed)
        for item in READERS
        if item in plan.trained and READERS[item].start == name
    ]


def read(plan: Plan, name: str, length: int, seed: int, text: Path | None) -> None:
    """Have a reader read the documents of a length, those that it has not read yet."""
    reader, flags = READINGS[name]
    python(
        HERE / "measure.py", plan.folder(reader, seed), "--length", length, "--seed", seed,
        "--count", plan.documents(length), "--workflow", READERS[reader].workflow, *flags,
        *(("--haystack", text.resolve()) if text else ()),
        "--out", plan.rows(name, length, seed, text),
    )  # fmt: skip


def draw(plan: Plan) -> None:
    """Write the tables, the rows and the figure of all readings that there are."""
    rows = [*_rows(plan)]
    pack(rows, plan.out / "rows.jsonl.gz")
    pack_metrics(sorted((plan.out / "readers").glob("*-run")), plan.out / "metrics.jsonl.gz")
    grouped: dict[str, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    for row in rows:
        title = row["text"] or "essays"
        for item in (title, f"{title}, {row['task']}"):
            grouped[item][row["reader"]][row["length"]][row["seed"]].append(row)
    summaries = {
        title: {name: {length: sum_up(entry) for length, entry in of.items()} for name, of in readers.items()}
        for title, readers in sorted(grouped.items(), key=lambda entry: ("," in entry[0], entry[0]))
    }
    (plan.out / "figure.json").write_text(json.dumps(summaries, indent=1) + "\n")
    haystacks = sorted({row["haystack"] for row in rows})
    tables = [f"### {title}\n\n{_table(plan, of)}" for title, of in summaries.items()]
    (plan.out / "figure.md").write_text(
        "\n\n".join([*tables, *(f"Haystack: {haystack}" for haystack in haystacks)]) + "\n"
    )
    _plot(plan, summaries["essays"])


def pack(rows: Iterable[dict[str, Any]], out: Path) -> None:
    """Write rows to a gzipped file."""
    with gzip.open(out, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def pack_metrics(runs: Iterable[Path], out: Path) -> None:
    """Write the metrics of these runs to one gzipped file, each row with the name of its run."""
    pack((row for run in runs if (run / METRICS_FILE).is_file() for row in _metrics(run)), out)


def _metrics(run: Path) -> Iterator[dict[str, Any]]:
    for row in read_metrics(run):
        values = {name: float(f"{value:.5g}") for name, value in row.values.items() if math.isfinite(value)}
        yield {"run": run.name.removesuffix("-run"), "stage": row.stage, "step": row.step} | values


def _rows(plan: Plan) -> Iterator[dict[str, Any]]:
    for text in (None, *plan.texts):
        for name in plan.readers:
            for length in plan.lengths:
                for seed in plan.seeds:
                    if (path := plan.rows(name, length, seed, text)).exists():
                        for row in map(json.loads, path.read_text().splitlines()):
                            about = {"reader": name, "length": length, "seed": seed}
                            yield about | {"text": text.stem if text else ""} | row


def sum_up(of_seeds: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """The score and the shares noted and held, in percent: the mean of the seeds, and each seed's."""

    def shares(part: str, whole: str) -> list[float]:
        sums = [
            (sum(row.get(part, 0) for row in rows), sum(row.get(whole, 0) for row in rows))
            for rows in of_seeds.values() if any(part in row for row in rows)
        ]  # fmt: skip
        return [100 * some / of for some, of in sums if of]

    summaries = {
        "score": [100 * fmean(row["score"] for row in rows) for rows in of_seeds.values()],
        "sampled": [
            100 * fmean(row["sampled"] for row in rows) for rows in of_seeds.values() if "sampled" in rows[0]
        ],
        "needed": shares("needed noted", "needed"),
        "others": shares("others noted", "others"),
        "held": shares("held", "needed"),
        "idle writes": shares("idle writes", "idle"),
    }
    summary: dict[str, Any] = {
        name: {"mean": fmean(item), "seeds": item} for name, item in summaries.items() if item
    }
    every = [row for rows in of_seeds.values() for row in rows]
    counts = {name: sum(row.get(name, 0) for row in every) for name in ("idle", "idle writes")}
    return summary | {"documents": len(every), "chunks without a fact": counts}


def interval(values: list[float]) -> str:
    """The mean, and Student's 95% interval of it across seeds."""
    if len(values) < 2:
        return f"{values[0]:.0f}"
    error = STUDENT[min(len(values), max(STUDENT))] * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):.0f} ± {error:.0f}"


def _table(plan: Plan, scores: dict[str, dict[int, dict[str, Any]]]) -> str:
    lengths = [length for length in plan.lengths if any(length in of for of in scores.values())]
    head = [f"{_size(length)}: score | sampled | needed | others" for length in lengths]
    lines = ["| reader | " + " | ".join(head) + " |", "|---" * (4 * len(lengths) + 1) + "|"]
    for name, of in scores.items():
        cells = [
            interval(of[length][what]["seeds"]) if length in of and what in of[length] else ""
            for length in lengths for what in ("score", "sampled", "needed", "others")
        ]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _plot(plan: Plan, scores: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Scores by length; and what each reader notes of the shortest documents. A mark for each seed."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(12, 1.8 + 0.32 * max(6, len(scores))), layout="constrained")
    left, right = figure.subplots(1, 2)
    colors = colormaps["tab20"].colors  # the light ones come last
    left.set_prop_cycle(color=[*colors[::2], *colors[1::2]])
    shortest = plan.lengths[0]
    for number, (name, of) in enumerate(scores.items()):
        apart = 1.03 ** (number - len(scores) / 2)  # so that no mark hides another
        style = ":" if "passages" in name else "-" if READERS[READINGS[name][0]].reinforced else "--"
        means = [entry["score"]["mean"] for entry in of.values()]
        (line,) = left.plot([length * apart for length in of], means, style, lw=1.5)
        for length, item in of.items():
            seeds = item["score"]["seeds"]
            left.plot([length * apart] * len(seeds), seeds, ".", color=line.get_color(), ms=5)
        for what, (mark, fill) in MARKS.items():
            values = of.get(shortest, {}).get(what, {"seeds": []})["seeds"]
            right.plot(values, [number] * len(values), mark, color=line.get_color(), fillstyle=fill)
    left.set_xscale("log", base=2)
    left.set_xticks(plan.lengths, [_size(length) for length in plan.lengths])
    left.set(xlabel="tokens of the document", ylabel="score (%)", ylim=(-2, 102))
    right.set_yticks(range(len(scores)), [*scores])
    right.invert_yaxis()
    right.grid(axis="y", lw=0.3)
    right.set(
        xlim=(-2, 102),
        xlabel=f"{_size(shortest)}: needed facts noted (●), others noted (○), score ( | ), in %",
    )
    figure.savefig(plan.out / "figure.png", dpi=130)


def _size(tokens: int) -> str:
    return f"{tokens >> 20}M" if tokens >= 1 << 20 else f"{tokens >> 10}K"


def _parse_arguments() -> Plan:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="in tokens (8K to 512K)")
    parser.add_argument("--texts", type=Path, nargs="*", default=(), help="other haystacks, such as a novel")
    parser.add_argument(
        "--readers", nargs="+", choices=READINGS, default=tuple(READINGS), metavar="NAME", help="these only"
    )
    parser.add_argument("--count", type=int, default=64, help="documents of a length (64)")
    parser.add_argument("--tokens", type=int, default=1 << 20, help="but of no more tokens than that (1M)")
    parser.add_argument("--jobs", type=int, default=2, help="commands side by side (2)")
    parser.add_argument("--quick", action="store_true", help="next to no training: does it run?")
    given = vars(parser.parse_args())
    given |= {name: tuple(given[name]) for name in ("lengths", "texts", "readers")}
    given["seeds"] = range(given["seeds"])
    return Plan(**given)


if __name__ == "__main__":
    main()
