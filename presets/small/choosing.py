"""What does reinforcement teach a reader that has imitated nothing but forms?

    python presets/small/choosing.py --out runs/choosing

From a model that can copy, each seed's reader imitates forms: every reply to a chunk begins with a thought,
but looks up and notes any facts of the chunk, whatever the question, so that no token tells careful replies
from others; answers are imitated from memories that hold what is needed. The model that can copy has seen no
other conversations either. The reader is reinforced for 600 steps on documents of 2 chunks with 6 facts,
which grow after 150 steps or more up to 12 chunks with 24, with credit to the trajectory, and to its answer
alone (--arms: to its updates alone, or shuffled). After every 20 steps it reads documents of both sizes that
it was not trained on, greedily and sampled.

Seed 0 is first. If after 150 steps with the first arm its sampled score on the small documents is not twice
that of the start, all ends there, and the report says so. So many --jobs run side by side, on one core each.
To try another setting of the reinforcement, copy OUT/copied and OUT/forms-seed* elsewhere and add --set.
The essays must be fetched first (`memagent data fetch essays`). Started again, it continues where it stopped.
--quick runs all of it with next to no training.

Writes OUT/report.md, OUT/rows.jsonl.gz and OUT/metrics.jsonl.gz, also while it runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

from memagent.training.data import load_function
from memagent.training.metrics import METRICS_FILE, read_metrics

HERE = Path(__file__).parent
python, map_concurrent, copy, run_stage, export, pack, pack_metrics = (
    load_function(f"{HERE / 'figure.py'}:{name}")
    for name in ("python", "map_concurrent", "copy", "run_stage", "export", "pack", "pack_metrics")
)
ARMS = ("trajectory", "answer", "updates", "shuffled")  # who gets the credit
STEPS, EVERY, CHECKED = 600, 20, 150
EXAMPLES = ("small/data.py:forms", "small/data.py:forms_brief")  # no conversation shows a choice
FORMS = (
    f"warm_start.examples={json.dumps(EXAMPLES)}",
    "warm_start.steps=400", "warm_start.decay_steps=200",
)  # fmt: skip
REINFORCEMENT = (
    'data.examples=["small/data.py:growing"]', "warm_start.steps=0", "evaluation.every=0",
    "rollout.groups=12", "rollout.attempts=12", "rollout.refills=1",
    "checkpoint_every=5", "optimizer.updates=3",
    "optimizer.learning_rate=5e-4", "optimizer.decay_steps=0", "loss.kl_weight=5e-3",
)  # fmt: skip
SIZES = {"small": (500, 6), "large": (3000, 24)}  # tokens and facts of the documents that are read
SAMPLES = 2  # reads of each, besides the greedy one
QUICK = ("warm_start.count=8", "rollout.groups=3", "rollout.attempts=2")

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    out: Path
    seeds: int
    arms: tuple[str, ...]
    steps: int
    every: int
    checked: int
    count: int
    last_count: int
    jobs: int
    quick: bool
    settings: list[str]
    reporting: Lock = field(default_factory=Lock)

    def reports(self) -> list[int]:
        """The steps after which a reader is measured; the check is one of them."""
        return sorted({*range(0, self.steps + 1, self.every), min(self.checked, self.steps), self.steps})

    def documents(self, step: int) -> int:
        """How many documents of a size are read then."""
        return self.last_count if step in (0, self.steps) else self.count

    def start(self, seed: int) -> Path:
        """The folder of the reader that has imitated forms."""
        return (self.out / f"forms-seed{seed}").resolve()

    def run(self, arm: str, seed: int) -> Path:
        """The folder of a training."""
        return self.out / f"{arm}-seed{seed}-run"

    def rows(self, arm: str, seed: int, step: int, size: str) -> Path:
        """The rows of a measurement; at step 0 all arms have the start's."""
        name = arm if step else "forms"
        return self.out / "rows" / f"{name}-seed{seed}-step{step:03}-{size}.jsonl"


