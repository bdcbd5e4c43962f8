"""`memagent eval`: run readers over examples and keep every row."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from memagent.cli import flags
from memagent.cli.messages import warn
from memagent.engines import choose
from memagent.errors import EngineError, SettingsError
from memagent.evaluation.plan import Cell, Plan
from memagent.evaluation.readers import READERS, Retrieval
from memagent.evaluation.rows import EvaluationRow, without_password
from memagent.evaluation.run import Evaluation, evaluate
from memagent.reports.evaluation import load, score_tables
from memagent.settings import Settings
from memagent.tasks import TASKS, Corpora
from memagent.tasks.corpora import HOMES
from memagent.tasks.scoring import SCORERS


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "eval",
        help="run readers over examples and score them",
        description="Run readers over examples, side by side, and append a row an attempt to DIR/rows.jsonl.",
        epilog=f"tasks: {', '.join(TASKS)}. --seed makes the examples, and goes to the model's sampler. "
        "Without --answer-tokens an answer has the room that its task asks for.",
    )
    parser.add_argument("--task", action="append", default=[], choices=TASKS, metavar="NAME",
                        help="a task; may be repeated")  # fmt: skip
    parser.add_argument("--length", action="append", type=int, default=[], metavar="TOKENS",
                        help="a length of examples; may be repeated")  # fmt: skip
    parser.add_argument("--documents", action="append", type=int, default=[], metavar="N",
                        help="a size in documents, for tasks made of documents; may be repeated")  # fmt: skip
    parser.add_argument(
        "--examples", metavar="FILE", help="examples from a JSONL file, as `memagent data` writes"
    )
    parser.add_argument("--reader", action="append", default=[], choices=READERS, metavar="NAME",
                        help=f"{', '.join(READERS)}; may be repeated")  # fmt: skip
    parser.add_argument("--count", type=int, metavar="N",
                        help="examples for a task at a size (128, or all of a smaller set); of a file, "
                        "the first (all)")  # fmt: skip
    parser.add_argument("--samples-per-example", type=int, default=1, metavar="N", dest="samples",
                        help="how often each reader reads an example (1)")  # fmt: skip
    parser.add_argument("--scorer", choices=SCORERS, help="another scorer than the task's own")
    parser.add_argument("--positions", choices=("seeded", "ruler"), default="seeded",
                        help="an order for each example, or RULER's one for all")  # fmt: skip
    parser.add_argument("--passages", type=int, default=Retrieval().passages, metavar="K",
                        help="how many passages the reader rag shows (%(default)s)")  # fmt: skip
    parser.add_argument("--passage-tokens", type=int, default=Retrieval().passage_tokens, metavar="N",
                        help="how long each of them is (%(default)s)")  # fmt: skip
    for name in HOMES:
        parser.add_argument(
            f"--{name}", type=Path, metavar="FILE", help=f"your own file of the corpus {name}"
        )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the rows")
    parser.add_argument("--resume", action="store_true", help="run only what is missing in DIR")
    parser.add_argument("--ray", metavar="ADDRESS", help='spread over a Ray cluster: its address, or "auto"')
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--verbose", action="store_true", help="tell about retries")
    flags.add_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run what is missing, print the scores, and return the exit code."""
    settings = flags.settings_from(options)
    plan = _plan(options, settings)
    _warn_about(plan, settings, console)
    with _progress_on(Console(quiet=True) if options.quiet else console) as cells:
        asyncio.run(
            evaluate(
                Evaluation(
                    plan=plan,
                    settings=settings,
                    folder=options.out,
                    resume=options.resume,
                    command=shown_command(sys.argv, settings.api_key),
                    ray=options.ray,
                    on_begin=cells.begin,
                    on_row=cells.add,
                )
            )
        )
    evidence = load([options.out])
    print(score_tables(evidence), end="")
    failed = sum(result.row.error is not None for result in evidence.results)
    if failed == len(evidence.results):
        raise EngineError(f"every attempt failed, the last with: {evidence.results[-1].row.error}")
    if failed:
        warn(console, f"{failed:,} of {len(evidence.results):,} attempts failed and count as 0")
    return 0


