"""`memagent report`: tables and pictures of what evaluations or training runs came to."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from memagent.cli.messages import warn
from memagent.errors import SettingsError
from memagent.evaluation.rows import RUN_FILE
from memagent.reports.evaluation import write_report as report_evaluations
from memagent.reports.training import write_report as report_training
from memagent.training.metrics import METRICS_FILE

_WRITERS = {METRICS_FILE: report_training, RUN_FILE: report_evaluations}


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="draw what evaluations or training runs came to",
        description="Write report.md, report.json and pictures from the rows of one or more evaluations, or "
        "from the metrics of one or more training runs.",
    )
    parser.add_argument(
        "words", nargs="+", metavar="DIR", help="a folder of `memagent eval` or `memagent train`"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (the first folder)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the report and print the names of its files."""
    folders = [Path(word) for word in options.words]
    written = _writer(folders)(folders, options.out or folders[0])
    for path in written:
        print(path)
    if not any(path.suffix == ".png" for path in written):
        warn(console, "no pictures: pip install 'memagent[report]'")
    return 0


def _writer(folders: Sequence[Path]) -> Callable[[Sequence[Path], Path], list[Path]]:
    """What reports on these folders. Raises `SettingsError` where they hold nothing, or unlike things."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for folder in folders:
        kind = next((file for file in _WRITERS if (folder / file).exists()), None)
        if kind is None:
            raise SettingsError(
                f"{folder} holds no evaluation ({RUN_FILE}) and no training run ({METRICS_FILE}): "
                "name a folder of memagent eval or memagent train"
            )
        kinds[kind].append(str(folder))
    if len(kinds) > 1:
        raise SettingsError(
            f"{', '.join(kinds[METRICS_FILE])} (training) and {', '.join(kinds[RUN_FILE])} (evaluation) "
            "do not go into one report: run memagent report for each kind"
        )
    return _WRITERS[next(iter(kinds))]
