"""Terminal output: answers on stdout, the rest on stderr, with control characters made harmless."""

from __future__ import annotations

import difflib
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from rich import get_console
from rich.console import Console
from rich.text import Text

from memagent.errors import DocumentError, EngineError, MemAgentError, SettingsError
from memagent.reading.sources import NEAREST, Source, Statement
from memagent.settings import settings_by_name
from memagent.types import Spent

EXIT_CODES: dict[type[MemAgentError], int] = {SettingsError: 2, EngineError: 3, DocumentError: 4}
DEFECT = 1
USAGE = 2
MAX_NAMED = 3  # of many files

# Control characters except tab and line feed, and bidirectional controls: a terminal obeys both.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@cache
def flags() -> dict[str, str]:
    """The flag of each setting, and of each argument that the library's messages name.

    It loads the workflows, as their settings have flags, too, and the tasks.
    """
    from memagent.tasks.corpora import HOMES

    others = (
        "about", "absent", "allow_origin", "data", "documents", "examples", "follow_links", "host", "keys",
        "max_cost", "max_tokens", "out", "port", "questions", "ray", "resume", "to", "trace", "verbose",
    )  # fmt: skip
    named = {name: f"--{name.replace('_', '-')}" for name in (*settings_by_name(), *HOMES, *others)}
    return named | {
        "folders": "--folder", "length_tokens": "--length", "lengths": "--length", "tasks": "--task",
        "workflows": "--workflow",
    }  # fmt: skip


_NAME = re.compile(r"`(\w+)`")
"""How the library's messages write such a name."""


class OutputError(Exception):
    """Writing to standard output failed; the `__cause__` says why."""


def exit_code(error: MemAgentError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), USAGE)


def harmless(text: str) -> str:
    r"""The text with control characters escaped (`\x1b`): a terminal shows them but never obeys them."""
    return _COMMANDS.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print a line to stdout: as it is to a file or pipe, escaped to a terminal. Raises `OutputError`."""
    print_text(text + "\n")


def print_text(text: str) -> None:
    """Print text as `say` does, without a line end. Raises `OutputError`."""
    _write(harmless(text) if sys.stdout and sys.stdout.isatty() else text)


def say_styled(text: str, style: str = "") -> None:
    """Print a line as `say` does, in colour on a terminal."""
    out = Console(soft_wrap=True, highlight=False)
    if not out.is_terminal:
        say(text)
        return
    with out.capture() as captured:
        out.print(Text(harmless(text), style=style))
    _write(captured.get())


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
    line = json.dumps(value, ensure_ascii=False, default=str)  # paths
    say(_COMMANDS.sub(lambda match: f"\\u{ord(match.group()):04x}", line))


def say_changes(before: str, after: str, indent: str = "") -> bool:
    """Print the removed (-) and added (+) sentences in order; return whether there are any."""
    old, new = (
        [" ".join(part.split()) for part in _SENTENCE_END.split(text) if part.strip()]
        for text in (before, after)
    )
    changed = False
    for tag, i, j, k, m in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag != "equal":
            changed = True
            for sentence in old[i:j]:
                say_styled(f"{indent}- {sentence}", "red")
            for sentence in new[k:m]:
                say_styled(f"{indent}+ {sentence}", "green")
    return changed


def citations(
    statements: Iterable[Statement],
    unsupported: str = "the document does not say so, and no passage comes near it",
) -> Iterator[str]:
    """Each statement of an answer, with the place in the document that says it, or its nearest passages."""
    for statement in statements:
        yield f"\n- {statement.text}"
        if statement.source:
            yield f"  {_describe_source(statement.source)}"
        elif not statement.nearest:
            yield f"  {unsupported}"
        for passage in statement.nearest:
            yield f"  {NEAREST}: {_describe_source(passage)}"


def _describe_source(source: Source) -> str:
    page = "" if source.page is None else f", page {source.page}"
    return f"{source.file}{page}, characters {source.start:,} to {source.end:,}: {source.excerpt!r}"


def describe(spent: Spent) -> str:
    """What calls have used: "1,200 tokens in, 80 out, cost 0.003", the cost only with prices."""
    price = "" if spent.cost is None else f", cost {spent.cost:.4g}"
    return f"{spent.prompt_tokens:,} tokens in, {spent.completion_tokens:,} out{price}"


def name_some(names: Sequence[str]) -> str:
    """The names; of many, the first and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def with_flags(text: str) -> str:
    """A message of the library, with the settings that it names written as flags."""
    return _NAME.sub(lambda match: flags().get(match[1], match[0]), text)


def tell(text: str, style: str | None = None, quiet: bool = False) -> None:
    """Print a line to stderr, unless `quiet`, without interpreting markup and above whatever moves there."""
    if not quiet:
        line = harmless(with_flags(text))
        get_console().print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning or notice to stderr."""
    tell(text, "yellow")


def print_error(error: Exception | str) -> None:
    """Print an error to stderr."""
    tell(f"error: {error}", "bold red")


def warn_left_out(files: Iterable[str]) -> None:
    """Warn of files that are not read."""
    for file in files:
        warn(f"left out: {file}")


def warn_undecoded(replaced: Mapping[str, int]) -> None:
    """Warn of characters that could not be decoded, given how many each file has."""
    for name, count in replaced.items():
        if count:
            warn(f"{name}: {count} characters could not be decoded and were read as U+FFFD")


class _ConsoleHandler(logging.Handler):
    """Prints log records to stderr, as one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tell(self.format(record), "yellow" if record.levelno >= logging.WARNING else None)
        except (OSError, ValueError):  # stderr is full or closed: a log line is no reason to stop
            self.handleError(record)


def log_to_stderr(verbose: bool) -> None:
    """Log warnings to stderr; with `verbose`, also retries and the like."""
    handler = _ConsoleHandler()
    handler.setFormatter(logging.Formatter("%(levelname)-8s %(message)s"))
    log = logging.getLogger("memagent")
    log.handlers = [handler]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
