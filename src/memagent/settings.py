"""Settings, in rising precedence: defaults, TOML file, environment, flags. Unknown names are errors.

`EngineSettings` says how to reach a model, `ReadSettings` how it reads. Flags, TOML keys and environment
variables are derived from their fields, which also hold the help texts. All errors are reported together.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

import platformdirs
from pydantic import (
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from memagent.errors import SettingsError, did_you_mean, reason
from memagent.plugins import load, load_all, plugins
from memagent.strict import StrictModel, name_place, unknown_name
from memagent.types import Spent, Trained, Usage

DEFAULT_WINDOW_TOKENS = 8192
"""The paper's window (arXiv 2507.02259). It stands in for an unknown window, and caps a local model's
unless `window_tokens` is set, because the RAM used grows with the window."""

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Dtype = Literal["auto", "float32", "bfloat16"]
Kind = TypeVar("Kind", bound="Options")
Names = Annotated[tuple[str, ...], Field(strict=False)]
"""Strings: a list in TOML."""

_MILLION = 1_000_000
_PREFIX = "MEMAGENT_"
_ARGUMENTS = "arguments"
_log = logging.getLogger(__name__)


def _field(default: Any, description: str, **bounds: Any) -> Any:
    """A setting; its description is also the help of its flag."""
    return Field(default=default, description=description, **bounds)


class EngineSettings(StrictModel):
    """How to reach a model."""

    engine: str = _field("auto", "what runs the model")
    model: str | None = _field(
        None,
        "a .gguf file, hf:ORG/REPO[:QUANT], a fetched model's name, a Hugging Face folder or id, "
        "or a model's name on a server",
    )
    adapter: str | None = _field(None, "a LoRA adapter: a GGUF file, or for transformers also a PEFT folder")
    judge: str | None = _field(
        None,
        "a local model that gives the verdicts on chunks for `model`: a fetched model's name or a .gguf file",
    )
    base_url: str | None = _field(None, "an OpenAI-compatible endpoint, such as http://localhost:8000/v1")
    api_key: str | None = _field(None, "the endpoint's key", repr=False)
    tokenizer: str | None = _field(
        None, "a tokenizer.json for a remote model, whose tokens are otherwise estimated"
    )
    window_tokens: Positive | None = _field(
        None, "the model's window; a local model's is capped at 8192 unless this is set"
    )
    threads: Positive | None = _field(None, "CPU threads for a local model")
    dtype: Dtype = _field(
        "auto", "the numbers that transformers computes in; auto is bfloat16 on a GPU, else float32"
    )
    concurrency: Positive | None = _field(None, "maximum calls in flight (16; 1 for a GGUF file)")
    timeout_seconds: float = _field(600.0, "how long a call may take", gt=0)
    connect_seconds: float = _field(10.0, "how long connecting may take", gt=0)
    retries: int = _field(6, "how many times a failed call is retried", ge=0)
    discover: bool = _field(True, "whether to look for a model server on this machine")

    _base_url_set_by: str = PrivateAttr("")

    @property
    def base_url_set_by(self) -> str:
        """What set `base_url`, in words: a variable, a file, `base_url` itself; empty if nobody knows."""
        return self._base_url_set_by

    @field_validator("engine")
    @classmethod
    def _is_installed(cls, value: str) -> str:
        known = plugins("engines")
        if value != "auto" and value not in known:
            raise ValueError(f"must be auto or one of {', '.join(known)}{did_you_mean(value, known)}")
        return value

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value

    @field_validator("api_key")
    @classmethod
    def _is_key(cls, value: str | None) -> str | None:
        if value is not None and not (value.isascii() and value.isprintable()):
            raise ValueError("has characters that no key has: copy it again, whole and on one line")
        return value


def is_embedded(engine: str) -> bool:
    """Whether this engine runs the model in this process. Raises `SettingsError` if it is broken."""
    return getattr(load("engines", engine), "embedded", False)


class Options(StrictModel):
    """Settings that only some workflows have: `ReadSettings` takes them by name, and `of` hands them out."""

    decide: ClassVar[bool] = True
    """Whether the conversations that a read uses depend on them: then it is resumed only with the same."""
    skip: ClassVar[bool] = False
    """Whether they may leave a part of the document unread, as `screen` does."""
    off: ClassVar[dict[str, Any]] = {}
    """The values with which they do neither: of those that skip or do not decide."""


@cache
def load_workflows() -> dict[str, Any]:
    """Load the installed workflows, by name, ours first.

    A workflow of another package is left out with a warning if a setting of it has a name that is in use.
    """
    names, known = {*EngineSettings.model_fields, *ReadSettings.model_fields}, set[type[Options]]()
    usable: dict[str, Any] = {}
    for name, workflow in load_all("workflows").items():
        fields = {setting for kind in workflow.options if kind not in known for setting in kind.model_fields}
        if fields & names and not plugins("workflows")[name].value.startswith("memagent."):
            _log.warning(
                "the workflow %s is left out: its setting %s is another's, too", name, min(fields & names)
            )
            continue
        names |= fields
        known |= set(workflow.options)
        usable[name] = workflow
    return usable


def option_kinds() -> dict[str, type[Options]]:
    """The settings that only some of the installed workflows have, each with the kind that it belongs to."""
    return {name: kind for kind in _kinds() for name in kind.model_fields}


def _kinds() -> list[type[Options]]:
    return [kind for workflow in load_workflows().values() for kind in workflow.options]


class ReadSettings(StrictModel):
    """How to read a document.

    Settings that only some workflows have are given by their names too, and are kept in `options`. Budgets
    left at None default to those that the model was trained with, or else to the paper's; they shrink to fit
    the model's window. Prices are per million tokens, in any currency.
    """

    workflow: str | None = _field(
        None,
        "how to read (auto: full if the document takes at most half the window, else select or notes; "
        "an adapter may bring its own; gated, parallel, map_reduce and overwrite are for trained or larger "
        "models)",
    )
    templates: str | None = _field(None, "a TOML file with your own prompts, or MemAgent's own memory.py")
    problem_tokens: Positive | None = _field(None, "the longest problem allowed (1024)")
    chunk_tokens: Positive | None = _field(None, "the size of a chunk (5000; 300 for auto, select and notes)")
    chunk_ends: Literal["natural", "exact"] = _field(
        "natural", "where a chunk ends: at a paragraph, line, sentence or word, or exactly at its size"
    )
    memory_tokens: Positive | None = _field(None, "the size of the memory (1024)")
    answer_tokens: Positive | None = _field(None, "the longest answer (1024)")
    thinking: Literal["off", "answers", "on"] = _field(
        "off", "when a model that can think does so: off, answers (before an answer only), or on"
    )
    thinking_tokens: Positive | None = _field(
        None, "the room for a thought, beside the memory or the answer (4096)"
    )
    temperature: float = _field(0.0, "0 is greedy", ge=0, le=2)
    top_p: float = _field(1.0, "nucleus sampling", gt=0, le=1)
    seed: Seed | None = _field(None, "the sampler's seed")
    screen: bool = _field(
        False,
        "pass over chunks in which no word relates to the problem or the memory "
        "(workflows that read chunk by chunk)",
    )
    max_calls: Positive | None = _field(None, "stop with an error after this many calls")
    cite: bool = _field(False, "say where the document supports each statement")
    prompt_price: Price | None = _field(None, "price per million prompt tokens")
    cached_price: Price | None = _field(None, "price per million cached prompt tokens (the full price)")
    completion_price: Price | None = _field(None, "price per million completion tokens")

    options: Mapping[str, Any] = Field(default_factory=dict, description="what only some workflows have")

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Check what only some workflows have, and move it into `options`."""
        others = values.keys() - cls.model_fields.keys()
        if not others and "options" not in values:
            return values
        kinds = option_kinds()
        options = {**values.get("options", {}), **{name: values[name] for name in others & kinds.keys()}}
        if unknown := options.keys() - kinds.keys():
            raise SettingsError(unknown_name(min(unknown), kinds))
        for kind in set(_kinds()):
            kind(**{name: value for name, value in options.items() if name in kind.model_fields})
        return {name: values[name] for name in values if name not in options} | {"options": options}

    @model_serializer(mode="wrap")
    def _flatten(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The values by name, those in `options` among them; of other packages, only what is set."""
        values: dict[str, Any] = handler(self)
        given = values.pop("options", {})
        ours = {kind for kind in option_kinds().values() if kind.__module__.startswith("memagent.")}
        defaults = {name: item.default for kind in ours for name, item in kind.model_fields.items()}
        return {**values, **dict(sorted(defaults.items())), **given}

    def of(self, kind: type[Kind]) -> Kind:
        """The settings of this kind that only some workflows have."""
        return kind(**{name: value for name, value in self.options.items() if name in kind.model_fields})

    def to_the_end(self) -> Self:
        """These settings without all that may leave a part of the document unread."""
        return self.replace(screen=False, **ChainMap(*(kind.off for kind in _kinds() if kind.skip)))

    def without_shortcuts(self) -> Self:
        """These settings without what only makes a read faster: all is read, and no call is made in vain."""
        return self.replace(**ChainMap(*(kind.off for kind in _kinds() if not kind.decide)))

    def given(self) -> dict[str, Any]:
        """What was set, by name, as `load_settings` takes it."""
        names = sorted(self.model_fields_set - {"options"})
        return {name: getattr(self, name) for name in names} | dict(self.options)

    def fill_from(self, trained: Trained) -> Self:
        """These settings, with the unset ones as in the model's training. Raises `SettingsError`."""
        unset = trained.settings.keys() - self.model_fields_set
        return self.replace(**{name: trained.settings[name] for name in unset})

    def price(self, usage: Usage, calls: int = 1) -> Spent:
        """What a call with this usage has spent; without `calls`, one whose reply could not be used."""
        return Spent(calls=calls, **asdict(usage), cost=self.cost(usage))

    def cost(self, usage: Usage | Spent) -> float | None:
        """The cost of these tokens at the user's own prices; None without prices."""
        if self.prompt_price is None and self.completion_price is None:
            return None
        full = self.prompt_price or 0.0
        cached = full if self.cached_price is None else self.cached_price
        tokens = (
            (usage.prompt_tokens - usage.cached_tokens) * full
            + usage.cached_tokens * cached
            + usage.completion_tokens * (self.completion_price or 0.0)
        )
        return tokens / _MILLION


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a read."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    read: ReadSettings = field(default_factory=ReadSettings)


_PARTS: Mapping[str, type[StrictModel]] = {"engine": EngineSettings, "read": ReadSettings}


@cache
def settings_by_name() -> dict[str, tuple[str, FieldInfo]]:
    """The part of `Settings` that each setting belongs to, and its field."""
    fields = {name: (part, item) for part, kind in _PARTS.items() for name, item in kind.model_fields.items()}
    del fields["options"]
    return fields | {name: ("read", kind.model_fields[name]) for name, kind in option_kinds().items()}


def plain_type(annotation: Any) -> Any:
    """The type of a setting, without None and without bounds, which pydantic checks."""
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [member for member in get_args(annotation) if member is not NoneType]
        return plain_type(others[0]) if len(others) == 1 else annotation
    return annotation


def load_settings(
    flags: Mapping[str, Any] | None = None,
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Merge the settings from the file, the environment and the flags; later ones win.

    Args:
        flags: values by name; None means not set.
        file: a TOML file (default: the user's own, `user_config_path()`, if it exists).
        environment: `MEMAGENT_` and a name in capitals, `OPENAI_BASE_URL` and `OPENAI_API_KEY` (default: the
            process's own). An empty value counts as not set.

    A local `engine`, or a model `hf:...`, ignores an endpoint that is set in the file or the environment.
    `OPENAI_API_KEY` is sent only to OpenAI's own endpoint or to that of `OPENAI_BASE_URL`.
    Raises `SettingsError` naming the source of a bad value.
    """
    environment = os.environ if environment is None else environment
    path = Path(file) if file is not None else user_config_path()
    sources = {
        str(path): read_toml(path) if file is not None or path.is_file() else {},
        "environment": _from_environment(environment),
        _ARGUMENTS: {name: value for name, value in (flags or {}).items() if value is not None},
    }
    values: dict[str, Any] = {}
    for source, table in sources.items():
        _build(table, source)  # each source alone, so that an error names it
        values |= table
    engine = values.get("engine", "auto")
    local = is_embedded(engine) if engine != "auto" else str(values.get("model")).startswith("hf:")
    if local and "base_url" not in sources[_ARGUMENTS]:
        values.pop("base_url", None)  # meant for other calls
    if values.get("base_url") == (environment.get("OPENAI_BASE_URL") or None):
        values.setdefault("api_key", environment.get("OPENAI_API_KEY") or None)
    settings = _build(values, "environment")
    setters = [source for source, table in sources.items() if "base_url" in table]
    if setters and settings.engine.base_url:
        settings.engine._base_url_set_by = _setter(setters[-1], environment)
    return settings


def _setter(source: str, environment: Mapping[str, str]) -> str:
    """What set `base_url`, as `EngineSettings.base_url_set_by` says it."""
    if source == _ARGUMENTS:
        return "`base_url`"
    if source == "environment":
        return "MEMAGENT_BASE_URL" if environment.get("MEMAGENT_BASE_URL") else "OPENAI_BASE_URL"
    return f"base_url in {source}"


def _build(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from flat values. Raises `SettingsError` listing every problem."""
    known, parts = settings_by_name(), dict[str, Any]()
    problems = [unknown_name(name, known) for name in values if name not in known]
    for part, kind in _PARTS.items():
        mine = {name: value for name, value in values.items() if name in known and known[name][0] == part}
        try:
            parts[part] = kind(**mine)
        except SettingsError as error:
            problems.append(str(error))
    if problems:
        raise name_place(SettingsError("\n".join(problems)), source)
    return Settings(**parts)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    url, known = environment.get("OPENAI_BASE_URL"), settings_by_name()
    values: dict[str, Any] = {"base_url": url} if url else {}
    for variable, text in environment.items():
        name = variable.removeprefix(_PREFIX).lower()
        if not variable.startswith(_PREFIX) or not text:
            continue
        if name not in known:
            raise SettingsError(f"environment: {unknown_name(name, known)}")
        try:
            kind: Any = known[name][1].annotation
            values[name] = TypeAdapter[Any](kind).validate_strings(text)
        except ValidationError:
            values[name] = text  # reported later, together with all other problems
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises `SettingsError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors write a byte-order mark
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:  # TOML errors are ValueErrors
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def user_config_path() -> Path:
    """The settings file to use when none is named."""
    return platformdirs.user_config_path("memagent", appauthor=False) / "config.toml"


def user_data_path() -> Path:
    """Where to keep what must last: notebooks, and the secret of the delimiters."""
    return platformdirs.user_data_path("memagent", appauthor=False)


def user_cache_path() -> Path:
    """Where to keep what can be had again: fetched models, converted files, and journals."""
    return platformdirs.user_cache_path("memagent", appauthor=False)
