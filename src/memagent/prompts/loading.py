"""Templates from files: TOML, the table that comes with an adapter, or the Python of MemAgent's authors.

Published checkpoints need theirs. The prompts of MemAgent's (arXiv 2507.02259) are not ours to copy: they
come from the user's own copy of `recurrent/impls/memory.py`, `quickstart.py` or
`taskutils/memory_eval/utils/recurrent*.py`, which is parsed and never run. Prompts that need another program,
which recalls memories or retrieves passages, are refused.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any

from memagent.errors import SettingsError, reason
from memagent.prompts.templates import Prompts, keys

_UPDATE = "TEMPLATE"
_ANSWERS = ("TEMPLATE_FINAL_BOXED", "TEMPLATE_FINAL")
_EMPTY_MEMORY = "NO_MEMORY"
_USUAL_EMPTY_MEMORY = "No previous memory"  # `memory.py` has it inside a method
_OUR_SLOTS = {"prompt": "problem", "memory": "memory", "chunk": "chunk"}


def load_prompts(path: str | Path) -> Prompts:
    """Load templates from a TOML file: `update` and `answer`, and optionally other fields of
    `Prompts`, and templates that only the workflow has.

    A file whose name ends in `.py` is MemAgent's own: its prompts are taken from it, and it is never run. A
    file is read again only if it has changed: training loads it for every attempt. Raises `SettingsError`,
    naming the file, for a file, key or slot that is missing or unknown.
    """
    try:
        stat = Path(path).stat()
    except (OSError, ValueError) as error:
        raise SettingsError(f"the template file {path} cannot be read: {reason(error)}") from error
    return _load(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _load(path: str | Path, _changed_ns: int, _size: int) -> Prompts:
    read = _table_from_python if Path(path).suffix == ".py" else tomllib.loads
    try:
        table = read(Path(path).read_text("utf-8-sig"))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    except (OSError, ValueError, RecursionError) as error:  # TOML errors are ValueErrors
        raise SettingsError(f"the template file {path} cannot be read: {reason(error)}") from error
    return prompts_from(table, str(path))


def prompts_from(table: Mapping[str, object], origin: str) -> Prompts:
    """Templates from a table, such as comes with an adapter. Raises `SettingsError`, naming the origin."""
    own = {name: text for name, text in table.items() if name not in keys()}
    if unknown := [name for name, text in own.items() if not (isinstance(text, str) and "{" in text)]:
        known = ", ".join(sorted(keys()))
        raise SettingsError(
            f"{origin}: unknown key {min(unknown)!r}; known: {known}, and templates with slots"
        )
    for name in ("update", "answer"):
        if name not in table:
            raise SettingsError(f"{origin}: the key {name!r} is missing")
    for name, value in table.items():
        kind, description = (bool, "true or false") if name == "asks" else (str, "text")
        if not isinstance(value, kind):
            raise SettingsError(f"{origin}: {name} must be {description}, not {type(value).__name__}")
    try:
        core: dict[str, Any] = {name: value for name, value in table.items() if name not in own}
        return Prompts(**core, own=own)  # type: ignore[arg-type]
    except SettingsError as error:
        raise SettingsError(f"{origin}: {error}") from error


def _table_from_python(source: str) -> dict[str, object]:
    """The keys and values of a template file, from the text of the authors' Python file.

    `TEMPLATE` becomes `update`, and `TEMPLATE_FINAL_BOXED` or `TEMPLATE_FINAL` becomes `answer`; the texts
    that `str.format` would make of them stay the same, byte for byte. Raises `SettingsError` for text that is
    not Python, for a template that is missing, and for slots that no workflow of ours fills.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SettingsError(f"it is not valid Python: {error}") from error
    texts = _texts(module)
    answer = next((name for name in _ANSWERS if name in texts), None)
    if _UPDATE not in texts or answer is None:
        raise SettingsError(
            f"it must assign texts to {_UPDATE} and {' or '.join(_ANSWERS)}, as MemAgent's memory.py does, "
            f"but has {', '.join(sorted(texts)) or 'no text'}: other readers' prompts need their own programs"
        )
    return {
        "update": _ours(_UPDATE, texts[_UPDATE]),
        "answer": _ours(answer, texts[answer]),
        "empty_memory": texts.get(_EMPTY_MEMORY, _USUAL_EMPTY_MEMORY),
        "workflow": "overwrite",
        "asks": False,
    }


def _texts(module: ast.Module) -> dict[str, str]:
    """The texts that a module assigns to names of its own, as the last assignment leaves them."""
    texts: dict[str, str] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str(text))):
                texts[name] = text
    return texts


def _ours(name: str, template: str) -> str:
    """A template of `str.format` with the slots of `Prompts`."""
    converted = ""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise SettingsError(f"{name} is not a template of str.format: {error}") from error
    for literal, slot, form, conversion in parts:
        converted += literal.replace("{", "{{").replace("}", "}}")
        if slot is None:
            continue
        if slot not in _OUR_SLOTS or form or conversion:
            raise SettingsError(
                f"{name} has the slot {{{slot}}}, which nothing here fills: this reader needs its authors' "
                "program, or prompts of your own in a TOML file"
            )
        converted += f"{{{_OUR_SLOTS[slot]}}}"
    return converted
