"""`memagent report`: tables and pictures of the results of evaluations or training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console

from memagent.cli.flags import PATH
from memagent.cli.messages import say, warn
from memagent.errors import SettingsError, extra_hint
from memagent.evaluation.rows import RUN_FILE
from memagent.reports.evaluation import write_report as report_evaluations
from memagent.reports.training import write_report as report_training
from memagent.training.metrics import METRICS_FILE

_WRITERS = {METRICS_FILE: report_training, RUN_FILE: report_evaluations}


@click.command(short_help="Make tables and pictures of runs.")
@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option("--out", type=PATH, metavar="DIR", help="where to write (the first folder)")
@click.pass_obj
def command(console: Console, folders: tuple[Path, ...], out: Path | None) -> int:
    """Report the results of evaluations or training runs.

    Writes report.md, report.json and pictures from the folders of one or more evaluations (`memagent eval`),
    or of one or more training runs (`memagent train`).
    """
    written = _writer(folders)(folders, out or folders[0])
    for path in written:
        say(str(path))
    if not any(path.suffix == ".png" for path in written):
        warn(console, f"no pictures: {extra_hint('report')}")
    return 0


def _writer(folders: Sequence[Path]) -> Callable[[Sequence[Path], Path], list[Path]]:
    """The writer of the one report that all of these folders can be in."""
    for file, writer in _WRITERS.items():
        if all((folder / file).exists() for folder in folders):
            return writer
    raise SettingsError(
        f"{', '.join(map(str, folders))}: name folders of memagent eval (which hold {RUN_FILE}), "
        f"or of memagent train (which hold {METRICS_FILE}), not some of each"
    )
