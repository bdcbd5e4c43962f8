"""Frozen settings that are validated when they are made, with all that is wrong reported in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from memagent.errors import SettingsError, did_you_mean, without_secrets

Built = TypeVar("Built", bound="StrictModel")

_MAX_SHOWN = 200
_RULES = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
    "missing": "is missing",
    "too_long": "must have at most {max_length} items",
}
_NOUNS = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "string": "text",
    "tuple": "a list", "model": "a table", "finite": "a finite number",
}  # fmt: skip


class StrictModel(BaseModel):
    """Frozen settings, validated on construction: strict types, no unknown names.

    Raises `SettingsError` listing every problem, one per line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            lines = (line for detail in error.errors() for line in _problems(detail, type(self)))
            raise SettingsError("\n".join(lines)) from None

    def replace(self, **values: Any) -> Self:
        """A copy with some values replaced; the others stay set or unset. Raises `SettingsError`."""
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | values)


def build(kind: type[Built], table: Mapping[str, Any], where: str) -> Built:
    """Build settings from a table. Raises `SettingsError` that names `where` the table stands."""
    try:
        return kind(**table)
    except SettingsError as error:
        raise name_place(error, where) from None


def unknown_name(name: str, known: Mapping[str, Any]) -> str:
    """The message for a name that is not a setting."""
    return f"unknown setting {name!r}{did_you_mean(name, known)}"


def name_place(error: SettingsError, where: str) -> SettingsError:
    """The error with `where` it occurred before each of its lines."""
    return SettingsError("\n".join(f"{where}: {line}" for line in str(error).splitlines()))


def _problems(error: ErrorDetails, kind: type[StrictModel]) -> Iterator[str]:
    """Describe what is wrong with one value: a line, or several for a nested table."""
    name, kind_of_error = ".".join(map(str, error["loc"])), error["type"]
    if kind_of_error == "extra_forbidden":
        yield unknown_name(name, kind.model_fields)
        return
    details = error.get("ctx", {})
    inner = details.get("error")
    if isinstance(inner, SettingsError):  # from a nested table
        for line in str(inner).splitlines():
            separator = ": " if line.startswith("unknown setting") else "."
            yield f"{name}{separator}{line}" if name else line
        return
    if kind_of_error == "value_error" and not name:
        yield str(inner)
        return
    item = kind.model_fields.get(str(error["loc"][0])) if error["loc"] else None
    value = (
        without_secrets(repr(error["input"])) if item is None or item.repr else "a value that is not shown"
    )
    value = value if len(value) <= _MAX_SHOWN else value[: _MAX_SHOWN - 3] + "..."
    yield f"{name} is {value}: it {_rule(kind_of_error, details)}"


def _rule(kind: str, details: Mapping[str, Any]) -> str:
    """What the value must be, from pydantic's error type."""
    if kind in _RULES:
        return _RULES[kind].format(**details)
    noun = kind.partition("_")[0]
    return f"must be {_NOUNS.get(noun, kind.replace('_', ' '))}"
