"""Terminal output: answers on stdout, the rest on stderr, with control characters made harmless."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

from rich.console import Console

from memagent.errors import DocumentError, EngineError, MemAgentError, SettingsError
from memagent.settings import owners
from memagent.types import Spent

EXIT_CODES: dict[type[MemAgentError], int] = {SettingsError: 2, EngineError: 3, DocumentError: 4}
DEFECT = 1
USAGE = 2

# Control characters except tab and line feed, and bidirectional controls: a terminal obeys both.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *owners(), "about", "absent", "allow_origin", "data", "documents", "examples", "follow_links", "host",
        "keys", "max_cost", "max_tokens", "out", "port", "questions", "ray", "resume", "to", "trace",
        "verbose", "essays", "squad", "hotpot", "2wiki", "musique", "longbench",
    )
} | {
    "folders": "--folder", "length_tokens": "--length", "lengths": "--length", "tasks": "--task",
    "workflows": "--workflow",
}  # fmt: skip
"""The flag of each setting, and of each argument that the library's messages name."""

_NAME = re.compile(rf"`({'|'.join(FLAGS)})`")
"""How the library's messages write such a name."""


class OutputError(Exception):
    """Writing to standard output failed; the `__cause__` says why."""


def exit_code(error: MemAgentError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), USAGE)


def harmless(text: str) -> str:
    r"""The text with control characters escaped (`\x1b`): a terminal shows them but never obeys them."""
    return _COMMANDS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print a line to stdout: as it is to a file or pipe, escaped to a terminal. Raises `OutputError`."""
    print_text(text + "\n")


def print_text(text: str) -> None:
    """Print text as `say` does, without a line end. Raises `OutputError`."""
    _write(harmless(text) if sys.stdout and sys.stdout.isatty() else text)


def print_line(line: str) -> None:
    """Print a line to stdout as it is. Raises `OutputError`."""
    _write(line + "\n")


def _write(text: str) -> None:
    if sys.stdout is None:  # closed by the parent process
        raise OutputError from OSError("it is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise OutputError from error


def say_json(value: Any) -> None:
    """Print a value as a line of JSON with control characters escaped. Raises `OutputError`."""
    line = json.dumps(value, ensure_ascii=False)
    say(_COMMANDS.sub(lambda found: f"\\u{ord(found.group()):04x}", line))


def describe(spent: Spent) -> str:
    """What calls took: "1,200 tokens in, 80 out, cost 0.003", the cost only with prices."""
    price = "" if spent.cost is None else f", cost {spent.cost:.4g}"
    return f"{spent.prompt_tokens:,} tokens in, {spent.completion_tokens:,} out{price}"


def print_error(console: Console, error: Exception | str) -> None:
    """Print an error to stderr."""
    tell(console, f"error: {error}", "bold red")


def warn(console: Console, text: str) -> None:
    """Print a warning or notice to stderr."""
    tell(console, text, "yellow")


def with_flags(text: str) -> str:
    """A message of the library, with the settings that it names written as flags."""
    return _NAME.sub(lambda found: FLAGS[found[1]], text)


def tell(console: Console, text: str, style: str | None = None) -> None:
    """Print a line to stderr, without interpreting markup."""
    console.print(harmless(with_flags(text)), style=style, markup=False, highlight=False, soft_wrap=True)


class _ConsoleHandler(logging.Handler):
    """Prints log records to a console, above a bar that is moving, and as one line each."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else None
        line = self.format(record)
        try:
            tell(self._console, line, style)
        except (OSError, ValueError):  # stderr is full or closed: a log line is no reason to stop
            self.handleError(record)


def log_to(console: Console, verbose: bool) -> None:
    """Log warnings to stderr; with `verbose`, also retries and the like."""
    handler = _ConsoleHandler(console)
    handler.setFormatter(logging.Formatter("%(levelname)-8s %(message)s"))
    log = logging.getLogger("memagent")
    log.handlers = [handler]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
