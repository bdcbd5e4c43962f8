"""`memagent train`: train a policy to write memory, warm it up, collect trajectories, export it."""

from __future__ import annotations

import asyncio
import logging
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, get_args

import click
from click.shell_completion import CompletionItem
from rich import get_console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from memagent.cli.flags import PATH, complete_files, quiet_and_verbose, together
from memagent.cli.messages import say, tell
from memagent.cli.progress import RunDisplay
from memagent.documents.tokens import estimate_tokens
from memagent.engines import open_engine
from memagent.engines.gguf import catalogue
from memagent.errors import SettingsError, extra_hint
from memagent.training.collecting import collect as collect_from
from memagent.training.data import load_data, write_trajectories
from memagent.training.rewards import load_reward
from memagent.training.rollout import Rollout
from memagent.training.settings import load_training
from memagent.types import NOTHING_SPENT, Trajectory

_Form = Literal["adapter", "merged", "gguf", "gguf-adapter"]

# A step takes seconds or minutes: the time left is estimated from the steps of the last hour.
_SPEED_SECONDS = 3600.0
_LINE = {
    "reward": "reward {:.3g}",
    "equal_groups": "groups equal {:.0%}",
    "loss": "loss {:.3g}",
    "kl": "KL {:.3g}",
    "entropy": "entropy {:.3g}",
    "gradient_norm": "gradient norm {:.3g}",
    "memory_tokens": "memory {:,.0f} tokens",
    "cut": "updates cut {:.1%}",
    "unchanged": "unchanged {:.1%}",
    "tokens": "trained on {:,.0f} tokens",
    "rollout_seconds": "rollout time {:,.1f} s",
    "update_seconds": "update time {:,.1f} s",
}
"""The parts of a step's line, for the values that were measured."""


class _TrainGroup(click.Group):
    """`train CONFIG` means `train run CONFIG`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return super().shell_complete(ctx, incomplete) or complete_files(ctx, self, incomplete)


@click.group(
    cls=_TrainGroup,
    short_help="Train a reader (Multi-Conv DAPO).",
    subcommand_metavar="[run|sft|collect|export] ...",
    epilog="Several GPUs: accelerate launch -m memagent train CONFIG.toml.",
)
def command() -> None:
    """Train a policy to write memory (Multi-Conv DAPO), as configured in a TOML file.

    `memagent train CONFIG.toml` is short for `memagent train run CONFIG.toml`.
    """


_configured = together(
    click.argument("config", type=PATH, metavar="CONFIG.toml"),
    click.option("--set", "changes", multiple=True, metavar="NAME=VALUE",
                 help="override a setting (loss.kl_weight=0); may be repeated"),
)  # fmt: skip
_training = together(
    _configured,
    click.option("--out", type=PATH, metavar="DIR", help="the run's folder (runs/ plus CONFIG's name)"),
    click.option("--resume", is_flag=True, help="continue from the newest checkpoint"),
    quiet_and_verbose,
)


@command.command(short_help="Imitate, if the settings say so, then reinforce.")
@_training
def run(**flags: Any) -> None:
    """Run the warm start, if CONFIG.toml has one, then reinforcement learning."""
    _train(only_warm_start=False, **flags)


@command.command(short_help="Imitate alone.")
@_training
def sft(**flags: Any) -> None:
    """Run the warm start alone, which imitates solved examples."""
    _train(only_warm_start=True, **flags)


def _train(
    only_warm_start: bool, config: Path, changes: tuple[str, ...], out: Path | None, resume: bool, quiet: bool
) -> None:
    settings = load_training(config, overrides(changes))
    with _extra():
        from memagent.training.loop import train

    # Else each attempt would log that its budgets shrink to fit the window.
    logging.getLogger("memagent.reading").setLevel(logging.ERROR)
    folder = out or Path("runs") / config.stem
    first = os.environ.get("RANK", "0") == "0"  # only one of several processes reports
    with TrainingWatch(quiet or not first) as watch:
        asyncio.run(train(settings, folder, watch, resume, only_warm_start=only_warm_start))
    if first:
        say(str(folder))


@command.command(short_help="Collect good attempts by another model, to imitate.")
@_configured
@click.option("--out", type=PATH, required=True, metavar="FILE", help="where the trajectories go (JSONL)")
@click.option(
    "--count", type=click.IntRange(1), default=256, metavar="N", help="how many examples are read (256)"
)
@click.option("--samples", type=click.IntRange(1), default=1, metavar="N", help="attempts per example (1)")
@click.option(
    "--least-reward", type=float, default=1.0, metavar="X", help="keep attempts with at least this reward (1)"
)
@quiet_and_verbose
def collect(
    config: Path,
    changes: tuple[str, ...],
    out: Path,
    count: int,
    samples: int,
    least_reward: float,
    quiet: bool,
) -> None:
    """Collect good attempts by CONFIG's [engine] at the examples of its [data], to imitate."""
    settings = load_training(config, overrides(changes))
    data = load_data(settings.data.examples, settings.seed, estimate_tokens)
    reward = load_reward(settings.data.reward, settings.data.scorer)
    examples = data.first(count)
    total = len(examples) * samples

    async def make(display: RunDisplay) -> int:
        def show(attempt: Trajectory | None) -> None:
            note = f"{attempt.example_id}, reward {attempt.reward}" if attempt else ""
            display.add("", note, NOTHING_SPENT)

        display.begin({"": total}, {})
        async with open_engine(settings.engine) as engine:
            rollout = Rollout(engine=engine, settings=settings.read, reward=reward)
            good = collect_from(examples, rollout, least_reward, samples, show)
            return await write_trajectories(out, good)

    with RunDisplay(quiet, "attempts") as display:
        written = asyncio.run(make(display))
    tell(f"{written} of {total} attempts kept", quiet=quiet)


