"""`memagent doctor`: what is installed, which model would be used and why, and what is wrong."""

from __future__ import annotations

import asyncio
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryFile

import click

from memagent import __version__
from memagent.cli.flags import Command, with_settings
from memagent.cli.messages import say, with_flags
from memagent.engines import choose, find_judge, open_engine
from memagent.engines.adapters import find_adapter
from memagent.engines.discovery import choose_server, look_around, settings_for, should_search
from memagent.engines.gguf import catalogue
from memagent.engines.kinds import ListsModels
from memagent.errors import EngineError, MemAgentError, SettingsError, reason, without_secrets
from memagent.reading.verdicts import log_odds
from memagent.reading.workflows import choose_workflow
from memagent.settings import (
    EngineSettings,
    Settings,
    user_cache_path,
    user_config_path,
)
from memagent.types import ESTIMATE, Engine, Message, Sampling

_TRIAL = "Text: The tide is in.\n\nDoes the text say anything? Reply Yes or No."


@click.command(cls=Command, short_help="Say what is installed, and what is wrong.")
@with_settings()
def command(settings: Settings) -> int:
    """Say what is installed, which model a read would use and why, and what is wrong.

    It asks an endpoint for its models and for one word, but loads no model in this process. The exit code
    is 2 if `ask` could not start.
    """
    say(f"memagent {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}")
    for group, names in _packages().items():
        say(f"{group}: {', '.join(f'{name} {_version(name)}' for name in names)}")
    config = user_config_path()
    say(f"settings file: {config}{'' if config.is_file() else ' (none)'}")
    say(f"cache: {user_cache_path()}")
    try:
        _check_cache(user_cache_path())
        fetched = ", ".join(model.name for model in catalogue.list_cached())
        say(f"fetched models: {fetched or 'none'}")
        say(with_flags("\n".join(asyncio.run(_findings(settings)))))
    except MemAgentError as error:
        say(f"wrong: {with_flags(str(error))}")
        return 2
    say("all is well")
    return 0


def _packages() -> dict[str, list[str]]:
    """The packages that memagent and each of its extras need."""
    groups: dict[str, list[str]] = {}
    for requirement in requires("memagent") or ():
        extra = requirement.partition("extra == ")[2].strip("'\"")
        if extra != "dev":
            group = groups.setdefault(f"[{extra}]" if extra else "the base", [])
            group.append(re.split("[<>=;]", requirement, maxsplit=1)[0])
    return groups


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


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
    lines, engine = await _with_servers(settings.engine)
    choice = choose(engine)
    adapter = find_adapter(engine, choice.engine)
    why = choice.why if engine == settings.engine else "a server with the model was found on this machine"
    lines.append(f"engine: {choice.engine}, because {why}")
    if not choice.embedded:
        async with open_engine(engine.replace(judge=None) if engine.judge else engine) as opened:
            model = opened.model
            served = await opened.list_models() if isinstance(opened, ListsModels) else {}
            verdicts = await _try_verdict(opened)
        # Some servers accept any name, or short ones, so an unlisted name is not an error.
        unlisted = f"; it lists {', '.join(sorted(served))}" if served and model.name not in served else ""
        endpoint = without_secrets(engine.base_url or "the OpenAI default")
        lines.append(f"model: {model.name} at {endpoint}{unlisted}")
    else:
        model = choice.kind.preview(engine, adapter)
        lines += [f"model: {model.name}", *([f"adapter: {adapter.path}"] if adapter else [])]
        verdicts = "trained, so auto asks for them" if model.judges else "untrained"
    name, workflow = choose_workflow(settings.read, model.trained)
    budgets = workflow.budgets(settings.read, model).in_force
    window = f"{model.window_tokens} tokens" if model.window_tokens else "unknown, the endpoint does not say"
    counted = "estimated" if model.tokenizer == ESTIMATE else "counted by its own tokenizer"
    parts = ", ".join(f"{part.removesuffix('_tokens')} {tokens}" for part, tokens in budgets.items())
    lines += [f"window: {window}; tokens are {counted}", f"workflow: {name}"]
    if find_judge(engine):
        verdicts = f"by {engine.judge}, which was trained to give them"
    return [*lines, f"verdicts: {verdicts}", f"budgets in tokens: {parts}"]


async def _try_verdict(engine: Engine) -> str:
    """Whether an endpoint tells how likely the words of a verdict are: it is asked for one."""
    try:
        completion = await engine.complete(
            (Message("user", _TRIAL),), Sampling(1, verdict=True, thinking=False)
        )
    except EngineError as error:
        return f"unknown ({error})"
    if log_odds(completion.alternatives) is None:
        return "none, since it tells no log-probabilities: select takes notes on every chunk"
    return "by log-probabilities, with --workflow select"


async def _with_servers(engine: EngineSettings) -> tuple[list[str], EngineSettings]:
    """The model servers on this machine, and the settings with the one that `ask` would use.

    Raises `SettingsError` as `settings_for` does.
    """
    if not engine.discover:
        return [], engine
    search = await look_around()
    servers = [
        f"{server.kind.name} at {server.kind.base_url} ({', '.join(server.models)})"
        for server in search.servers
    ]
    servers += [f"{kind.base_url} did not answer in time" for kind in search.silent]
    lines = [f"servers on this machine: {'; '.join(servers) or 'none found'}"]
    if should_search(engine) and (choice := choose_server(search, engine.model)):
        server, model = choice
        engine = await settings_for(server, model, engine)
    return lines, engine
