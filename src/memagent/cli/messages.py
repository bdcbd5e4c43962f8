"""What is said on stderr, and the exit code that goes with an error."""

from __future__ import annotations

from rich.console import Console

from memagent.errors import DocumentError, EngineError, MemAgentError, SettingsError

EXIT_CODES: dict[type[MemAgentError], int] = {SettingsError: 2, EngineError: 3, DocumentError: 4}
DEFECT = 1
INTERRUPTED = 130


def exit_code(error: MemAgentError) -> int:
    """The exit code that stands for an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 2)


def print_error(console: Console, error: MemAgentError) -> None:
    """Say what went wrong; nothing in it is read as markup."""
    _say(console, f"error: {error}", "bold red")


def warn(console: Console, text: str) -> None:
    """Say what the user should know though it is no error."""
    _say(console, text, "yellow")


def _say(console: Console, text: str, style: str) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
