"""Find the model if the settings leave it open: on a server on this machine, in the cache, or on the hub."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from memagent.cli.messages import tell, warn
from memagent.engines.discovery import Search, choose_server, look_around, settings_for, should_search
from memagent.engines.llamacpp import catalogue, hub
from memagent.settings import EngineSettings, Settings


def with_found_model(settings: Settings, console: Console, quiet: bool = False) -> Settings:
    """The settings with the model that was found, which is named on stderr.

    Raises `SettingsError` or `EngineError` if a model cannot be fetched, or there is none.
    """
    engine = settings.engine
    if engine.model and engine.model.startswith(hub.PREFIX) and not engine.base_url:
        path = hub.fetch(engine.model, bars=not quiet)
        tell(console, f"using {path.name} of {engine.model}")
        return replace(settings, engine=engine.changed(model=str(path)))
    searched = should_search(engine)
    if searched:
        search = asyncio.run(look_around())
        warn_of_silent(search, console)
        if found := choose_server(search, engine.model):
            server, model = found
            others = "" if len(server.models) == 1 or engine.model else f" (one of {len(server.models)})"
            tell(
                console,
                f"using {model}{others} of {server.place.name} at {server.place.base_url}; "
                "--model selects another, --no-discover turns this off",
            )
            return replace(settings, engine=asyncio.run(settings_for(server, model, engine)))
        for server in search.servers:
            tell(console, f"{server.place.name} at {server.place.base_url} lists {', '.join(server.models)}")
    use_default(engine, console, quiet, searched)
    return settings


def use_default(engine: EngineSettings, console: Console, quiet: bool, searched: bool = False) -> None:
    """If the settings leave the model open, name the default on stderr, and offer to fetch it if need be.

    Raises `SettingsError` if it is not there afterwards.
    """
    if engine.model or engine.base_url or engine.engine not in ("auto", "llamacpp"):
        return
    default = catalogue.MODELS[catalogue.DEFAULT]
    why = "no model is set" + (", and no server was found on this machine" if searched else "")
    asks = not quiet and console.is_terminal and sys.stdin is not None and sys.stdin.isatty()
    if asks and catalogue.find_cached(catalogue.DEFAULT) is None:
        size = f"{default.size_bytes / 1e6:.0f} MB"
        question = f"{why.capitalize()}. Fetch {default.title}? {size}, once"
        if click.confirm(question, default=True, err=True):
            fetch_with_bar(catalogue.DEFAULT, console, quiet)
    catalogue.find_default()
    tell(console, f"{why}: using {default.title}, which is small")


def fetch_with_bar(name: str, console: Console, quiet: bool) -> Path:
    """Put a model of the catalogue into the cache, with a bar on a terminal. Raises as `catalogue.fetch`."""
    model = catalogue.find(name)
    tell(console, f"{name}: {model.title}, {model.size_bytes / 2**30:.1f} GiB, licence {model.licence}")
    with Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=console, disable=quiet or not console.is_terminal, transient=True,
    ) as bars:  # fmt: skip
        bar = bars.add_task("", total=model.size_bytes)
        return catalogue.fetch(name, lambda size_bytes: bars.advance(bar, size_bytes))


def warn_of_silent(search: Search, console: Console) -> None:
    """Warn where something listens but did not answer in time."""
    for place in search.silent:
        warn(console, f"something listens at {place.base_url} but did not answer: not used ({place.name}?)")