def main() -> None:
    """Do all that is missing."""
    plan = _parse_arguments()
    plan.out.mkdir(parents=True, exist_ok=True)
    copy(plan.out / "copied", plan.quick, "--examples", *EXAMPLES)
    begin(plan, 0)
    map_concurrent(plan, [partial(follow, plan, arm, 0, plan.checked) for arm in plan.arms])
    stopped = check(plan)
    write_report(plan, stopped)
    if stopped:
        raise SystemExit(stopped)
    map_concurrent(plan, [partial(begin, plan, seed) for seed in range(1, plan.seeds)])
    map_concurrent(
        plan,
        [partial(follow, plan, arm, seed, plan.steps) for seed in range(plan.seeds) for arm in plan.arms],
    )
    write_report(plan)


def begin(plan: Plan, seed: int) -> None:
    """Make the reader that has imitated forms, and measure it."""
    start = plan.start(seed)
    if not start.exists():
        train(plan, "sft", start.with_name(f"{start.name}-run"), seed, plan.out / "copied", FORMS)
        export(start.with_name(f"{start.name}-run"), start)
    measure(plan, plan.arms[0], seed, 0, start)


def follow(plan: Plan, arm: str, seed: int, until: int) -> None:
    """Reinforce a reader up to a step, and measure it at each report on the way."""
    run = plan.run(arm, seed)
    reader = run.with_name(f"{arm}-seed{seed}")
    for step in plan.reports():
        if 0 < step <= until and not all(is_read(plan, arm, seed, step, size) for size in SIZES):
            changes = (*REINFORCEMENT, *plan.settings, f"steps={step}", f"loss.credit={arm}")
            train(plan, "run", run, seed, plan.start(seed), changes)
            shutil.rmtree(reader, ignore_errors=True)
            export(run, reader)
            measure(plan, arm, seed, step, reader)
            write_report(plan)


def train(plan: Plan, stage: str, run: Path, seed: int, model: Path, changes: Iterable[str]) -> None:
    """Begin or continue a training."""
    pairs = [f"seed={seed}", f"policy.model={model.resolve()}", *changes]
    if plan.quick:
        pairs += [*QUICK, *(["warm_start.steps=2"] if stage == "sft" else [])]
    run_stage(stage, run, pairs)


def is_read(plan: Plan, arm: str, seed: int, step: int, size: str) -> bool:
    """Whether all documents of a measurement have been read."""
    rows = plan.rows(arm, seed, step, size)
    return rows.exists() and len(rows.read_text().splitlines()) >= plan.documents(step)


def measure(plan: Plan, arm: str, seed: int, step: int, reader: Path) -> None:
    """Have a reader read documents of both sizes."""
    for size, (tokens, facts) in SIZES.items():
        if not is_read(plan, arm, seed, step, size):
            python(
                HERE / "measure.py", reader, "--length", tokens, "--facts", facts, "--seed", seed,
                "--count", plan.documents(step), "--samples", SAMPLES,
                "--out", plan.rows(arm, seed, step, size),
            )  # fmt: skip


def check(plan: Plan) -> str:
    """Why all ends after the first steps of seed 0; empty if its sampled score has doubled.

    Both scores are of the documents that were read both times.
    """
    if not plan.checked:
        return ""
    start, later = (
        {row["id"]: row for row in _read_rows(plan.rows(plan.arms[0], 0, step, "small"))}
        for step in (0, min(plan.checked, plan.steps))
    )
    both = [name for name in start if name in later]
    before, after = (_percent([rows[name] for name in both], "sampled") for rows in (start, later))
    if after >= 2 * before > 0:
        return ""
    return (
        f"Stopped after {min(plan.checked, plan.steps)} steps of seed 0: its sampled score on {len(both)} "
        f"small documents went from {before:.1f} to {after:.1f}, which is not twice as much."
    )


