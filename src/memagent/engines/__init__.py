"""Engines complete chats. `open_engine` opens the one that the settings ask for.

Each implementation is imported only when it is used.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from memagent.engines.gguf import catalogue
from memagent.engines.scripted import ScriptedEngine
from memagent.engines.wrappers import Judged
from memagent.errors import SettingsError, without_secrets
from memagent.plugins import load
from memagent.settings import EngineSettings, is_embedded
from memagent.types import Engine

__all__ = ["Choice", "ScriptedEngine", "choose", "find_judge", "open_engine"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that the settings select, and why."""

    engine: str
    why: str

    @property
    def kind(self) -> Any:
        """What opens it. Raises `SettingsError` if its package cannot be loaded."""
        return load("engines", self.engine)

    @property
    def embedded(self) -> bool:
        """Whether its model runs in this process."""
        return is_embedded(self.engine)


def choose(settings: EngineSettings) -> Choice:
    """Choose the engine. Raises `SettingsError` if no engine can use the model, or settings contradict."""
    model = settings.model
    if settings.engine != "auto":
        if settings.base_url and settings.engine != "openai":
            raise SettingsError(
                f"`base_url` is for an endpoint, but `engine` is {settings.engine}, which needs none: "
                "drop one"
            )
        return Choice(settings.engine, f"`engine` is {settings.engine}")
    if settings.base_url and model and model.startswith("hf:"):
        raise SettingsError(
            f"`base_url` is for an endpoint, but `model` is {model}, which needs none: drop one"
        )
    if settings.base_url:
        return Choice("openai", f"the endpoint {without_secrets(settings.base_url)} is set")
    if model is None:
        catalogue.find_default()  # or raise
        return Choice("llamacpp", f"no model and no endpoint are set: the default, {catalogue.DEFAULT}")
    if model.startswith("hf:"):
        return Choice("llamacpp", f"{model} is a GGUF on the Hugging Face hub")
    if model.endswith(".gguf"):
        return Choice("llamacpp", f"{model} is a GGUF file")
    if path := catalogue.find_cached(model):
        return Choice("llamacpp", f"{model} was fetched: {path}")
    if (Path(model) / "config.json").is_file():
        return Choice("transformers", f"{model} is a Hugging Face folder")
    if looks_like_path(model):
        raise SettingsError(f"there is no model at {model}: name a .gguf file or a Hugging Face folder")
    if settings.api_key:
        return Choice("openai", "an API key is set and the model is not a local file")
    if model in catalogue.MODELS:
        raise SettingsError(f"the model {model} is not fetched yet: run `memagent models fetch {model}`")
    raise SettingsError(
        f"the model {model!r} is neither a .gguf file nor a Hugging Face folder: for OpenAI's models set "
        "OPENAI_API_KEY, for another endpoint `base_url`; hf:ORG/REPO fetches a GGUF, `engine` transformers "
        "loads a model from the Hugging Face hub; memagent models lists what is available"
    )


def looks_like_path(model: str) -> bool:
    """Whether a model's name can only be a path; such a name is not sent to an endpoint."""
    return model.startswith((".", "~", os.sep)) or Path(model).exists()


def is_missing_path(model: str) -> bool:
    """Whether a model's name looks like a path to a missing file; few endpoints list such a name."""
    meant = model.startswith((".", "~", os.sep)) or model.endswith(".gguf")
    return meant and not Path(model).expanduser().exists()


@asynccontextmanager
async def open_engine(settings: EngineSettings | None = None) -> AsyncIterator[Engine]:
    """Open the engine that the settings ask for, and close it at the end of the `async with`.

    With `judge`, verdicts come from that model, which is loaded for the first of them. Raises `SettingsError`
    or `EngineError`; the message says what to do next.
    """
    settings = settings or EngineSettings()
    judge = find_judge(settings)
    async with AsyncExitStack() as opened:
        engine = await _open(settings, opened)
        if judge:
            engine = Judged(engine, judge[1], partial(_open, judge[0], opened))
        yield engine


def find_judge(settings: EngineSettings) -> tuple[EngineSettings, str] | None:
    """The settings of the judge, which is not loaded, and what it judges with; None if there is none.

    Raises `SettingsError` if it was not trained to give verdicts.
    """
    if not settings.judge:
        return None
    judge = EngineSettings(model=settings.judge, threads=settings.threads)
    judges: str = choose(judge).kind.preview(judge, None).judges
    if not judges:
        raise SettingsError(
            f"`judge` is {settings.judge}, which was not trained to give verdicts: "
            f"name a model that was, such as {catalogue.DEFAULT}"
        )
    return judge, judges


async def _open(settings: EngineSettings, opened: AsyncExitStack) -> Engine:
    engine: Engine = await choose(settings).kind(settings)
    opened.push_async_callback(engine.aclose)
    return engine
