"""`memagent eval`: read examples in several ways, score the answers, and keep every row."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from memagent.cli.data import corpus_flags, name_samples, positions_flag
from memagent.cli.dry_run import dry_run_evaluation
from memagent.cli.finding import use_default
from memagent.cli.flags import PATH, Command, complete_files, quiet_and_verbose, with_settings
from memagent.cli.messages import say, warn
from memagent.cli.run_progress import RunDisplay
from memagent.engines import choose
from memagent.errors import EngineError, without_secrets
from memagent.evaluation.plan import Plan
from memagent.evaluation.rows import Cell, EvaluationRow
from memagent.evaluation.run import CellCounts, Evaluation, evaluate
from memagent.reading.workflows import workflows
from memagent.reports.evaluation import cost_table, load, score_tables
from memagent.settings import Settings
from memagent.tasks import TASKS
from memagent.tasks.corpora import is_sample, sample_warning
from memagent.tasks.scoring import SCORERS


@click.command(cls=Command, short_help="Measure workflows.", epilog=f"Tasks: {', '.join(TASKS)}.")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(TASKS)), metavar="NAME",
              help="a task; may be repeated")  # fmt: skip
@click.option("--length", "lengths", multiple=True, type=int, metavar="TOKENS",
              help="an example length; may be repeated")  # fmt: skip
@click.option("--documents", multiple=True, type=int, metavar="N",
              help="a size in documents, for tasks made of documents; may be repeated")  # fmt: skip
@click.option("--examples", metavar="FILE", shell_complete=complete_files,
              help="examples from a JSONL file, as written by `memagent data`")  # fmt: skip
@click.option("--workflow", "--reader", "workflows", multiple=True, type=click.Choice(list(workflows())),
              metavar="NAME", help=f"a workflow; may be repeated: {', '.join(workflows())}")  # fmt: skip
@click.option("--count", type=int, metavar="N",
              help="examples per task and size (128, or all of a smaller set), or the first examples "
              "of a file (all)")  # fmt: skip
@click.option("--samples-per-example", "samples", type=int, default=1, metavar="N",
              help="how many times each example is read (1)")  # fmt: skip
@click.option("--scorer", type=click.Choice(list(SCORERS)), metavar="NAME",
              help=f"a scorer instead of the task's own: {', '.join(SCORERS)}")  # fmt: skip
@positions_flag
@corpus_flags
@click.option("--out", type=PATH, required=True, metavar="DIR", help="the folder for the rows")
@click.option("--resume", is_flag=True, help="run only what is missing in DIR")
@click.option("--dry-run", is_flag=True, help="show the maximum cost; ask no model, write nothing")
@click.option("--traces", is_flag=True, help="keep each attempt's journal in DIR/traces")
@click.option("--ray", metavar="ADDRESS", help='run on a Ray cluster: its address, or "auto"')
@quiet_and_verbose
@with_settings("engine", "read", leave_out=("workflow", "cite", "discover"))
@click.pass_obj
def command(
    console: Console,
    /,
    out: Path,
    quiet: bool,
    workflows: tuple[str, ...],
    resume: bool,
    dry_run: bool,
    traces: bool,
    ray: str | None,
    settings: Settings,
    **asked: Any,
) -> int:
    """Read examples concurrently with one or more workflows, and append a row per attempt to DIR/rows.jsonl.

    --seed seeds both the examples and the model's sampler. Without --answer-tokens, the task sets the budget
    of the answer.
    """
    usual = (settings.read.workflow,) if settings.read.workflow else ()
    settings = replace(settings, read=settings.read.changed(cite=False))  # rows have no sources
    plan = Plan(workflows=workflows or usual, seed=settings.read.seed or 0, **asked)
    use_default(settings.engine, console, quiet)
    _warn_about(plan, settings, console)
    run = Evaluation(
        plan=plan,
        settings=settings,
        folder=out,
        resume=resume,
        command=shown_command(sys.argv, settings.engine.api_key),
        traces=traces,
        ray=ray,
    )
    if dry_run:
        with (Console(quiet=True) if quiet else console).status("making the examples"):
            asyncio.run(dry_run_evaluation(run))
        return 0
    with RunDisplay(console, quiet, "attempts") as display:
        asyncio.run(_evaluate(run, display))
    evidence = load([out])
    say(f"{score_tables(evidence)}\n{cost_table(evidence)}".removesuffix("\n"))
    if plan.examples and any(is_sample(result.row.haystack) for result in evidence.results):
        warn(console, sample_warning("essays"))
    failed = sum(result.row.error is not None for result in evidence.results)
    if failed == len(evidence.results):
        raise EngineError(f"every attempt failed, the last with: {evidence.results[-1].row.error}")
    if failed:
        warn(console, f"{failed:,} of {len(evidence.results):,} attempts failed and count as 0")
    return 0


def _warn_about(plan: Plan, settings: Settings, console: Console) -> None:
    """Warn where the scores mean less than they seem to."""
    if plan.samples > 1 and settings.read.temperature == 0:
        warn(console, "at temperature 0 all samples of an example are the same: add --temperature 1")
    if plan.lengths and not settings.engine.tokenizer and choose(settings.engine).engine == "openai":
        warn(console, "lengths in tokens are estimated: name the model's tokenizer with --tokenizer")
    name_samples(plan.sources(), console)


def shown_command(words: list[str], key: str | None) -> str:
    """The command as it was typed, without the endpoint's key."""
    shown = [
        word.removesuffix(key) + "..." if key and (word == key or word.endswith(f"={key}")) else word
        for word in map(without_secrets, words[1:])
    ]
    return shlex.join(["memagent", *shown])


async def _evaluate(run: Evaluation, display: RunDisplay) -> None:
    """Run an evaluation; its parts have their mean score so far, of the attempts of this run."""
    scores: defaultdict[str, list[float]] = defaultdict(list)

    def begin(totals: CellCounts, done: CellCounts) -> None:
        display.begin(*({_name(*part): count for part, count in it.items()} for it in (totals, done)))

    def add(row: EvaluationRow) -> None:
        part = _name(row.cell, row.workflow)
        scores[part].append(row.score)
        mean = f"{100 * sum(scores[part]) / len(scores[part]):.1f}"
        display.add(part, mean, row.spent, failed=row.error is not None)

    await evaluate(replace(run, on_begin=begin, on_row=add))


def _name(cell: Cell, workflow: str) -> str:
    return f"{cell.task}, {cell.size}, {workflow}"
