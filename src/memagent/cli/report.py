"""`memagent report`: tables and pictures of what evaluations came to."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from memagent.cli.messages import warn
from memagent.evaluation.report import write_report


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="draw what evaluations came to",
        description="Write report.md, report.json and pictures from the rows of one or more evaluations.",
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a folder of `memagent eval --out`"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (the first folder)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the report and print the names of its files."""
    out = options.out or options.folders[0]
    written = write_report(options.folders, out)
    for path in written:
        print(path)
    if not any(path.suffix == ".png" for path in written):
        warn(console, "no pictures: pip install 'memagent[report]'")
    return 0
