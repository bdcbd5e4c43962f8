"""The command line. Answers go to stdout, everything else to stderr.

Exit codes: 0 answered, 1 a defect in memagent, 2 usage or settings, 3 engine failed (resumable),
4 document unreadable, 130 interrupted (in general, 128 plus the number of the signal).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pkgutil import resolve_name
from types import FrameType

import click
import rich
from click.shell_completion import shell_complete

from memagent import __version__
from memagent.cli.messages import DEFECT, USAGE, OutputError, exit_code, log_to_stderr, print_error, warn
from memagent.errors import MemAgentError, reason

_COMMANDS = {
    "ask": "ask:command",
    "tally": "tally:command",
    "show": "journals:show",
    "view": "journals:view",
    "text": "previews:text",
    "notes": "notes:command",
    "serve": "serve:command",
    "mcp": "serve:mcp",
    "data": "data:command",
    "eval": "evaluate:command",
    "train": "train:command",
    "rollout": "rollout:command",
    "report": "evaluate:report",
    "models": "models:command",
    "doctor": "doctor:command",
}
"""Where each command is; its module is imported only when the command is used."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            if cmd_name.startswith("-"):
                return None
            raise click.NoSuchCommand(cmd_name, possibilities=_COMMANDS, ctx=ctx)
        command: click.Command = resolve_name(f"memagent.cli.{_COMMANDS[cmd_name]}")
        return command


@click.group(
    cls=_Commands,
    epilog="Exit codes: 0 answered, 1 a defect in memagent, 2 usage or settings, 3 engine failed "
    "(resumable), 4 document unreadable, 130 interrupted.",
)
@click.version_option(__version__, message="memagent %(version)s")
def _memagent() -> None:
    """Read documents of any length with any model: ask, measure, train."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names and replies may contain what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    if instruction := os.environ.get("_MEMAGENT_COMPLETE"):
        return shell_complete(_memagent, {}, "memagent", "_MEMAGENT_COMPLETE", instruction)
    rich.reconfigure(stderr=True)  # progress and messages share a console, so that they do not mix
    log_to_stderr(verbose=False)
    words = list(sys.argv[1:] if arguments is None else arguments)
    with _signals_as_interrupts() as received:
        try:
            return _run(words)
        except KeyboardInterrupt:
            warn(f"interrupted{_how_to_continue(words)}")
            return 128 + (received[0] if received else signal.SIGINT)


def _run(words: list[str]) -> int:
    """Run a command; every error becomes a line on stderr and an exit code."""
    try:
        with _memagent.make_context("memagent", words) as context:
            return int(_memagent.invoke(context) or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:  # a question was answered with no, Ctrl-C or Ctrl-D
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except MemAgentError as error:
        print_error(error)
        return exit_code(error)
    except OutputError as error:
        return _end_unwritten(error)
    except OSError as error:  # a full disk or an unreadable folder is not a defect
        file = f"{error.filename}: " if error.filename else ""
        print_error(f"{file}{reason(error)}")
        return USAGE
    except Exception as error:  # noqa: BLE001 a defect: one line, with --verbose also the traceback
        if "--verbose" in words:
            rich.get_console().print_exception()
        warn(f"a defect in memagent: {type(error).__name__}: {error} (--verbose shows where)")
        return DEFECT


def _end_unwritten(error: OutputError) -> int:
    """End after stdout failed: no error if its reader went away, but one if the disk is full."""
    with suppress(OSError, AttributeError, ValueError):  # buffered output must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error.__cause__, BrokenPipeError):
        return 0
    print_error(f"cannot write to standard output: {reason(error.__cause__ or error)}")
    return USAGE


def _how_to_continue(words: list[str]) -> str:
    """How to continue an interrupted command, if it can be continued."""
    if words[:2] == ["notes", "add"]:
        return ": run the same command again to continue"
    if words and words[0] in ("ask", "tally", "eval", "train") and "--dry-run" not in words:
        return ": run the same command with --resume to continue"
    return ""


@contextmanager
def _signals_as_interrupts() -> Iterator[list[int]]:
    """Make SIGTERM and SIGHUP end a command as Ctrl-C does; yields the numbers of those received."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:  # already ending
            return
        handler = signal.getsignal(signal.SIGINT)  # the event loop's, if one is running
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    before = {}
    with suppress(ValueError):  # not in the main thread
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                before[number] = signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
