"""`memagent eval`: read examples in several ways, score the answers, keep every row; `memagent report`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich import get_console

from memagent.cli.data import corpus_flags, positions_flag, warn_of_samples
from memagent.cli.flags import PATH, Command, complete_files, quiet_and_verbose, with_settings
from memagent.cli.messages import say, warn
from memagent.cli.models import must_fetch, open_to_count, use_default
from memagent.cli.previews import describe_bound
from memagent.cli.progress import RunDisplay
from memagent.engines import choose
from memagent.errors import EngineError, SettingsError, extra_hint, without_secrets
from memagent.evaluation.plan import EvaluationPlan
from memagent.evaluation.rows import RUN_FILE, Cell, EvaluationRow
from memagent.evaluation.run import CellCounts, Evaluation, evaluate, forecast_evaluation
from memagent.reading.workflows import workflows
from memagent.reports.evaluation import cost_table, load, score_tables
from memagent.reports.evaluation import write_report as report_evaluations
from memagent.reports.folder import table
from memagent.reports.training import write_report as report_training
from memagent.settings import Settings
from memagent.tasks import TASKS
from memagent.tasks.corpora import is_sample, sample_warning
from memagent.tasks.scoring import SCORERS
from memagent.training.metrics import METRICS_FILE
from memagent.types import ESTIMATE, Spent


@click.command(cls=Command, short_help="Measure workflows.", epilog=f"Tasks: {', '.join(TASKS)}.")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(TASKS)), metavar="NAME",
              help="a task; may be repeated")  # fmt: skip
@click.option("--length", "lengths", multiple=True, type=int, metavar="TOKENS",
              help="an example length; may be repeated")  # fmt: skip
@click.option("--documents", multiple=True, type=int, metavar="N",
              help="a size in documents, for tasks made of documents; may be repeated")  # fmt: skip
@click.option("--examples", metavar="FILE", shell_complete=complete_files,
              help="examples from a JSONL file, as written by `memagent data`")  # fmt: skip
@click.option("--workflow", "workflows", multiple=True, type=click.Choice(list(workflows())),
              metavar="NAME",
              help=f"a workflow (auto); may be repeated: {', '.join(workflows())}")  # fmt: skip
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
@with_settings(leave_out=("workflow", "cite", "discover"))
def command(
    out: Path,
    quiet: bool,
    workflows: tuple[str, ...],
    resume: bool,
    dry_run: bool,
    traces: bool,
    ray: str | None,
    settings: Settings,
    **plan_options: Any,
) -> None:
    """Read examples concurrently with one or more workflows, and append a row per attempt to DIR/rows.jsonl.

    --seed seeds both the examples and the model's sampler. Without --answer-tokens, the task sets the budget
    of the answer.
    """
    settings = replace(settings, read=settings.read.replace(cite=False))  # rows have no sources
    plan = EvaluationPlan(workflows=workflows, seed=settings.read.seed or 0, **plan_options)
    if not (dry_run and must_fetch(settings.engine)):
        use_default(settings.engine, quiet)
    _warn_about(plan, settings)
    run = Evaluation(
        plan=plan,
        settings=settings,
        folder=out,
        resume=resume,
        command=redact_command(sys.argv, settings.engine.api_key),
        traces=traces,
        ray=ray,
    )
    if dry_run:
        with nullcontext() if quiet else get_console().status("making the examples"):
            asyncio.run(_dry_run(run))
        return
    with RunDisplay(quiet, "attempts") as display:
        asyncio.run(_evaluate(run, display))
    evidence = load([out])
    say(f"{score_tables(evidence)}\n{cost_table(evidence)}".removesuffix("\n"))
    if plan.examples and any(is_sample(result.row.haystack) for result in evidence.results):
        warn(sample_warning("essays"))
    failed = sum(result.row.error is not None for result in evidence.results)
    if failed == len(evidence.results):
        raise EngineError(f"every attempt failed, the last with: {evidence.results[-1].row.error}")
    if failed:
        warn(f"{failed:,} of {len(evidence.results):,} attempts failed and count as 0")


def _warn_about(plan: EvaluationPlan, settings: Settings) -> None:
    """Warn where the scores mean less than they seem to."""
    if plan.samples > 1 and settings.read.temperature == 0:
        warn("at temperature 0 all samples of an example are the same: add --temperature 1")
    engine = settings.engine
    if plan.lengths and not (engine.tokenizer or must_fetch(engine)) and not choose(engine).embedded:
        warn("lengths in tokens are estimated: name the model's tokenizer with --tokenizer")
    warn_of_samples(plan.sources())


def redact_command(words: list[str], key: str | None) -> str:
    """The command as it was typed, without the endpoint's key."""
    redacted = [
        word.removesuffix(key) + "..." if key and (word == key or word.endswith(f"={key}")) else word
        for word in map(without_secrets, words[1:])
    ]
    return shlex.join(["memagent", *redacted])


