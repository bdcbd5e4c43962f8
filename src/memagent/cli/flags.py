"""Flags derived from the fields of the settings, and flags that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from pydantic.fields import FieldInfo

from memagent.cli.messages import flags, log_to_stderr
from memagent.documents.tokens import estimate_tokens, load_tokenizer
from memagent.errors import SettingsError
from memagent.plugins import plugins
from memagent.reading.workflows import workflows
from memagent.settings import load_settings, plain_type, settings_by_name

Function = TypeVar("Function", bound=Callable[..., Any])

_TITLES = {"engine": "How a model is reached", "read": "How a document is read"}
_NOTE = "Settings can also come from a TOML file (--config) or the environment (MEMAGENT_MODEL, ...)."
_ARGUMENT = re.compile(r"^arguments: ([a-z_]+)(?= is )", re.MULTILINE)
_METAVARS: dict[str | type, str] = {
    int: "N", float: "X", str: "TEXT",
    "templates": "FILE", "tokenizer": "FILE", "adapter": "PATH", "base_url": "URL", "api_key": "KEY",
    "model": "NAME",
}  # fmt: skip

_USUAL = frozenset({
    "as_json", "base_url", "cite", "count", "data", "dry_run", "each", "exact_names", "examples", "folders",
    "follow_up", "help_all", "host", "http", "keys", "lengths", "model", "notebooks", "out", "port",
    "question", "example", "quiet", "resume", "schema", "tasks", "text", "workflows",
})  # fmt: skip
"""The options that --help lists, of all commands with settings; --help-all lists the others too."""
_SHOWS_ALL = "memagent.shows_all"

PATH = click.Path(path_type=Path)


def together(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options or arguments as one decorator, in the order in which the help lists them."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def complete_files(_context: object, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete file names, for what is not always a path."""
    return [CompletionItem(incomplete, type="file")]


tokenizer_flag = click.option(
    "--tokenizer", "count_tokens", metavar="FILE", shell_complete=complete_files,
    callback=lambda _context, _option, path: load_tokenizer(path) if path else estimate_tokens,
    help="a tokenizer.json; without it tokens are estimated",
)  # fmt: skip
"""Adds --tokenizer to a command that asks no model; its function receives `count_tokens`."""


class Command(click.Command):
    """A command with settings: --help lists the usual options, --help-all all, under headings."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, the command's own first."""
        shows_all, left_out = context.meta.get(_SHOWS_ALL, False), 0
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is None or not isinstance(parameter, click.Option):
                continue
            part, _ = settings_by_name().get(parameter.name or "", ("", None))
            title = _TITLES.get(part, "Options") if shows_all else "Options"
            if shows_all or parameter.name in _USUAL or "--help" in parameter.opts:
                sections.setdefault(title, []).append(record)
            else:
                left_out += 1
        for title, records in sorted(sections.items(), key=lambda section: section[0] != "Options"):
            with formatter.section(title):
                formatter.write_dl(records)
        formatter.write_paragraph()
        if left_out:
            formatter.write_text(f"{context.command_path} --help-all lists {left_out} more options.")
        formatter.write_text(_NOTE)


def _show_all(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_SHOWS_ALL] = True
        click.echo(context.get_help())
        context.exit()


def with_settings(
    only: Collection[str] | None = None, leave_out: Collection[str] = ()
) -> Callable[[Function], Function]:
    """Add the flags of the settings to a command; its function receives `settings`.

    `only` limits those of how a document is read to those it names; `leave_out` names flags to omit.
    """
    chosen = {
        name: item
        for name, (part, item) in settings_by_name().items()
        if (only is None or name in only or part == "engine") and name not in leave_out
    }

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(config_file: Path | None, **values: Any) -> Any:
            given = {name: values.pop(name) for name in chosen}
            try:
                settings = load_settings(given, config_file)
            except SettingsError as error:
                raise SettingsError(_ARGUMENT.sub(lambda match: flags()[match[1]], str(error))) from error
            return function(settings=settings, **values)

        shared = (
            click.option("--config", "config_file", type=PATH, metavar="FILE",
                         help="a TOML file with settings"),
            *(_option(name, item) for name, item in chosen.items()),
            click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
                         help="Show all options and exit."),
        )  # fmt: skip
        return together(*shared)(command)  # type: ignore[no-any-return]

    return decorate


def _option(name: str, item: FieldInfo) -> Callable[[Any], Any]:
    flag, kind, text = flags()[name], plain_type(item.annotation), item.description or ""
    if item.default not in (None, False, ""):
        number = f"{item.default:g}" if isinstance(item.default, float) else item.default
        text += f" ({'on' if item.default is True else number})"
    named = {"workflow": list(workflows()), "engine": ["auto", *plugins("engines")]}
    choices = get_args(kind) if get_origin(kind) is Literal else named.get(name, ())
    options: dict[str, Any] = {}
    if kind is bool:
        flag = f"{flag}/--no{flag[1:]}"
    elif choices:
        options = {"type": click.Choice(list(choices)), "metavar": "NAME"}
        text += f": {', '.join(choices)}"
    else:
        kind = kind if kind in _METAVARS else str  # the settings check it
        options = {"type": kind, "metavar": _METAVARS.get(name, _METAVARS[kind])}
        if options["metavar"] in ("FILE", "PATH"):
            options["shell_complete"] = complete_files
    return click.option(flag, default=None, help=text, **options)


with_verbose = click.option(
    "--verbose", is_flag=True, expose_value=False, help="report retries",
    callback=lambda _context, _option, verbose: log_to_stderr(verbose=True) if verbose else None,
)  # fmt: skip


def quiet_and_verbose(function: Function) -> Function:
    """Add --quiet, which the command's function receives, and --verbose, which is handled here."""
    return click.option("--quiet", is_flag=True, help="no progress on stderr")(with_verbose(function))
