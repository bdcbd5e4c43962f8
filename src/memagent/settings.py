"""Settings: defaults < TOML file < environment < flags; an unknown key is an error.

`Settings` is the one list of them: flags, TOML keys and environment variables are read off its fields.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from memagent.errors import SettingsError

NO_ADAPTER = "none"
_OPENAI_VARIABLES = {"base_url": "OPENAI_BASE_URL", "api_key": "OPENAI_API_KEY"}


def _setting(default: Any, help: str, choices: tuple[str, ...] = (), secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"help": help, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a read can be told.

    Budgets left at None are those that the model was trained with, where its adapter tells, or else the
    paper's; they shrink to fit the model's window.
    """

    engine: str = _setting("auto", "what runs the model", ("auto", "openai", "llamacpp", "transformers"))
    model: str | None = _setting(
        None, "a .gguf file, a Hugging Face folder or id, or a model's name at --base-url"
    )
    adapter: str | None = _setting(
        None,
        "a LoRA to use the model with: a GGUF adapter, or for transformers also a PEFT folder; "
        "the embedded model has its own, 'none' is for the bare model",
    )
    base_url: str | None = _setting(None, "an OpenAI-compatible endpoint, such as http://localhost:8000/v1")
    api_key: str | None = _setting(None, "the endpoint's key", secret=True)
    tokenizer: str | None = _setting(
        None, "a tokenizer.json for a remote model; without it its tokens are estimated"
    )
    window_tokens: int | None = _setting(None, "the model's window, where it does not tell")
    threads: int | None = _setting(None, "CPU threads of an embedded model")
    concurrency: int | None = _setting(None, "calls in flight at most (16; 1 for an embedded model)")
    timeout_seconds: float = _setting(600.0, "how long a call may take")
    retries: int = _setting(6, "how often a failed call is tried again")
    workflow: str = _setting("gated", "how to read", ("overwrite", "gated"))
    templates: str | None = _setting(None, "a TOML file with your own prompts")
    problem_tokens: int | None = _setting(None, "the longest problem allowed (1024; with a LoRA, its own)")
    chunk_tokens: int | None = _setting(None, "the size of a chunk (5000; with a LoRA, its own)")
    memory_tokens: int | None = _setting(None, "the size of the memory (1024; with a LoRA, its own)")
    answer_tokens: int | None = _setting(None, "the longest answer (1024; with a LoRA, its own)")
    temperature: float = _setting(0.0, "0 is greedy and repeatable")
    top_p: float = _setting(1.0, "nucleus sampling")
    seed: int | None = _setting(None, "the sampler's seed")
    early_exit: bool = _setting(False, "stop reading once the model says that it knows enough (gated)")
    max_calls: int | None = _setting(None, "stop with an error after so many calls")

    def __post_init__(self) -> None:
        for item in fields(self):
            value, choices = getattr(self, item.name), item.metadata["choices"]
            if choices and value not in choices:
                raise SettingsError(f"{item.name} is {value!r}: use one of {', '.join(choices)}")
        for name in ("window_tokens", "threads", "concurrency", "problem_tokens", "chunk_tokens",
                     "memory_tokens", "answer_tokens", "max_calls", "timeout_seconds"):  # fmt: skip
            if (value := getattr(self, name)) is not None and not value > 0:
                raise SettingsError(f"{name} is {value}: it must be above 0")
        if not 0 <= self.temperature <= 2:
            raise SettingsError(f"temperature is {self.temperature}: it lies between 0 and 2")
        if not 0 < self.top_p <= 1:
            raise SettingsError(f"top_p is {self.top_p}: it lies above 0 and at most at 1")
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise SettingsError(f"base_url is {self.base_url!r}: it begins with http:// or https://")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise SettingsError("api_key has characters that no key has: copy it anew, whole and in one line")
        if self.retries < 0:
            raise SettingsError(f"retries is {self.retries}: it cannot be negative")


def load_settings(
    flags: Mapping[str, Any] | None = None,
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from all places, the later ones winning.

    `file` is a TOML file; without it the user's own (`user_config_path()`) is used if it exists.
    `environment` (default: the process's) may set `MEMAGENT_` and a field's name in capitals, and
    `OPENAI_BASE_URL`, `OPENAI_API_KEY`. What is empty there, or None in `flags`, is not set.
    Raises `SettingsError`, naming the place of the value.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    if file is not None or user_config_path().is_file():
        path = Path(file) if file is not None else user_config_path()
        values |= _checked(_read_toml(path), str(path))
    values |= _checked(_from_environment(environment), "environment")
    values |= _checked({name: value for name, value in (flags or {}).items() if value is not None}, "flags")
    return Settings(**values)


def user_config_path() -> Path:
    """The settings file that is used when none is named."""
    from platformdirs import user_config_path as folder

    return folder("memagent", appauthor=False) / "config.toml"


def user_cache_path() -> Path:
    """Where converted models and journals are kept."""
    from platformdirs import user_cache_path as folder

    return folder("memagent", appauthor=False)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # TOML errors are ValueErrors
        raise SettingsError(f"the settings file {path} cannot be read: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values = {name: environment[key] for name, key in _OPENAI_VARIABLES.items() if environment.get(key)}
    prefix = "MEMAGENT_"
    ours = {key.removeprefix(prefix).lower(): value for key, value in environment.items()
            if key.startswith(prefix) and value}  # fmt: skip
    types = setting_types()
    return values | {name: _parse(value, types.get(name, str), name) for name, value in ours.items()}


def _checked(values: dict[str, Any], place: str) -> dict[str, Any]:
    """The values, if all are known settings of the right type and within their range."""
    types = setting_types()
    for name, value in values.items():
        if name not in types:
            near = "".join(f", did you mean {it!r}?" for it in difflib.get_close_matches(name, types, n=1))
            raise SettingsError(f"{place}: unknown setting {name!r}{near}")
        wanted = types[name]
        if wanted is float and type(value) is int and value.bit_length() < 64:
            values[name] = float(value)
        elif type(value) is not wanted:
            shown = repr(value) if Settings.__dataclass_fields__[name].repr else "of the wrong type"
            raise SettingsError(f"{place}: {name} is {shown}, it must be {_NOUNS[wanted]}")
    try:
        Settings(**values)
    except SettingsError as error:
        raise SettingsError(f"{place}: {error}") from error
    return values


def setting_types() -> dict[str, type]:
    """Each setting's type, without the None."""
    hints = get_type_hints(Settings)
    return {name: get_args(hint)[0] if isinstance(hint, UnionType) else hint for name, hint in hints.items()}


def _parse(text: str, wanted: type, name: str) -> Any:
    if wanted is bool:
        if text.lower() not in _TRUTHS:
            raise SettingsError(f"environment: {name} is {text!r}, it must be true or false")
        return _TRUTHS[text.lower()]
    try:
        return wanted(text)
    except ValueError as error:
        raise SettingsError(f"environment: {name} is {text!r}, it must be {_NOUNS[wanted]}") from error


_TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
