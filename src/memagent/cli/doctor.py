"""`memagent doctor`: what is installed, which model would be used and why, and what is wrong."""

from __future__ import annotations

import argparse
import asyncio
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from memagent import __version__
from memagent.cli import flags
from memagent.engines import choose, open_engine
from memagent.engines.adapters import adapter_of
from memagent.engines.llamacpp import embedded
from memagent.engines.openai import OpenAIEngine, served_models
from memagent.errors import MemAgentError, SettingsError
from memagent.evaluation.readers import prompts_of
from memagent.prompts import Prompts
from memagent.reading.read import fitted_budgets
from memagent.settings import Settings, user_cache_path, user_config_path
from memagent.types import model_of

_PACKAGES = {
    "the base": ("openai", "xllamacpp", "gguf", "bm25s"),
    "[formats]": ("markitdown",),
    "[tokenizers]": ("tokenizers",),
    "[train]": ("torch", "transformers", "peft"),
    "[report]": ("matplotlib",),
    "[ray]": ("ray",),
}


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="say what is installed, which model would be used and why, and what is wrong",
        description="Look at the installation and the settings, and ask an endpoint for its models; no "
        "model is loaded. Exit code 2 if something would keep `ask` from starting.",
    )
    flags.add_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, _console: Console) -> int:
    """Print the findings to stdout; 0 if a read could start, 2 if not."""
    print(f"memagent {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}")
    for group, names in _PACKAGES.items():
        print(f"{group}: " + ", ".join(f"{name} {_version(name)}" for name in names))
    print(f"settings file: {user_config_path()}{'' if user_config_path().is_file() else ' (none)'}")
    print(f"cache: {user_cache_path()}")
    try:
        settings = flags.settings_from(options)
        choice = choose(settings)
        prompts = prompts_of(settings.workflow, settings)
        print(f"engine: {choice.engine}, because {choice.why}")
        print(f"model: {_model(choice.engine, settings, prompts)}")
        if adapter := adapter_of(settings, choice.engine):
            print(f"adapter: {adapter}")
    except MemAgentError as error:
        print(f"wrong: {error}")
        return 2
    print("all is well")
    return 0


def _model(engine: str, settings: Settings, prompts: Prompts) -> str:
    """The model that would be used. Raises `MemAgentError` if it could not be."""
    if engine == "openai":
        return asyncio.run(_remote_model(settings, prompts))
    if settings.model is None:
        return str(embedded.default_model())
    if engine == "transformers" and any(find_spec(name) is None for name in ("torch", "transformers")):
        raise SettingsError(f"{settings.model} needs torch and transformers: pip install 'memagent[train]'")
    if engine == "llamacpp" and not Path(settings.model).is_file():
        raise SettingsError(f"there is no file {settings.model}")
    return settings.model


async def _remote_model(settings: Settings, prompts: Prompts) -> str:
    engine = await open_engine(settings)
    try:
        fitted_budgets(settings, engine, prompts)
        served = await served_models(engine) if isinstance(engine, OpenAIEngine) else {}
    finally:
        await engine.aclose()
    model = model_of(engine)
    window = f"{model.window_tokens} tokens" if model.window_tokens else "not told"
    # Some servers take any name, or short ones.
    unlisted = f"; it lists {', '.join(sorted(served))}" if served and model.name not in served else ""
    return f"{model.name} at {settings.base_url or 'the OpenAI default'}, window {window}{unlisted}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
