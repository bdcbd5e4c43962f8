"""`memagent serve`: an OpenAI-compatible server without a context limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from memagent.cli.finding import with_found_model
from memagent.cli.flags import PATH, Command, listening, quiet_and_verbose, with_settings
from memagent.cli.messages import tell
from memagent.cli.progress import describe_opening
from memagent.engines import choose, open_engine
from memagent.errors import SettingsError, extra_hint
from memagent.server.limits import Limits, check_origins, read_keys
from memagent.settings import Settings, user_cache_path

_MIB = 2**20
_USUAL = Limits()


def _limit(flag: str, usual: int, help: str) -> Callable[[Any], Any]:
    return click.option(
        flag, type=click.IntRange(1), default=usual, show_default=True, metavar="N", help=help
    )


@click.command(cls=Command, short_help="Serve OpenAI's API over long documents.")
@listening(8321)
@click.option("--data", type=PATH, metavar="FOLDER", help="where files and reads are kept (in the cache)")
@_limit("--body-mib", _USUAL.body_bytes // _MIB, "the largest request, in MiB")
@_limit("--upload-mib", _USUAL.upload_bytes // _MIB, "the largest file, in MiB")
@_limit("--stored-mib", _USUAL.stored_bytes // _MIB, "the most disk space per key, in MiB")
@_limit("--requests", _USUAL.requests, "the most requests in flight per key")
@_limit("--context-tokens", _USUAL.context_tokens, "the window that clients are told, in tokens")
@click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN",
              help="let web pages from this origin, such as http://localhost:3000, use the server; may be "
              "repeated")  # fmt: skip
@quiet_and_verbose
@with_settings("engine", "read")
@click.pass_obj
def command(
    console: Console,
    host: str,
    port: int,
    keys: Path | None,
    data: Path | None,
    body_mib: int,
    upload_mib: int,
    stored_mib: int,
    requests: int,
    context_tokens: int,
    origins: tuple[str, ...],
    quiet: bool,
    settings: Settings,
) -> int:
    """Serve any program that uses OpenAI's API, with documents of any length.

    What fits the model's window goes straight to the model; what does not is read in chunks.
    """
    for package in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        if find_spec(package) is None:
            raise SettingsError(f"serving needs {package}: {extra_hint('serve')}")
    from memagent.server.app import create_app
    from memagent.server.listening import listen, make_server, url_of
    from memagent.server.store import Store

    settings = with_found_model(settings, console, quiet)
    known = read_keys(keys)
    limits = Limits(
        body_bytes=body_mib * _MIB,
        upload_bytes=upload_mib * _MIB,
        stored_bytes=stored_mib * _MIB,
        requests=requests,
        context_tokens=context_tokens,
        origins=check_origins(origins, known),
    )
    folder = data or user_cache_path() / "server"
    with closing(listen(host, port, known)) as listener, Store(folder) as store:

        async def run() -> None:
            kind = choose(settings.engine).engine
            if kind != "openai" and not quiet:
                tell(console, describe_opening(kind))
            async with open_engine(settings.engine) as engine:
                app = await asyncio.to_thread(create_app, engine, settings.read, store, known, limits)
                if not quiet:
                    url = url_of(listener)
                    told = f"serving {engine.model.name} at {url}/v1, its page at {url}/ (Ctrl-C stops it)"
                    tell(console, told)
                await make_server(app, limits).serve(sockets=[listener])

        asyncio.run(run())
    return 0
