"""Does writing a memory emerge from the final reward alone? The smallest run, with five seeds.

    python benchmarks/emergence.py --out DIR

Trains presets/tiny.toml (six symbols in three chunks) with the advantage given to every conversation of an
attempt, and again with it given only to the answer, then reads documents of up to 10,000 chunks with the
policies of the former. Writes DIR/emergence.json, and DIR/report with the curves (`memagent report`). Takes
about two hours on one CPU core; finished parts are not repeated.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from memagent.evaluation.rows import read_rows
from memagent.tasks import write_examples
from memagent.training.metrics import read_metrics

PRESET = Path(__file__).parent.parent / "presets" / "tiny.toml"
CHANCE = 1 / 6
CHUNKS = (3, 16, 64, 256, 1024, 10_000)
EXAMPLES = 16


def memagent(*words: object) -> None:
    """Run a memagent command; if it fails, the benchmark ends."""
    subprocess.run([sys.executable, "-m", "memagent", *map(str, words)], check=True)


def train(credit: str, seed: int, out: Path) -> Path:
    """Make one run, unless it exists; returns its folder."""
    run = out / f"{credit}-seed{seed}"
    if not (run / "done").exists():
        memagent("train", "run", PRESET, "--out", run, "--resume", "--quiet", "--set", f"seed={seed}",
                 "--set", f"loss.credit={credit}")  # fmt: skip
        (run / "done").touch()
    return run


def curve(run: Path) -> dict[str, Any]:
    """The first and last rewards of a run, and its held-out scores in percent."""
    rows = read_metrics(run)
    rewards = [row.values["reward"] for row in rows if row.stage == "training"]
    scores = {row.step: row.values["score"] for row in rows if row.stage == "evaluation"}
    return {"first_reward": rewards[0], "last_reward": fmean(rewards[-5:]), "held_out": scores}


def longer(run: Path, seed: int) -> dict[int, float]:
    """The score in percent at each number of chunks, on documents never seen in training."""
    symbols = runpy.run_path(str(PRESET.parent / "tiny" / "symbols.py"))
    policy = run / "policy"
    if not policy.exists():
        memagent("train", "export", run, "--to", "merged", "--out", policy, "--quiet")
    scores = {}
    for chunks in CHUNKS:
        rows = run / f"read-{chunks}"
        if not (rows / "done").exists():
            file = run / f"symbols-{chunks}.jsonl"
            write_examples(
                file, (symbols["example"](index, chunks, f"long {seed}") for index in range(EXAMPLES))
            )
            memagent("eval", "--examples", file, "--workflow", "overwrite", "--scorer", "exact_match",
                     "--engine", "transformers", "--model", policy, "--window-tokens", 256,
                     "--templates", PRESET.parent / "tiny" / "prompts.toml",
                     "--problem-tokens", 8, "--chunk-tokens", 7, "--memory-tokens", 1,
                     "--answer-tokens", 1, "--concurrency", EXAMPLES, "--resume", "--quiet",
                     "--out", rows)  # fmt: skip
            (rows / "done").touch()
        scores[chunks] = 100 * fmean(row.score for row in read_rows(rows))
    return scores


def main() -> None:
    """Run everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for credit in ("trajectory", "answer"):
            run = train(credit, seed, options.out)
            measured = curve(run) | ({"chunks": longer(run, seed)} if credit == "trajectory" else {})
            results.setdefault(credit, []).append({"seed": seed, **measured})
            print(credit, json.dumps(results[credit][-1]), flush=True)
    (options.out / "emergence.json").write_text(json.dumps(results, indent=1) + "\n")
    runs = [options.out / f"{credit}-seed{seed}" for credit in results for seed in range(options.seeds)]
    memagent("report", *runs, "--out", options.out / "report")
    for credit, runs_of in results.items():
        first, last = (fmean(item[name] for item in runs_of) for name in ("first_reward", "last_reward"))
        print(f"{credit}: reward {first:.2f} to {last:.2f} (chance of a blind guess {CHANCE:.2f})")


if __name__ == "__main__":
    main()
