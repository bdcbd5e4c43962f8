"""Find the model if the settings leave it open: on a server on this machine, or on the hub."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rich.console import Console

from memagent.cli.messages import tell, warn
from memagent.engines.discovery import Search, choose_server, look_around, settings_for, should_search
from memagent.engines.llamacpp import hub
from memagent.settings import Settings


def with_found_model(settings: Settings, console: Console, quiet: bool = False) -> Settings:
    """The settings with the model that was found, which is named on stderr.

    Raises `SettingsError` or `EngineError` if a model on the hub cannot be fetched.
    """
    engine = settings.engine
    if engine.model and engine.model.startswith(hub.PREFIX) and not engine.base_url:
        path = hub.fetch(engine.model, bars=not quiet)
        tell(console, f"using {path.name} of {engine.model}")
        return replace(settings, engine=engine.changed(model=str(path)))
    if not should_search(engine):
        return settings
    search = asyncio.run(look_around())
    warn_of_silent(search, console)
    if (found := choose_server(search, engine.model)) is None:
        if engine.model is None:
            tell(
                console,
                "no model server found on this machine: using the embedded model, which is often wrong",
            )
        for server in search.servers:
            tell(console, f"{server.place.name} at {server.place.base_url} lists {', '.join(server.models)}")
        return settings
    server, model = found
    others = "" if len(server.models) == 1 or engine.model else f" (one of {len(server.models)})"
    tell(
        console,
        f"using {model}{others} of {server.place.name} at {server.place.base_url}; "
        "--model selects another, --no-discover turns this off",
    )
    return replace(settings, engine=asyncio.run(settings_for(server, model, engine)))


def warn_of_silent(search: Search, console: Console) -> None:
    """Warn where something listens but did not answer in time."""
    for place in search.silent:
        warn(console, f"something listens at {place.base_url} but did not answer: not used ({place.name}?)")