@command.command(short_help="Write what a run has learned as a model.")
@click.argument("run", type=PATH, metavar="RUN")
@click.option("--to", "kind", type=click.Choice(get_args(_Form)),
              default="merged", help="a PEFT folder (adapter), a Hugging Face folder (merged, the default), "
              "or a file for llama.cpp (gguf, gguf-adapter)")  # fmt: skip
@click.option("--out", type=PATH, required=True, metavar="PATH", help="where it goes")
@quiet_and_verbose
def export(run: Path, kind: _Form, out: Path, quiet: bool) -> None:
    """Export the newest checkpoint of RUN, the folder of a training run."""
    with _extra():
        from memagent.training.export import describe_training, export_policy, load_trained_policy

    policy, settings, step = load_trained_policy(run)
    if settings.policy.only_verdicts and "adapter" not in kind:
        raise SettingsError(
            f"{run} trained a LoRA for verdicts alone, and as {kind} it would give all replies: export it as "
            "adapter or gguf-adapter"
        )
    model = settings.policy.model or str(catalogue.find_default())
    export_policy(
        policy.model,
        policy.tokenizer,
        kind,
        out,
        base_gguf=Path(model) if model.endswith(".gguf") else None,
        trained=describe_training(settings),
    )
    tell(f"the policy after step {step}: {out}", quiet=quiet)


def overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Nested tables from `table.name=value` pairs; values are TOML, or else text. Raises `SettingsError`."""
    tables: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set {pair}: write NAME=VALUE")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *path, last = name.strip().split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SettingsError(
                    f"--set {pair}: {part} was set to {table!r} before: leave out one of the two"
                )
        table[last] = value
    return tables


@contextmanager
def _extra() -> Iterator[None]:
    """Wrap imports that need torch and the like. Raises `SettingsError` if they are missing."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{error}; {extra_hint('train')}") from error


class TrainingWatch:
    """Shows a line per step unless `quiet`, on a terminal with the time left below. A context manager."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._steps = 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), TextColumn("passed,"),
            TimeRemainingColumn(), TextColumn("left"), speed_estimate_period=_SPEED_SECONDS,
            disable=quiet or not get_console().is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None

    def begin(self, first_step: int, steps: int, stage: str = "training") -> None:
        """Begin a stage of `steps` steps at `first_step`: 1, or the next step of a resumed run."""
        self._steps = steps
        if self._task is not None:
            self._bar.remove_task(self._task)
        name = stage.replace("_", " ")
        self._task = self._bar.add_task(name, total=steps, completed=first_step - 1)
        if first_step > 1:
            tell(f"{name} resumes at step {first_step:,} of {steps:,}", quiet=self._quiet)

    def row(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Show a step, or an evaluation made after one."""
        if stage == "evaluation":
            tell(f"held-out score after step {step:,}: {_score(values)}", quiet=self._quiet)
            return
        if self._task is not None:
            self._bar.update(self._task, completed=step)
        measured = ", ".join(text.format(values[name]) for name, text in _LINE.items() if name in values)
        tell(f"{stage.replace('_', ' ')}, step {step:,} of {self._steps:,}: {measured}", quiet=self._quiet)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()


def _score(values: Mapping[str, float]) -> str:
    failed = f", {values['failed']:.0f} failed" if values.get("failed") else ""
    count = f" ({values['count']:.0f} examples{failed})" if "count" in values else ""
    return f"{values['score']:.1f} ± {values['half_width']:.1f}{count}"
