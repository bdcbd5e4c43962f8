"""`memagent serve`: an OpenAI-compatible server without a context limit."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from memagent.cli.finding import with_found_model
from memagent.cli.flags import PATH, Command, quiet_and_verbose, with_settings
from memagent.cli.messages import tell
from memagent.engines import open_engine
from memagent.errors import SettingsError, extra_hint
from memagent.settings import Settings, user_cache_path

if TYPE_CHECKING:
    from memagent.server.limits import Keys, Limits

_MIB = 2**20


@click.command(cls=Command, short_help="Serve OpenAI's API over long documents.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="the address to listen on"
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8321, show_default=True, metavar="N",
              help="the port to listen on; 0 picks a free one")  # fmt: skip
@click.option("--keys", type=PATH, metavar="FILE", help="a file of API keys, one per line; needed for any "
              "address but this machine's own")  # fmt: skip
@click.option("--data", type=PATH, metavar="FOLDER", help="where files and reads are kept (in the cache)")
@click.option("--body-mib", type=click.IntRange(1), default=16, show_default=True, metavar="N",
              help="the largest request, in MiB")  # fmt: skip
@click.option("--upload-mib", type=click.IntRange(1), default=512, show_default=True, metavar="N",
              help="the largest file, in MiB")  # fmt: skip
@click.option("--stored-mib", type=click.IntRange(1), default=16_384, show_default=True, metavar="N",
              help="the most disk space per key, in MiB")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=1000, show_default=True, metavar="N",
              help="the most requests in flight per key")  # fmt: skip
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
    from memagent.server.limits import Keys, Limits, checked_origins, read_keys
    from memagent.server.listening import listen

    settings = with_found_model(settings, console, quiet)
    known = read_keys(keys) if keys else Keys()
    limits = Limits(
        body_bytes=body_mib * _MIB,
        upload_bytes=upload_mib * _MIB,
        stored_bytes=stored_mib * _MIB,
        requests=requests,
        origins=checked_origins(origins, known),
    )
    folder = data or user_cache_path() / "server"
    with closing(listen(host, port, known)) as listener:
        asyncio.run(_serve(settings, folder, known, limits, listener, None if quiet else console))
    return 0


async def _serve(
    settings: Settings,
    folder: Path,
    keys: Keys,
    limits: Limits,
    listener: socket.socket,
    console: Console | None,
) -> None:
    from memagent.server.app import create_app
    from memagent.server.listening import server_of
    from memagent.server.store import Store

    with Store(folder) as store:
        async with open_engine(settings.engine) as engine:
            app = await asyncio.to_thread(create_app, engine, settings.read, store, keys, limits)
            host, port = listener.getsockname()[:2]
            if console:
                at = f"[{host}]" if ":" in host else host
                tell(console, f"serving {engine.model.name} at http://{at}:{port}/v1 (Ctrl-C stops it)")
            await server_of(app, limits).serve(sockets=[listener])
