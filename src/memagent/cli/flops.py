"""`memagent flops`: the computation that workflows take, by length, from a model's config.json."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from rich.console import Console

from memagent.cli.flags import PATH, Command, with_settings
from memagent.cli.messages import say, warn
from memagent.errors import extra_hint
from memagent.evaluation.flops import flops_by_length, shape_of
from memagent.reading.workflows import workflows
from memagent.reports.flops import flops_table, write_report
from memagent.settings import Settings

_LENGTHS = tuple(2**power for power in range(13, 23))  # 8K to 4M
_WORKFLOWS = ("full", "gated", "heads", "parallel", "tree", "reread")
_BUDGETS = ("problem_tokens", "chunk_tokens", "memory_tokens", "answer_tokens", "heads", "rounds", "shards",
            "passages", "passage_tokens")  # fmt: skip


@click.command(cls=Command, short_help="Compute the FLOPs of workflows, by length.")
@click.argument("config", type=PATH, metavar="CONFIG")
@click.option("--length", "lengths", multiple=True, type=click.IntRange(min=1), metavar="TOKENS",
              help="a document length; may be repeated (8K to 4M, doubling)")  # fmt: skip
@click.option("--workflow", "workflows", multiple=True, type=click.Choice(list(workflows())), metavar="NAME",
              help=f"a workflow; may be repeated ({', '.join(_WORKFLOWS)})")  # fmt: skip
@click.option("--out", type=PATH, metavar="DIR", help="also write report.md, report.json and a picture there")
@with_settings("read", only=_BUDGETS)
@click.pass_obj
def command(
    console: Console,
    config: Path,
    lengths: tuple[int, ...],
    workflows: tuple[str, ...],
    out: Path | None,
    settings: Settings,
) -> int:
    """Compute the floating-point operations of reads from a model's dimensions, without running a model.

    CONFIG is the model's config.json, as on Hugging Face, or the folder that contains it. Memories and
    replies are assumed to fill their budgets.
    """
    shape = shape_of(config)
    wanted = sorted(set(lengths)) or list(_LENGTHS)
    found = {
        name: asyncio.run(flops_by_length(shape, name, wanted, settings.read))
        for name in dict.fromkeys(workflows or _WORKFLOWS)
    }
    say(flops_table(found).removesuffix("\n"))
    if out:
        name = config.resolve().parent.name if config.is_file() else config.resolve().name
        written = write_report(name, shape, found, out)
        for path in written:
            say(str(path))
        if not any(path.suffix == ".png" for path in written):
            warn(console, f"no picture: {extra_hint('report')}")
    return 0
