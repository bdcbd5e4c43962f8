"""What completes a chat. `open_engine` makes the one that the settings ask for.

Implementations are imported only when they are used, so that nothing is loaded in vain.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from memagent.engines.scripted import ScriptedEngine
from memagent.errors import SettingsError, without_secrets
from memagent.settings import EngineSettings
from memagent.types import Engine

__all__ = ["Choice", "ScriptedEngine", "choose", "open_engine"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which engine the settings mean, and why."""

    engine: str
    why: str


def choose(settings: EngineSettings) -> Choice:
    """Decide on the engine. Raises `SettingsError` for a model that fits none."""
    model = settings.model
    if settings.engine != "auto":
        return Choice(settings.engine, f"`engine` is {settings.engine}")
    if settings.base_url:
        return Choice("openai", f"the endpoint {without_secrets(settings.base_url)} is set")
    if model is None:
        return Choice("llamacpp", "no model and no endpoint are set: the embedded model")
    if model.startswith("hf:"):
        return Choice("llamacpp", f"{model} is a GGUF of the Hugging Face hub")
    if model.endswith(".gguf"):
        return Choice("llamacpp", f"{model} is a GGUF file")
    if (Path(model) / "config.json").is_file():
        return Choice("transformers", f"{model} is a Hugging Face folder")
    if looks_like_path(model):
        raise SettingsError(f"there is no model at {model}: name a .gguf file or a Hugging Face folder")
    if settings.api_key:
        return Choice("openai", "an API key is set and the model is not a local file")
    raise SettingsError(
        f"the model {model!r} is not a .gguf file and not a Hugging Face folder: for OpenAI's models set "
        "OPENAI_API_KEY, for another endpoint `base_url`; hf:ORG/REPO fetches a GGUF, `engine` transformers "
        "loads a model of the Hugging Face hub; memagent models lists what is at hand"
    )


def looks_like_path(model: str) -> bool:
    """Whether a model's name can only be meant as a path: such a one is not sent to an endpoint."""
    return model.startswith((".", "~", os.sep)) or Path(model).exists()


def is_missing_path(model: str) -> bool:
    """Whether a model's name is meant as a path, and nothing is there: few endpoints list such a one."""
    meant = model.startswith((".", "~", os.sep)) or model.endswith(".gguf")
    return meant and not Path(model).expanduser().exists()


@asynccontextmanager
async def open_engine(settings: EngineSettings | None = None) -> AsyncIterator[Engine]:
    """The engine that the settings ask for; it is closed at the end of the `async with`.

    Raises `SettingsError` or `EngineError` with the next thing to do.
    """
    settings = settings or EngineSettings()
    engine = await _opened(choose(settings).engine, settings)
    try:
        yield engine
    finally:
        await engine.aclose()


async def _opened(name: str, settings: EngineSettings) -> Engine:
    match name:
        case "openai":
            from memagent.engines.openai import open_endpoint

            return await open_endpoint(settings)
        case "llamacpp":
            from memagent.engines.llamacpp.engine import open_llamacpp

            return await open_llamacpp(settings)
        case _:
            from memagent.engines.torch.engine import open_transformers

            return await open_transformers(settings)
