"""What a terminal is told: answers on stdout, everything else on stderr, and no text that could harm it."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from memagent.errors import DocumentError, EngineError, MemAgentError, SettingsError
from memagent.settings import OWNERS

EXIT_CODES: dict[type[MemAgentError], int] = {SettingsError: 2, EngineError: 3, DocumentError: 4}
DEFECT = 1
USAGE = 2

# Controls but tab and line feed, and what turns the direction of writing: a terminal obeys both.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *OWNERS, "about", "absent", "allow_origin", "data", "documents", "examples", "follow_links", "host",
        "keys", "max_cost", "max_tokens", "out", "port", "questions", "ray", "resume", "to", "trace",
        "verbose", "essays", "squad", "hotpot", "2wiki", "musique", "longbench",
    )
} | {"folders": "--folder", "lengths": "--length", "tasks": "--task", "workflows": "--workflow"}  # fmt: skip
"""The flag of each setting, and of each argument that messages of the library name."""

_NAME = re.compile(rf"`({'|'.join(FLAGS)})`")
"""How the library writes such a name."""


class OutputError(Exception):
    """Standard output cannot be written; its cause says why."""


def exit_code(error: MemAgentError) -> int:
    """The exit code that stands for an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), USAGE)


def harmless(text: str) -> str:
    r"""The text with control characters written out (`\x1b`): a terminal shows and never obeys them."""
    return _COMMANDS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print a line to stdout: whole to a file or pipe, harmless to a terminal. Raises `OutputError`."""
    if sys.stdout is None:  # it was closed by whoever started us
        raise OutputError from OSError("it is closed")
    try:
        sys.stdout.write((harmless(text) if sys.stdout.isatty() else text) + "\n")
        sys.stdout.flush()
    except OSError as error:
        raise OutputError from error


def say_json(value: Any) -> None:
    """Print a value as a line of JSON: whole, and harmless by its escapes. Raises `OutputError`."""
    line = json.dumps(value, ensure_ascii=False)
    say(_COMMANDS.sub(lambda found: f"\\u{ord(found.group()):04x}", line))


def print_error(console: Console, error: Exception | str) -> None:
    """Say on stderr what went wrong."""
    tell(console, f"error: {error}", "bold red")


def warn(console: Console, text: str) -> None:
    """Say on stderr what the user should know though it is no error."""
    tell(console, text, "yellow")


def with_flags(text: str) -> str:
    """What the library says, with the flags of the settings that it names."""
    return _NAME.sub(lambda found: FLAGS[found[1]], text)


def tell(console: Console, text: str, style: str | None = None) -> None:
    """Say something on stderr; nothing in it is read as markup."""
    console.print(harmless(with_flags(text)), style=style, markup=False, highlight=False, soft_wrap=True)


class _HarmlessFormatter(logging.Formatter):
    """Log records may quote a model."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(with_flags(super().format(record)))


def log_to(console: Console, verbose: bool) -> None:
    """Show warnings on stderr, or with `verbose` retries and the like too."""
    handler = RichHandler(console=console, show_time=False, show_path=False, markup=False, highlighter=None)
    handler.setFormatter(_HarmlessFormatter("%(message)s"))
    log = logging.getLogger("memagent")
    log.handlers = [handler]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