async def _evaluate(run: Evaluation, display: RunDisplay) -> None:
    """Run an evaluation; each of its parts shows the mean score of this run's attempts so far."""
    scores: defaultdict[str, list[float]] = defaultdict(list)

    def begin(totals: CellCounts, done: CellCounts) -> None:
        display.begin(*({_name(*part): count for part, count in counts.items()} for counts in (totals, done)))

    def add(row: EvaluationRow) -> None:
        part = _name(row.cell, row.workflow)
        scores[part].append(row.score)
        mean = f"{100 * sum(scores[part]) / len(scores[part]):.1f}"
        display.add(part, mean, row.spent, failed=row.error is not None)

    await evaluate(replace(run, on_begin=begin, on_row=add))


async def _dry_run(run: Evaluation) -> None:
    """Print the maximum cost of an evaluation, by task, size and workflow, and in total.

    An endpoint is asked for its window; a local model is loaded to count with; where there is neither, tokens
    are estimated. Raises `MemAgentError`.
    """
    async with open_to_count(run.settings.engine) as engine:
        forecasts = await forecast_evaluation(run, engine)
        model = engine.model
    rows = [
        [
            cell.task, cell.size, workflow, f"{progress.done:,}", f"{progress.spent.calls:,}",
            f"{progress.spent.prompt_tokens:,}", f"{progress.spent.completion_tokens:,}",
            "–" if progress.spent.cost is None else f"{progress.spent.cost:.4g}",
        ]
        for (cell, workflow), progress in forecasts.items()
    ]  # fmt: skip
    heads = ["task", "size", "workflow", "attempts", "calls", "tokens in", "out", "cost"]
    most = sum((progress.spent for progress in forecasts.values()), Spent())
    lines = [f"model: {model.name}", "at most:", "", table(heads, rows, texts=3)]
    if failing := sum(progress.failed for progress in forecasts.values()):
        attempts = sum(progress.done for progress in forecasts.values())
        lines.append(f"{failing:,} of {attempts:,} attempts would fail before their first call")
    lines += describe_bound(most, " for all attempts", model.tokenizer == ESTIMATE)
    say("\n".join(lines))


def _name(cell: Cell, workflow: str) -> str:
    return f"{cell.task}, {cell.size}, {workflow}"


@click.command(short_help="Make tables and pictures of runs.")
@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option("--out", type=PATH, metavar="DIR", help="where to write (the first folder)")
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Report the results of evaluations or training runs.

    Writes report.md, report.json and pictures from the folders of one or more evaluations (`memagent eval`),
    or of one or more training runs (`memagent train`).
    """
    writers = {METRICS_FILE: report_training, RUN_FILE: report_evaluations}
    kinds = (file for file in writers if all((folder / file).exists() for folder in folders))
    if (kind := next(kinds, None)) is None:
        raise SettingsError(
            f"{', '.join(map(str, folders))}: name folders of memagent eval (which hold {RUN_FILE}), "
            f"or of memagent train (which hold {METRICS_FILE}), not some of each"
        )
    written = writers[kind](folders, out or folders[0])
    for path in written:
        say(str(path))
    if not any(path.suffix == ".png" for path in written):
        warn(f"no pictures: {extra_hint('report')}")