def write_report(plan: Plan, stopped: str = "") -> None:
    """Write what there is: a table for each arm, the rows, and the metrics."""
    with plan.reporting:
        rows = [*_all_rows(plan)]
        pack(rows, plan.out / "rows.jsonl.gz")
        pack_metrics(sorted(plan.out.glob("*-run")), plan.out / "metrics.jsonl.gz")
        parts = [f"### Credit: {arm}\n\n{_table(plan, arm, rows)}" for arm in plan.arms]
        (plan.out / "report.md").write_text("\n\n".join([*([stopped] if stopped else []), *parts]) + "\n")


def _table(plan: Plan, arm: str, rows: list[Row]) -> str:
    """A line for each report: seeds together, all tasks and each."""
    tasks = sorted({row["task"] for row in rows})
    heads = [f"{size}: greedy, sampled, needed, others noted" for size in SIZES]
    lines = [
        f"| step, seeds, task | {' | '.join(heads)} | reward, equal groups |",
        "|---|---:|---:|---:|",
    ]
    for step in plan.reports():
        of_step = [row for row in rows if row["step"] == step and row["arm"] in (arm, "forms")]
        seeds = {row["seed"] for row in of_step}
        for task in ("all", *tasks) if of_step else ():
            cells = []
            for size in SIZES:
                chosen = [row for row in of_step if row["size"] == size and task in ("all", row["task"])]
                cells.append(", ".join(f"{value:.0f}" for value in _summarise(chosen)))
            cells.append(", ".join(f"{value:.2f}" for value in _trained(plan, arm, seeds, step, task)))
            lines.append(f"| {step}, {len(seeds)}, {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _summarise(rows: list[Row]) -> list[float]:
    """Greedy and sampled score, the shares of needed and of other facts noted, in percent."""
    if not rows:
        return []
    shares = [
        100 * sum(row[f"{what} noted"] for row in rows) / max(sum(row[what] for row in rows), 1)
        for what in ("needed", "others")
    ]
    return [_percent(rows, "score"), _percent(rows, "sampled"), *shares]


def _trained(plan: Plan, arm: str, seeds: Iterable[int], step: int, task: str) -> list[float]:
    """The mean reward, and the share of groups with equal rewards, of the steps since the last report."""
    values = [
        [row.values.get(name if task == "all" else f"{name}/{task}") for name in ("reward", "equal_groups")]
        for seed in seeds if (plan.run(arm, seed) / METRICS_FILE).is_file()
        for row in read_metrics(plan.run(arm, seed))
        if row.stage == "training" and step - plan.every < row.step <= step
    ]  # fmt: skip
    return [
        fmean(known)
        for column in zip(*values, strict=True)
        if (known := [x for x in column if x is not None])
    ]


def _percent(rows: list[Row], name: str) -> float:
    return 100 * fmean(row[name] for row in rows)


def _read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _all_rows(plan: Plan) -> Iterator[Row]:
    for path in sorted((plan.out / "rows").glob("*.jsonl")):
        arm, seed, step, size = path.stem.split("-")
        about = {"arm": arm, "seed": int(seed[4:]), "step": int(step[4:]), "size": size}
        for row in _read_rows(path):
            yield about | row


def _parse_arguments() -> Plan:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS[:2], help="who gets the credit")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of reinforcement ({STEPS})")
    parser.add_argument("--every", type=int, default=EVERY, help=f"steps between reports ({EVERY})")
    parser.add_argument(
        "--checked",
        type=int,
        default=CHECKED,
        help=f"whether seed 0 learns, after so many ({CHECKED}); 0: never",
    )
    parser.add_argument("--count", type=int, default=24, help="documents of each size in a report (24)")
    parser.add_argument("--last-count", type=int, default=96, help="in the first and the last one (96)")
    parser.add_argument("--jobs", type=int, default=2, help="commands side by side (2)")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another setting of the reinforcement",
    )
    parser.add_argument("--quick", action="store_true", help="next to no training: does it run?")
    given = vars(parser.parse_args())
    return Plan(**given | {"arms": tuple(given["arms"])})


if __name__ == "__main__":
    main()
