"""Templates: their slots, and one pass that fills them.

A template has slots such as `{problem}`, `{chunk}` and `{memory}`. `{{` and `}}` are a pair of literal
braces, and any other single brace stays as it is. Slots are filled in one pass, so a slot that occurs in a
document stays text. The slot `{mark}` belongs in the names of tags, `<chunk-{mark}>`: it is filled with
letters that no author of a document can know (`memagent.documents.marks`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal, get_args

from memagent.errors import SettingsError
from memagent.prompts.guard import Guard, fold
from memagent.types import Message

UNCHANGED = "UNCHANGED"
MEMORY = "MEMORY"
ENOUGH = "ENOUGH"
NOT_THERE = "not in the document"

Replies = Literal["marked", "unmarked"]
"""Marked: the first line of a reply to an update is UNCHANGED or MEMORY. Unmarked: the reply is either the
word UNCHANGED or the memory itself."""

_SLOT = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_BRACES = re.compile(rf"{_SLOT.pattern}|[{{}}]")
_TAG = re.compile(r"</?\s*([^\s<>/](?:[^\s<>]*[^\s<>/])?)/?(?:\s[^<>]*)?>")
_NEEDED = {
    "update": {"problem", "chunk", "memory"},
    "answer": {"problem", "memory"},
    "check": {"problem", "memory", "reply"},
}
_MARK = "mark"
_ANY_MARK = "xdvupgqbzkwmtj"  # of no document: as many tokens as most marks have
_SHOWN_CHARACTERS = 30  # of a template that cannot be used
_NOT_IN_FILES = ("own", "mark", "guards_turns")


def sections(**slots: str) -> str:
    """Slots of a template, each between tags whose names no document can know."""
    return "\n".join(f"<{name}-{{mark}}>\n{{{slot}}}\n</{name}-{{mark}}>\n" for name, slot in slots.items())


CHECK = (
    f"""\
A reader goes through a long document piece by piece and keeps a memory, so that a problem can later be \
solved from it. Below are the problem, the memory so far, and what the reader wrote after the last piece.

If what the reader wrote states anything to be remembered, even that something is not so, reply with the one \
word {MEMORY}. If it only says that there is nothing to add or to change, or if it refuses, reply with the \
one word {UNCHANGED}.

