"""`memagent train`: train a policy to write memory, warm it up, collect trajectories, export it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from memagent.cli.messages import warn
from memagent.engines.llamacpp.embedded import default_model
from memagent.errors import SettingsError
from memagent.reading.read import given_budgets
from memagent.training.settings import TrainingSettings, load_training

_WAYS = ("sft", "collect", "export")


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a reader (Multi-Conv DAPO)",
        usage=f"memagent train [options] [{'|'.join(_WAYS)}] CONFIG.toml|RUN",
        description="Train a policy to write memory, as a TOML file says.",
        epilog="memagent train CONFIG.toml: warm start, where the file has one, then reinforcement learning. "
        "memagent train sft CONFIG.toml: the warm start alone. memagent train collect CONFIG.toml "
        "--out FILE: trajectories of the [read] engine at the examples of [data], kept if their reward is "
        "--least-reward or more. memagent train export RUN --to KIND --out PATH: the newest checkpoint as a "
        "PEFT folder (adapter), a Hugging Face folder (merged), or for llama.cpp (gguf, gguf-adapter). "
        "Several GPUs: accelerate launch -m memagent train CONFIG.toml.",
    )
    parser.add_argument("words", nargs="+", metavar="CONFIG.toml|RUN",
                        help="the settings; for export, a run's folder")  # fmt: skip
    parser.add_argument("--out", metavar="PATH", help="where it goes (runs/ and the name of the settings)")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="another value for a setting (loss.kl_weight=0); may be repeated")  # fmt: skip
    parser.add_argument("--to", choices=("adapter", "merged", "gguf", "gguf-adapter"), default="merged",
                        help="what to export (merged)")  # fmt: skip
    parser.add_argument(
        "--count", type=int, default=256, metavar="N", help="collect: at so many examples (256)"
    )
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="collect: attempts at each (1)")
    parser.add_argument(
        "--least-reward", type=float, default=1.0, metavar="X", help="collect: kept from here (1)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--verbose", action="store_true", help="tell about retries")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    way, source = _way_and_source(options.words)
    if way == "export":
        return _export(source, options, console)
    settings = load_training(source, overrides(options.set))
    if way == "collect":
        return asyncio.run(_collect(settings, options, console))
    with _extra():
        from memagent.training.trainer import train
    from memagent.cli.training_progress import TrainingWatch

    # A policy that learns writes empty replies by the thousand; the metrics tell of them.
    logging.getLogger("memagent.reading.workflows").setLevel(logging.ERROR)
    out = Path(options.out or Path("runs") / source.stem)
    first = os.environ.get("RANK", "0") == "0"  # of several processes one tells
    with TrainingWatch(console, options.quiet or not first) as watch:
        asyncio.run(train(settings, out, watch, options.resume, only_warm_start=way == "sft"))
    if first:
        print(out)
    return 0


def _way_and_source(words: list[str]) -> tuple[str | None, Path]:
    way, *rest = words
    if way in _WAYS and len(rest) == 1:
        return way, Path(rest[0])
    if rest or way in _WAYS:
        raise SettingsError(f"memagent train {' '.join(words)}: name one file of settings, or one run")
    return None, Path(way)


def overrides(pairs: list[str]) -> dict[str, Any]:
    """`table.name=value` pairs as nested tables; a value is TOML, or else text. Raises `SettingsError`."""
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
        table[last] = value
    return tables


@contextmanager
def _extra() -> Iterator[None]:
    """Around imports that need torch and its kin. Raises `SettingsError` where they are missing."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{error}: training needs its extra, pip install 'memagent[train]'") from error


async def _collect(settings: TrainingSettings, options: argparse.Namespace, console: Console) -> int:
    from memagent.engines import open_engine
    from memagent.evaluation.attempts import slots
    from memagent.training.data import load_data
    from memagent.training.imitation.trajectories import collect, write_trajectories
    from memagent.training.rewards import load_reward
    from memagent.types import model_of

    if options.out is None:
        raise SettingsError("where to? --out FILE.jsonl")
    engine = await open_engine(settings.read)
    try:
        count_tokens = model_of(engine).count_tokens or len
        data = load_data(settings.data.examples, settings.seed, count_tokens)
        reward = load_reward(settings.data.reward, settings.data.scorer)
        examples = data.first(options.count)
        found = collect(
            examples, engine, settings.read, reward,
            options.least_reward, options.samples, slots(settings.read),
        )  # fmt: skip
        kept = await write_trajectories(options.out, found)
    finally:
        await engine.aclose()
    if not options.quiet:
        warn(console, f"{kept} of {len(examples) * options.samples} attempts kept")
    return 0


def _export(source: Path, options: argparse.Namespace, console: Console) -> int:
    with _extra():
        from memagent.training.export import export_policy
        from memagent.training.trainer import trained_policy

    if options.out is None:
        raise SettingsError("where to? --out PATH")
    policy, settings, step = trained_policy(source)
    model = settings.policy.model or str(default_model())
    export_policy(
        policy.model,
        policy.tokenizer,
        options.to,
        Path(options.out),
        base_gguf=Path(model) if model.endswith(".gguf") else None,
        budgets=given_budgets(settings.read),
    )
    if not options.quiet:
        console.print(f"the policy after step {step}: {options.out}", highlight=False)
    return 0
