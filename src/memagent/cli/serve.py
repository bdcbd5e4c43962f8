"""`memagent serve` and `memagent mcp`: an OpenAI-compatible server, and tools for assistants."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from memagent.cli.flags import PATH, Command, quiet_and_verbose, together, with_settings
from memagent.cli.messages import tell
from memagent.cli.models import with_found_model
from memagent.cli.progress import describe_opening
from memagent.engines import choose, open_engine
from memagent.errors import SettingsError, extra_hint
from memagent.server.limits import Limits, check_origins, read_keys
from memagent.settings import Settings, user_cache_path
from memagent.types import Engine

_MIB = 2**20
_USUAL = Limits()
_MAX_AT_ONCE = 32


def _listening(port: int) -> Callable[[Any], Any]:
    """Add --host, --port and --keys to a command that listens, by default on `port`."""
    return together(
        click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
                     help="the address to listen on"),
        click.option("--port", type=click.IntRange(0, 65_535), default=port, show_default=True, metavar="N",
                     help="the port to listen on; 0 picks a free one"),
        click.option("--keys", type=PATH, metavar="FILE", help="a file of API keys, one per line; needed for "
                     "any address but this machine's own"),
    )  # fmt: skip


def _limit(flag: str, name: str, help: str, unit: int = 1) -> Callable[[Any], Any]:
    """Add the flag of one of the `Limits`, counted in `unit`s."""
    return click.option(
        flag, name, type=click.IntRange(1), default=getattr(_USUAL, name) // unit, show_default=True,
        metavar="N", callback=lambda _context, _parameter, count: count * unit, help=help,
    )  # fmt: skip


@click.command(cls=Command, short_help="Serve OpenAI's API over long documents.")
@_listening(8321)
@click.option("--data", type=PATH, metavar="FOLDER", help="where files and reads are kept (in the cache)")
@_limit("--body-mib", "body_bytes", "the largest request, in MiB", _MIB)
@_limit("--upload-mib", "upload_bytes", "the largest file, in MiB", _MIB)
@_limit("--stored-mib", "stored_bytes", "the most disk space per key, in MiB", _MIB)
@_limit("--requests", "requests", "the most requests in flight per key")
@_limit("--context-tokens", "context_tokens", "the window that clients are told, in tokens")
@click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN",
              help="let web pages from this origin, such as http://localhost:3000, use the server; may be "
              "repeated")  # fmt: skip
@quiet_and_verbose
@with_settings()
def command(
    host: str,
    port: int,
    keys: Path | None,
    data: Path | None,
    origins: tuple[str, ...],
    quiet: bool,
    settings: Settings,
    **limits: int,
) -> None:
    """Serve any program that uses OpenAI's API, with documents of any length.

    What fits the model's window goes straight to the model; what does not is read in chunks.
    """
    _require("serving", "serve", "fastapi", "uvicorn", "prometheus_client", "python_multipart")
    from memagent.server.app import create_app, listen, make_server, url_of
    from memagent.server.store import Store

    settings = with_found_model(settings, quiet)
    known = read_keys(keys)
    limited = Limits(**limits, origins=check_origins(origins, known))
    folder = data or user_cache_path() / "server"
    with closing(listen(host, port, known)) as listener, Store(folder) as store:

        async def run() -> None:
            async with _open_model(settings, quiet) as engine:
                app = await asyncio.to_thread(create_app, engine, settings.read, store, known, limited)
                url = url_of(listener)
                where = f"{url}/v1, its page at {url}/"
                tell(f"serving {engine.model.name} at {where} (Ctrl-C stops it)", quiet=quiet)
                await make_server(app, limited).serve(sockets=[listener])

        asyncio.run(run())


@click.command(cls=Command, short_help="Give an assistant tools to read long documents.")
@click.option("--folder", "folders", type=PATH, multiple=True, metavar="FOLDER",
              help="a folder whose files may be read; may be repeated")  # fmt: skip
@click.option("--http", is_flag=True, help="serve HTTP at /mcp instead of standard input")
@_listening(8322)
@click.option("--data", type=PATH, metavar="FOLDER", help="where reads are kept (in the cache)")
@click.option("--notebooks", type=PATH, metavar="FOLDER", help="where notebooks are kept (in the user's data "
              "folder)")  # fmt: skip
@quiet_and_verbose
@with_settings(leave_out=("cite",))
def mcp(
    folders: tuple[Path, ...],
    http: bool,
    host: str,
    port: int,
    keys: Path | None,
    data: Path | None,
    notebooks: Path | None,
    quiet: bool,
    settings: Settings,
) -> None:
    """Give an assistant tools to read long documents, and to keep notebooks.

    It speaks the Model Context Protocol over standard input and output, as assistants expect, or with --http
    over streamable HTTP. Only files within the folders that you name can be read.
    """
    _require("this", "mcp", "mcp", "fastapi", "uvicorn", "prometheus_client")
    from memagent.server.app import listen, url_of
    from memagent.server.documents import Folders
    from memagent.server.mcp import Places, serve

    source = click.get_current_context().get_parameter_source
    given = [name for name in ("host", "port", "keys") if source(name) is not ParameterSource.DEFAULT]
    if given and not http:
        raise SettingsError(f"--{given[0]} is for --http: add it, or drop --{given[0]}")
    # Each assistant starts its own server, which takes the first free folder.
    stores = [data] if data else [user_cache_path() / "mcp" / str(number) for number in range(_MAX_AT_ONCE)]
    places = Places(Folders(folders), stores, notebooks)
    known = read_keys(keys)
    with closing(listen(host, port, known)) if http else nullcontext() as listener:
        settings = with_found_model(settings, quiet)

        async def run() -> None:
            async with _open_model(settings, quiet) as engine:
                if listener:
                    tell(f"{engine.model.name} at {url_of(listener)}/mcp (Ctrl-C stops it)", quiet=quiet)
                logging.getLogger("memagent").propagate = False  # the SDK also shows what reaches the root
                if listener is None:
                    _end_at_once()
                await serve(engine, settings.read, places, listener, known)

        asyncio.run(run())


def _require(what: str, extra: str, *packages: str) -> None:
    """Raise `SettingsError` if a package that `what` needs is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise SettingsError(f"{what} needs {package}: {extra_hint(extra)}")


@asynccontextmanager
async def _open_model(settings: Settings, quiet: bool) -> AsyncIterator[Engine]:
    """Open the engine; loading a model, which may take a minute, is announced."""
    if (choice := choose(settings.engine)).embedded:
        tell(describe_opening(choice), quiet=quiet)
    async with open_engine(settings.engine) as engine:
        yield engine


def _end_at_once() -> None:
    """Make a signal end the process: the thread that waits for standard input cannot be woken.

    Reads and notebooks are stored so that they survive any exit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 128 + number)