def _warn_about(plan: Plan, settings: Settings, console: Console) -> None:
    """Say what the scores will not mean."""
    if plan.samples > 1 and settings.temperature == 0:
        warn(console, "at temperature 0 all samples of an example are alike: add --temperature 1")
    if plan.lengths and not settings.tokenizer and choose(settings).engine == "openai":
        warn(console, "lengths in tokens are estimated: name the model's tokenizer with --tokenizer")
    for source in plan.sources():
        if source.origin == "sample":
            home = HOMES[source.name]
            warn(console, f"{source.name}: the small sample that comes with memagent, not the set; {home}")


def shown_command(words: list[str], key: str | None) -> str:
    """The command as it was typed, without the endpoint's key."""
    shown = [
        word.removesuffix(key) + "..." if key and (word == key or word.endswith(f"={key}")) else word
        for word in map(without_password, words[1:])
    ]
    return shlex.join(["memagent", *shown])


def _plan(options: argparse.Namespace, settings: Settings) -> Plan:
    for name in ("passages", "passage_tokens"):
        if getattr(options, name) < 1:
            raise SettingsError(f"{name} is {getattr(options, name)}: it must be above 0")
    given = tuple((name, path) for name in HOMES if (path := getattr(options, name)) is not None)
    return Plan(
        readers=tuple(options.reader),
        tasks=tuple(options.task),
        lengths=tuple(options.length),
        documents=tuple(options.documents),
        count=options.count,
        samples=options.samples,
        seed=settings.seed or 0,
        examples=options.examples,
        scorer=options.scorer,
        positions=options.positions,
        retrieval=Retrieval(passages=options.passages, passage_tokens=options.passage_tokens),
        corpora=Corpora(given),
    )


@contextmanager
def _progress_on(console: Console) -> Iterator[_Cells]:
    """What tells about the run: bars on a terminal, a line for each finished cell elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield _Cells(console, bars)


class _Cells:
    """A bar for each cell and reader that is under way, and one for all."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self.console, self.bars = console, bars
        self.all: TaskID | None = None
        self.cells: dict[tuple[Cell, str], TaskID] = {}
        self.totals: Counter[tuple[Cell, str]] = Counter()
        self.done: Counter[tuple[Cell, str]] = Counter()
        self.scores: defaultdict[tuple[Cell, str], list[float]] = defaultdict(list)
        self.failed: Counter[tuple[Cell, str]] = Counter()

    def begin(self, totals: Counter[tuple[Cell, str]], done: Counter[tuple[Cell, str]]) -> None:
        self.totals, self.done = totals, done
        self.all = self.bars.add_task("all", total=totals.total(), completed=done.total())
        for cell, reader in totals:
            self.cells[cell, reader] = self.bars.add_task("", total=totals[cell, reader], visible=False)
        if done and not self.console.is_terminal:
            self._say(f"{done.total():,} of {totals.total():,} attempts are there already")

    def add(self, row: EvaluationRow) -> None:
        place = (Cell(row.task, row.length, row.documents), row.reader)
        self.done[place] += 1
        self.scores[place].append(row.score)
        self.failed[place] += row.error is not None
        finished = self.done[place] == self.totals[place]
        told = f"{row.task}, {place[0].size}, {row.reader}: {self._score(place)}"
        if self.all is not None:
            self.bars.advance(self.all)
        self.bars.update(
            self.cells[place], completed=self.done[place], description=told, visible=not finished
        )
        if finished:
            self._say(f"{told}, {self.done[place]:,} attempts")

    def _score(self, place: tuple[Cell, str]) -> str:
        """The score of the attempts of this run."""
        scores = self.scores[place]
        failed = f", {self.failed[place]} failed" if self.failed[place] else ""
        return f"{100 * sum(scores) / len(scores):.1f}{failed}"

    def _say(self, line: str) -> None:
        self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
