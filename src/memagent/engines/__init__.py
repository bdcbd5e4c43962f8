"""What completes a chat. `open_engine` makes the one that the settings ask for.

Implementations are imported only when they are used, so that nothing is loaded in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from memagent.engines.adapters import adapter_of
from memagent.engines.scripted import ScriptedEngine
from memagent.errors import SettingsError
from memagent.settings import Settings
from memagent.types import Engine, Model

__all__ = ["Choice", "ScriptedEngine", "choose", "open_engine"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which engine the settings mean, and why."""

    engine: str
    why: str


def choose(settings: Settings) -> Choice:
    """Decide on the engine. Raises `SettingsError` for a model that fits none."""
    model = settings.model
    if settings.engine != "auto":
        return Choice(settings.engine, f"--engine {settings.engine}")
    if settings.base_url:
        return Choice("openai", f"the endpoint {settings.base_url} is set")
    if model is None:
        return Choice("llamacpp", "no model and no endpoint are set: the embedded model")
    if model.endswith(".gguf"):
        return Choice("llamacpp", f"{model} is a GGUF file")
    if (Path(model) / "config.json").is_file():
        return Choice("transformers", f"{model} is a Hugging Face folder")
    if settings.api_key:
        return Choice("openai", "an API key is set and the model is no local file")
    raise SettingsError(
        f"the model {model!r} is no .gguf file and no Hugging Face folder: name its endpoint with "
        "--base-url, or add --engine transformers for a model of the Hugging Face hub"
    )


async def open_engine(settings: Settings) -> Engine:
    """The engine that the settings ask for, ready to use; close it with `aclose`.

    Raises `SettingsError` or `EngineError` with the next thing to do.
    """
    match choose(settings).engine:
        case "openai":
            engine: Engine = await _open_openai(settings)
        case "llamacpp":
            from memagent.engines.llamacpp import engine as llamacpp

            engine = await llamacpp.open_engine(settings)
        case _:
            from memagent.engines.torch import engine as transformers

            engine = await transformers.open_engine(settings)
    return engine


async def _open_openai(settings: Settings) -> Engine:
    from memagent.documents.tokens import load_tokenizer
    from memagent.engines.openai import Connection, connect

    adapter_of(settings, "openai")
    connection = Connection(
        base_url=settings.base_url,
        api_key=settings.api_key or "none",
        concurrency=settings.concurrency or 16,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
    )
    engine = await connect(settings.model, connection)
    model: Model = engine.model
    if settings.tokenizer:
        count = load_tokenizer(settings.tokenizer)
        model = replace(model, count_tokens=count, tokenizer=str(settings.tokenizer))
    engine.model = replace(model, window_tokens=settings.window_tokens or model.window_tokens)
    return engine