"""
    + sections(problem="problem", memory="memory", written="reply")
    + f"\n{MEMORY} or {UNCHANGED}:\n"
)


@dataclass(frozen=True)
class Prompts:
    """The templates of one workflow, and how replies to them are read.

    `update` is used for each chunk, `answer` at the end; `system`, if not empty, precedes both.
    `empty_memory` stands in the memory's place until something is kept. `workflow` names the workflow
    that they are for, if any. With `asks`, `check` asks about a reply that may not be a memory; a model that
    was trained with these templates needs no such question.

    `own` are the further templates that the workflow has, by name, such as `note`, which asks for a note on a
    chunk. The workflow fills them and knows which slots each has.

    `mark` and `guards_turns` belong to a read: see `for_document`.
    """

    update: str
    answer: str
    system: str = ""
    empty_memory: str = "(empty)"
    workflow: str = ""
    replies: Replies = "unmarked"
    asks: bool = True
    check: str = CHECK
    own: Mapping[str, str] = field(default_factory=dict, hash=False)
    mark: str = _ANY_MARK
    guards_turns: bool = True

    def __post_init__(self) -> None:
        for name, template in self.templates.items():
            if unpaired := _find_unpaired(template):
                raise SettingsError(
                    f"the {name} template has {unpaired!r}: a doubled brace stands for one and needs its "
                    "counterpart; double both, as in {{word}}, or put a space between single ones"
                )
            _check_slots(name, template, _NEEDED.get(name, _slots(template)))
            if _brace({_MARK}) in _TAG.sub("", template):
                raise SettingsError(
                    f"the {name} template has {_brace({_MARK})} outside the name of a tag, where a document "
                    f"could forge it: write <name-{_brace({_MARK})}>"
                )
        for name in ("system", "empty_memory"):
            if slots := _slots(getattr(self, name)) & {_MARK}.union(*_NEEDED.values()):
                raise SettingsError(
                    f"{name} has {_brace(slots)}, which would stay as it is: move it to another template"
                )
        if self.replies not in get_args(Replies):
            known = " or ".join(map(repr, get_args(Replies)))
            raise SettingsError(f"replies is {self.replies!r}: it must be {known}")

    def for_document(self, mark: str, *, guards_turns: bool = True, asks: bool = True) -> Prompts:
        """These templates for the reads of one document, with its `mark` in their delimiters.

        Without `guards_turns`, turn tokens of chat templates are left alone, for engines that never read text
        as such a token. Without `asks`, no reply is asked about, as in training, which learns from the
        markers alone.
        """
        return replace(self, mark=mark, guards_turns=guards_turns, asks=asks and self.asks)

    @property
    def templates(self) -> Mapping[str, str]:
        """All templates, by name."""
        return {name: getattr(self, name) for name in _NEEDED} | dict(self.own)

    def check_own(self, declared: Prompts) -> None:
        """Raise `SettingsError` unless own templates have the slots that those of a workflow have."""
        for name in self.own.keys() & declared.own.keys():
            _check_slots(name, self.own[name], _slots(declared.own[name]))

    @property
    def fingerprint(self) -> str:
        """A digest of all templates (16 hex digits)."""
        table = {name: getattr(self, name) for name in keys()} | dict(sorted(self.own.items()))
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]

    @property
    def bare_text(self) -> str:
        """The longest of the prompts with its slots empty, for counting the fixed tokens."""
        templates = (self.update, self.answer, *self.own.values())
        longest = max(map(self._mark, templates), key=len)
        return self.system + _SLOT.sub("", longest) + self.empty_memory

    def fill(self, name: str, **slots: str) -> tuple[Message, ...]:
        """The conversation that a template makes with these texts in its slots."""
        safe = {slot: self.neutralise(text) for slot, text in slots.items()}
        if "memory" in safe:
            safe["memory"] = safe["memory"] or self.empty_memory
        safe[_MARK] = self.mark

        def put(slot: re.Match[str]) -> str:
            return safe[slot.group(1)] if slot.group(1) else slot.group(0)[0]

        user = Message("user", _SLOT.sub(put, self.templates[name]))
        return (Message("system", self.system), user) if self.system else (user,)

    def neutralise(self, text: str) -> str:
        """`text` with nothing left that could pass for the prompt's own structure: see `guard`."""
        return self._guard.neutralise(text)

    def restore(self, text: str) -> str:
        """Undo `neutralise`, for replies that quote what they were shown."""
        return self._guard.restore(text)

    @cached_property
    def tags(self) -> frozenset[str]:
        """The names of the tags in the templates."""
        text = "".join(map(self._mark, (self.system, *self.templates.values())))
        return frozenset(map(fold, _TAG.findall(text)))

    @cached_property
    def _guard(self) -> Guard:
        unmarked = tuple(sorted(name for name in self.tags if self.mark not in name))
        return Guard(unmarked, self.mark, self.guards_turns)

    def _mark(self, template: str) -> str:
        return template.replace(f"{{{_MARK}}}", self.mark)


def _check_slots(name: str, template: str, needed: set[str]) -> None:
    needed = needed - {_MARK}
    if missing := needed - _slots(template):
        raise SettingsError(f"the {name} template lacks {_brace(missing)}")
    if unknown := _slots(template) - needed - {_MARK}:
        raise SettingsError(
            f"the {name} template has unknown {_brace(unknown)}: its slots are {_brace(needed | {_MARK})}; "
            "write {{word}} for a literal {word}"
        )


def _slots(template: str) -> set[str]:
    return {slot for slot in _SLOT.findall(template) if slot}


def _find_unpaired(template: str) -> str:
    """The end of the text up to the first doubled brace without a counterpart; "" if all have one."""
    opened: list[re.Match[str]] = []
    for brace in _BRACES.finditer(template):
        match brace.group():
            case "{" | "{{":
                opened.append(brace)
            case "}" if opened and opened[-1].group() == "{":
                opened.pop()
            case "}}" if not opened or opened.pop().group() == "{":
                return template[: brace.end()][-_SHOWN_CHARACTERS:]
    first = next((brace for brace in opened if brace.group() == "{{"), None)
    return template[: first.end()][-_SHOWN_CHARACTERS:] if first else ""


def keys() -> list[str]:
    """The keys of a template file, beside a workflow's own templates."""
    return [field.name for field in fields(Prompts) if field.name not in _NOT_IN_FILES]


def _brace(names: set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))
