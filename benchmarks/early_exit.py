"""How often `--early-exit` comes too early and what it saves, by `--exit-patience`; which patience to choose.

Each example is read once, to its end, with the workflow `gated`. The conversations before a stop are the same
without it, so one read shows for every patience where it would have stopped. A stop is too early if a passage
of the example's evidence ends after it. `--risk` chooses a patience on every other example and tests it on
the rest. The model is the default one, or the one behind `--base-url`. Not measured: the answers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

import measure

from memagent import EngineSettings, Read, ReadSettings, open_engine, text_document
from memagent.evaluation.statistics import confidence_interval
from memagent.reading.workflows.gated import confirmations
from memagent.tasks import TASKS, Recipe, examples
from memagent.types import Engine, Example

_TASKS = ("niah_single_2", "niah_multikey_1", "niah_multivalue", "qa_1")
_PATIENCES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class Step:
    """A chunk: where it ends, whether it changed the memory, and whether the memory is then enough."""

    end: int
    changed: bool
    enough: bool


@dataclass(frozen=True)
class Path:
    """One example, read to its end: its steps, and where its last evidence ends in the document."""

    task: str
    steps: tuple[Step, ...]
    evidence_end: int

    def stop(self, patience: int) -> int | None:
        """The number of chunks after which a reader of that patience stops; None if it reads to the end."""
        confirmed: int | None = None
        for number, step in enumerate(self.steps, start=1):
            confirmed = confirmations(confirmed, step.changed, step.enough)
            if confirmed is not None and confirmed >= patience:
                return number if number < len(self.steps) else None
        return None

    def too_early(self, patience: int) -> bool:
        """Whether evidence ends after the stop."""
        stop = self.stop(patience)
        return stop is not None and self.steps[stop - 1].end < self.evidence_end

    def saved(self, patience: int) -> float:
        """The share of the chunks that are not read."""
        stop = self.stop(patience)
        return 0.0 if stop is None else 1 - stop / len(self.steps)


async def read_through(task: str, example: Example, engine: Engine, settings: ReadSettings) -> Path:
    """Read an example to its end."""
    steps: dict[int, Step] = {}
    document = text_document(example.document, is_example=True)
    read = Read(example.problem, document, engine, settings, purpose="train")
    memory = ""
    async for conversation in read:
        if conversation.chunk_index is not None and conversation.span is not None:
            before = steps.get(conversation.chunk_index, Step(0, changed=False, enough=False))
            changed = conversation.memory != memory
            enough = conversation.enough or (before.enough and not changed)
            steps[conversation.chunk_index] = Step(conversation.span[1], before.changed or changed, enough)
            memory = conversation.memory
    ends = [at + len(passage) for passage in example.evidence if (at := example.document.find(passage)) >= 0]
    return Path(task, tuple(steps[index] for index in sorted(steps)), max(ends))


def least_patience(paths: Sequence[Path], risk: float) -> int | None:
    """The least patience that leaves a further example too early with at most the probability `risk`.

    Conformal risk control (arXiv 2208.02814), for exchangeable examples: a longer patience is never too early
    where a shorter one is not. None if no patience is proved to be enough.
    """
    for patience in _PATIENCES:
        if (sum(path.too_early(patience) for path in paths) + 1) / (len(paths) + 1) <= risk:
            return patience
    return None


async def paths_of(args: argparse.Namespace) -> list[Path]:
    """Read the examples, as many at once as the engine takes calls."""
    engine_settings = EngineSettings(base_url=args.base_url, model=args.model)
    settings = ReadSettings(workflow="gated", chunk_tokens=args.chunk_tokens)
    async with open_engine(engine_settings) as engine:
        limit = asyncio.Semaphore(engine.model.calls)

        async def one(number: int, task: str, example: Example) -> Path:
            async with limit:
                path = await read_through(task, example, engine, settings)
            print(f"example {number} of {len(asked)} read", file=sys.stderr, flush=True)
            return path

        recipe = Recipe(seed=args.seed, length_tokens=args.length)
        counts = {name: TASKS[name].count(None, args.count, recipe.corpora) for name in args.task}
        asked = [(name, example) for name in args.task for example in examples(name, recipe, counts[name])]
        return await asyncio.gather(
            *(one(number, *question) for number, question in enumerate(asked, start=1))
        )


def rows(paths: Sequence[Path]) -> Iterator[Sequence[object]]:
    """A row for each task and patience, and for all tasks together."""
    tasks = list(dict.fromkeys(path.task for path in paths))
    for task in (*tasks, "all") if len(tasks) > 1 else tasks:
        chosen = [path for path in paths if task in (path.task, "all")]
        for patience in _PATIENCES:
            stopped = [choice.stop(patience) is not None for choice in chosen]
            early = [float(choice.too_early(patience)) for choice in chosen]
            saved = fmean(choice.saved(patience) for choice in chosen)
            yield task, patience, len(chosen), in_percent(stopped), in_percent(early), f"{100 * saved:.1f}"


def in_percent(shares: Sequence[float]) -> str:
    """The mean of shares with its 95% interval."""
    low, high = confidence_interval(shares)
    return f"{100 * fmean(shares):.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def advice(paths: Sequence[Path], risk: float) -> str:
    """The patience chosen on every other example, and how it does on the rest."""
    if not any(step.enough for path in paths for step in path.steps):
        return "The model never said that it knows enough: with it, --early-exit changes nothing."
    chosen_on, rest = paths[::2], paths[1::2]
    patience = least_patience(chosen_on, risk)
    if patience is None:
        return (
            f"{len(chosen_on)} examples prove of no patience that it leaves at most {risk:.0%} too early: "
            "read to the end, or take more examples."
        )
    sentences = [f"--exit-patience {patience}: chosen on {len(chosen_on)} examples for a risk of {risk:.0%}."]
    if rest:
        early = in_percent([float(row.too_early(patience)) for row in rest])
        saved = fmean(row.saved(patience) for row in rest)
        sentences.append(
            f"Of {len(rest)} others {early}% were left too early, {saved:.1%} of their chunks saved."
        )
    return " ".join(sentences)


def main() -> None:
    """Read, print the table and the advice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", nargs="+", default=_TASKS, metavar="NAME", help="of RULER")
    parser.add_argument("--length", type=int, default=4096, help="tokens per example (4096)")
    parser.add_argument("--count", type=int, default=16, help="examples per task (16)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the examples (1)")
    parser.add_argument("--chunk-tokens", type=int, help="tokens per chunk (the model's own)")
    parser.add_argument("--base-url", help="an endpoint (the default model)")
    parser.add_argument("--model", help="its model")
    parser.add_argument("--risk", type=float, default=0.1, help="of leaving an example too early (0.1)")
    measure.add_json_flag(parser)
    args = parser.parse_args()
    paths = asyncio.run(paths_of(args))
    heads = ["task", "patience", "examples", "stopped, %", "too early, %", "chunks saved, %"]
    print(measure.table(heads, rows(paths)), end="\n\n")
    print(advice(paths, args.risk))
    measure.write_json(args.json, measure.provenance() | {"paths": [asdict(path) for path in paths]})


if __name__ == "__main__":
    main()
