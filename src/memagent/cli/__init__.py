"""The command line: one file a command. Answers go to stdout, everything else to stderr.

Exit codes: 0 answered, 1 a defect in memagent, 2 usage or settings, 3 engine failed (resumable),
4 document unreadable, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from rich.console import Console
from rich.logging import RichHandler

from memagent import __version__
from memagent.cli import ask, data, doctor, evaluate, report, show, train
from memagent.cli.messages import DEFECT, INTERRUPTED, exit_code, print_error, warn
from memagent.errors import MemAgentError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name or reply may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    console = Console(stderr=True)
    options = _parsed(arguments)
    verbose = getattr(options, "verbose", False)
    _log_to(console, verbose)
    try:
        return int(options.run(options, console))
    except MemAgentError as error:
        print_error(console, error)
        return exit_code(error)
    except BrokenPipeError:  # the reader of our output has gone, which is its right
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 a defect: told in a line, unless more is asked for
        if verbose:
            console.print_exception()
        warn(console, f"a defect in memagent: {type(error).__name__}: {error} (--verbose tells where)")
        return DEFECT
    except KeyboardInterrupt:
        again = ": the same command with --resume goes on" if hasattr(options, "resume") else ""
        warn(console, f"interrupted{again}")
        return INTERRUPTED


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options; argparse alone takes no words behind a flag that follows words."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    words = [it for it in rest if not it.startswith("-") or it == "-"]
    if unknown := rest if not hasattr(options, "words") else [it for it in rest if it not in words]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if words:
        options.words += words
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="memagent",
        description="Read documents of any length with any model: ask, measure, train.",
        epilog="exit codes: 0 answered, 1 a defect in memagent, 2 usage or settings, "
        "3 engine failed (resumable), 4 document unreadable, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"memagent {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (ask, show, data, evaluate, train, report, doctor):
        module.add_parser(commands)
    return parser


def _log_to(console: Console, verbose: bool) -> None:
    log = logging.getLogger("memagent")
    log.handlers = [RichHandler(console=console, show_time=False, show_path=False, markup=False)]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
