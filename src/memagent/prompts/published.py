"""Prompts from the Python files in which the authors of MemAgent keep theirs (arXiv 2507.02259).

The published models were trained with these prompts, which are not ours to copy: they come from the user's
own copy of `recurrent/impls/memory.py`, `quickstart.py` or `taskutils/memory_eval/utils/recurrent*.py`. The
file is parsed and never run. Prompts that need another program, which recalls memories or retrieves passages,
are refused.
"""

from __future__ import annotations

import ast
from string import Formatter

from memagent.errors import SettingsError

_UPDATE = "TEMPLATE"
_ANSWERS = ("TEMPLATE_FINAL_BOXED", "TEMPLATE_FINAL")
_EMPTY_MEMORY = "NO_MEMORY"
_USUAL_EMPTY_MEMORY = "No previous memory"  # `memory.py` has it inside a method
_OUR_SLOTS = {"prompt": "problem", "memory": "memory", "chunk": "chunk"}


def table_from_python(source: str) -> dict[str, object]:
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
    found: dict[str, str] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str(text))):
                found[name] = text
    return found


def _ours(name: str, template: str) -> str:
    """A template of `str.format` with the slots of `Prompts`."""
    made = ""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise SettingsError(f"{name} is not a template of str.format: {error}") from error
    for literal, slot, form, conversion in parts:
        made += literal.replace("{", "{{").replace("}", "}}")
        if slot is None:
            continue
        if slot not in _OUR_SLOTS or form or conversion:
            raise SettingsError(
                f"{name} has the slot {{{slot}}}, which nothing here fills: this reader needs its authors' "
                "program, or prompts of your own in a TOML file"
            )
        made += f"{{{_OUR_SLOTS[slot]}}}"
    return made
