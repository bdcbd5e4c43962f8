"""`memagent mcp`: tools for assistants that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from memagent.cli.finding import with_found_model
from memagent.cli.flags import PATH, Command, listening, quiet_and_verbose, with_settings
from memagent.cli.messages import tell
from memagent.cli.progress import describe_opening
from memagent.engines import choose, open_engine
from memagent.errors import SettingsError, extra_hint
from memagent.settings import Settings, user_cache_path

_MAX_AT_ONCE = 32


@click.command(cls=Command, short_help="Give an assistant tools to read long documents.")
@click.option("--folder", "folders", type=PATH, multiple=True, metavar="FOLDER",
              help="a folder whose files may be read; may be repeated")  # fmt: skip
@click.option("--http", is_flag=True, help="serve HTTP at /mcp instead of standard input")
@listening(8322)
@click.option("--data", type=PATH, metavar="FOLDER", help="where reads are kept (in the cache)")
@click.option("--notebooks", type=PATH, metavar="FOLDER", help="where notebooks are kept (in the user's data "
              "folder)")  # fmt: skip
@quiet_and_verbose
@with_settings("engine", "read", leave_out=("cite",))
@click.pass_obj
def command(
    console: Console,
    folders: tuple[Path, ...],
    http: bool,
    host: str,
    port: int,
    keys: Path | None,
    data: Path | None,
    notebooks: Path | None,
    quiet: bool,
    settings: Settings,
) -> int:
    """Give an assistant tools to read long documents, and to keep notebooks.

    It speaks the Model Context Protocol over standard input and output, as assistants expect, or with --http
    over streamable HTTP. Only files within the folders that you name can be read.
    """
    for package in ("mcp", "fastapi", "uvicorn", "prometheus_client"):
        if find_spec(package) is None:
            raise SettingsError(f"this needs {package}: {extra_hint('mcp')}")
    from memagent.server.folders import resolve_folders
    from memagent.server.limits import read_keys
    from memagent.server.listening import listen, url_of
    from memagent.server.mcp import Places, serve

    source = click.get_current_context().get_parameter_source
    given = [name for name in ("host", "port", "keys") if source(name) is not ParameterSource.DEFAULT]
    if given and not http:
        raise SettingsError(f"--{given[0]} is for --http: add it, or drop --{given[0]}")
    places = Places(resolve_folders(folders), _free_folders(data), notebooks)
    known = read_keys(keys)
    with ExitStack() as closing_all:
        listener = closing_all.enter_context(closing(listen(host, port, known))) if http else None
        settings = with_found_model(settings, console, quiet)

        async def run() -> None:
            kind = choose(settings.engine).engine
            if kind != "openai" and not quiet:
                tell(console, describe_opening(kind))
            async with open_engine(settings.engine) as engine:
                if listener and not quiet:
                    tell(console, f"{engine.model.name} at {url_of(listener)}/mcp (Ctrl-C stops it)")
                logging.getLogger("memagent").propagate = False  # the SDK also shows what reaches the root
                if listener is None:
                    _end_at_once()
                await serve(engine, settings.read, places, listener, known)

        asyncio.run(run())
    return 0


def _end_at_once() -> None:
    """Make a signal end the process: the thread that waits for standard input cannot be woken.

    Reads and notebooks are stored so that they survive any exit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 128 + number)


def _free_folders(data: Path | None) -> list[Path]:
    """Where reads may be kept: each assistant starts its own server, which takes the first free folder."""
    if data:
        return [data]
    return [user_cache_path() / "mcp" / str(number) for number in range(_MAX_AT_ONCE)]
