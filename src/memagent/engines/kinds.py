"""Our kinds of engines, as other packages bring theirs: what callers must know before one is opened.

Each implementation is imported only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from memagent.documents.tokens import estimate_tokens
from memagent.engines.adapters import Adapter, find_trained
from memagent.engines.gguf import catalogue, hub
from memagent.errors import SettingsError, extra_hint
from memagent.settings import DEFAULT_WINDOW_TOKENS, EngineSettings
from memagent.types import Engine, Model


@runtime_checkable
class ListsModels(Protocol):
    """An engine whose endpoint says which models it has."""

    async def list_models(self) -> dict[str, Mapping[str, Any]]:
        """The models, by name; empty if there is no such list. Raises `EngineError`."""


Preview = Callable[[EngineSettings, Adapter | None], Model]
"""The model that would be loaded, with estimated tokens. Raises `SettingsError` if it cannot be."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine: called with the settings, it opens one.

    Args:
        opener: the module and the function that opens it, `module:function`.
        embedded: whether the model runs in this process, and not behind an endpoint.
        preview: what would be loaded, without loading it; only of an embedded one.
    """

    opener: str
    embedded: bool = False
    preview: Preview | None = None

    async def __call__(self, settings: EngineSettings) -> Engine:
        """Open an engine. Raises `SettingsError` or `EngineError`."""
        module, _, function = self.opener.partition(":")
        engine: Engine = await getattr(import_module(module), function)(settings)
        return engine


def _preview_gguf(settings: EngineSettings, adapter: Adapter | None) -> Model:
    from memagent.engines.llamacpp.engine import find_file, usable_window

    if settings.model and settings.model.startswith(hub.PREFIX) and hub.find_cached(settings.model) is None:
        raise SettingsError(f"{settings.model} is not in the cache yet: ask fetches it")
    path = find_file(settings.model)
    verdicts = catalogue.find_verdicts(path, adapter)
    window = usable_window(path, settings.window_tokens)
    return _model(str(path), window, adapter, verdicts.name if verdicts else "")


def _preview_transformers(settings: EngineSettings, adapter: Adapter | None) -> Model:
    if any(find_spec(name) is None for name in ("torch", "transformers")):
        raise SettingsError(f"{settings.model} needs torch and transformers: {extra_hint('train')}")
    name, window = settings.model or "transformers", settings.window_tokens or DEFAULT_WINDOW_TOKENS
    verdicts = catalogue.find_verdicts(Path(name), adapter)
    return _model(name, window, adapter, verdicts.name if verdicts else "")


def _model(name: str, window: int, adapter: Adapter | None, judges: str = "") -> Model:
    return Model(name, estimate_tokens, name, window, trained=find_trained(name, adapter), judges=judges)


OPENAI = EngineKind("memagent.engines.openai:open_endpoint")
LLAMACPP = EngineKind("memagent.engines.llamacpp.engine:open_llamacpp", True, _preview_gguf)
TRANSFORMERS = EngineKind("memagent.engines.torch.engine:open_transformers", True, _preview_transformers)
