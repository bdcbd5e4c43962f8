"""`memagent doctor`: what is installed, which model would be used and why, and what is wrong."""

from __future__ import annotations

import asyncio
import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

import click

from memagent import __version__
from memagent.cli.flags import Command, with_settings
from memagent.cli.messages import say, with_flags
from memagent.documents.tokens import estimate_tokens
from memagent.engines import choose, open_engine
from memagent.engines.adapters import Adapter, find_adapter, find_trained
from memagent.engines.discovery import choose_server, look_around, should_search
from memagent.engines.llamacpp import catalogue, hub
from memagent.engines.llamacpp.engine import find_file, usable_window
from memagent.engines.openai import OpenAIEngine
from memagent.errors import MemAgentError, SettingsError, extra_hint, reason, without_secrets
from memagent.reading.workflows import choose_workflow
from memagent.settings import DEFAULT_WINDOW_TOKENS, Settings, user_cache_path, user_config_path
from memagent.types import ESTIMATE, Model

_PACKAGES = {
    "the base": ("httpx2", "xllamacpp", "gguf", "pydantic"),
    "[formats]": ("mammoth", "openpyxl", "python-pptx", "striprtf"),
    "[tokenizers]": ("tokenizers",),
    "[eval]": ("ijson", "wonderwords"),
    "[hub]": ("huggingface_hub",),
    "[serve]": ("fastapi", "prometheus-client", "python-multipart", "uvicorn"),
    "[mcp]": ("mcp",),
    "[train]": ("torch", "transformers", "accelerate", "peft"),
    "[report]": ("matplotlib",),
    "[ray]": ("ray",),
    "[verl]": ("verl",),
}


@click.command(cls=Command, short_help="Say what is installed, and what is wrong.")
@with_settings("engine", "read")
def command(settings: Settings) -> int:
    """Say what is installed, which model a read would use and why, and what is wrong.

    It asks an endpoint for its models, but loads no model. The exit code is 2 if `ask` could not start.
    """
    for line in _list_installed():
        say(line)
    try:
        _check_cache(user_cache_path())
        fetched = ", ".join(it.name for it in catalogue.list_cached())
        say(f"fetched models: {fetched or 'none'}")
        for line in asyncio.run(_findings(settings)):
            say(with_flags(line))
    except MemAgentError as error:
        say(f"wrong: {with_flags(str(error))}")
        return 2
    say("all is well")
    return 0


def _list_installed() -> list[str]:
    config = user_config_path()
    return [
        f"memagent {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}",
        *(
            f"{group}: " + ", ".join(f"{it} {_version(it)}" for it in names)
            for group, names in _PACKAGES.items()
        ),
        f"settings file: {config}{'' if config.is_file() else ' (none)'}",
        f"cache: {user_cache_path()}",
    ]


def _check_cache(folder: Path) -> None:
    """Raise `SettingsError` if journals cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(
            f"the cache {folder} cannot be written ({reason(error)}): "
            "set XDG_CACHE_HOME to a folder that can be"
        ) from error


async def _findings(settings: Settings) -> list[str]:
    """What a read would use. Raises `MemAgentError` if it could not start."""
    given = settings
    servers, settings = await _with_servers(settings)
    choice = choose(settings.engine)
    adapter = find_adapter(settings.engine, choice.engine)
    why = (
        choice.why if settings.engine == given.engine else "a server with the model was found on this machine"
    )
    lines = [f"engine: {choice.engine}, because {why}"]
    if choice.engine == "openai":
        async with open_engine(settings.engine) as engine:
            model = engine.model
            served = await engine.list_models() if isinstance(engine, OpenAIEngine) else {}
        # Some servers accept any name, or short ones, so an unlisted name is not an error.
        unlisted = f"; it lists {', '.join(sorted(served))}" if served and model.name not in served else ""
        place = without_secrets(settings.engine.base_url or "the OpenAI default")
        lines += [f"model: {model.name} at {place}{unlisted}"]
    else:
        model = _local_model(choice.engine, settings, adapter)
        lines += [f"model: {model.name}", *([f"adapter: {adapter.path}"] if adapter else [])]
    name, workflow = choose_workflow(settings.read, model.trained)
    budgets = workflow.budgets(settings.read, model)
    window = (
        "unknown, the endpoint does not say"
        if model.window_tokens is None
        else f"{model.window_tokens} tokens"
    )
    counted = "estimated" if model.tokenizer == ESTIMATE else "counted by its own tokenizer"
    told = ", ".join(f"{part.removesuffix('_tokens')} {tokens}" for part, tokens in budgets.in_force.items())
    return [
        *servers,
        *lines,
        f"window: {window}; tokens are {counted}",
        f"workflow: {name}",
        f"budgets in tokens: {told}",
    ]


async def _with_servers(settings: Settings) -> tuple[list[str], Settings]:
    """The model servers on this machine, and the settings with the one that `ask` would use."""
    engine = settings.engine
    if not engine.discover:
        return [], settings
    search = await look_around()
    told = [f"{it.place.name} at {it.place.base_url} ({', '.join(it.models)})" for it in search.servers]
    told += [f"{it.base_url} did not answer in time" for it in search.silent]
    lines = [f"servers on this machine: {'; '.join(told) or 'none found'}"]
    if should_search(engine) and (found := choose_server(search, engine.model)):
        server, model = found
        window = engine.window_tokens or server.windows.get(model)
        url = server.place.base_url
        engine = engine.changed(base_url=url, model=model, api_key=None, window_tokens=window)
    return lines, replace(settings, engine=engine)


def _local_model(engine: str, settings: Settings, adapter: Adapter | None) -> Model:
    """The model that would be loaded, with estimated tokens. Raises `SettingsError` if it cannot be."""
    asked = settings.engine
    if engine == "transformers" and any(find_spec(name) is None for name in ("torch", "transformers")):
        raise SettingsError(f"{asked.model} needs torch and transformers: {extra_hint('train')}")
    if engine != "llamacpp":
        name, window = asked.model or engine, asked.window_tokens or DEFAULT_WINDOW_TOKENS
    else:
        if asked.model and asked.model.startswith(hub.PREFIX) and hub.find_cached(asked.model) is None:
            raise SettingsError(f"{asked.model} is not in the cache yet: ask fetches it")
        path = find_file(asked.model)
        name, window = str(path), usable_window(path, asked.window_tokens)
    return Model(name, estimate_tokens, name, window, trained=find_trained(name, adapter))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
