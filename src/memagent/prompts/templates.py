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
from dataclasses import dataclass, fields, replace
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
    "note": {"problem", "chunk"},
    "verdict": {"problem", "chunk"},
    "further": {"problem", "chunk", "memory"},
    "merge": {"problem", "chunk", "memory"},
    "gap": {"problem", "memory"},
    "again": {"problem", "chunk", "memory", "question"},
    "answer": {"problem", "memory"},
    "doubt": {"problem", "memory"},
    "check": {"problem", "memory", "reply"},
}
_MARK = "mark"
_ANY_MARK = "xdvupgqbzkwmtj"  # of no document: as many tokens as most marks have
_SHOWN_CHARACTERS = 30  # of a template that cannot be used
_NOT_IN_FILES = ("mark", "guards_turns")
_OPTIONAL = ("note", "verdict", "further", "doubt", "merge", "gap", "again")
"""Templates that only some workflows have."""


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

    Some workflows have more: `note`, which asks for a note on a chunk and offers no way out; `verdict`, which
    asks whether a chunk helps, Yes or No, and `further`, which asks it beside what is known; `doubt`, which
    asks for the answer if the memory has little of what the problem names, and offers `NOT_THERE` as a reply;
    `merge`, for notes, in the place of the chunk; `gap`, which asks what the memory lacks; and `again`, the
    update of a chunk that is read again for that question.

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
    note: str = ""
    verdict: str = ""
    further: str = ""
    doubt: str = ""
    merge: str = ""
    gap: str = ""
    again: str = ""
    mark: str = _ANY_MARK
    guards_turns: bool = True

    def __post_init__(self) -> None:
        for name, needed in _NEEDED.items():
            template = getattr(self, name)
            if name in _OPTIONAL and not template:
                continue
            found = _slots(template)
            if unpaired := _find_unpaired(template):
                raise SettingsError(
                    f"the {name} template has {unpaired!r}: a doubled brace stands for one and needs its "
                    "counterpart; double both, as in {{word}}, or put a space between single ones"
                )
            if missing := needed - found:
                raise SettingsError(f"the {name} template lacks {_brace(missing)}")
            if unknown := found - needed - {_MARK}:
                raise SettingsError(
                    f"the {name} template has unknown {_brace(unknown)}: its slots are "
                    f"{_brace(needed | {_MARK})}; write {{{{word}}}} for a literal {{word}}"
                )
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
    def optional(self) -> frozenset[str]:
        """The names of the templates there are that only some workflows have."""
        return frozenset(name for name in _OPTIONAL if getattr(self, name))

    @property
    def fingerprint(self) -> str:
        """A digest of all templates (16 hex digits)."""
        table = {name: text for name in keys() if (text := getattr(self, name)) or name not in _OPTIONAL}
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]

    @property
    def bare_text(self) -> str:
        """The longest of the prompts with its slots empty, for counting the fixed tokens."""
        templates = (self.update, self.answer, *(getattr(self, name) for name in _OPTIONAL))
        longest = max(map(self._mark, templates), key=len)
        return self.system + _SLOT.sub("", longest) + self.empty_memory

    def for_update(self, problem: str, chunk: str, memory: str) -> tuple[Message, ...]:
        """The conversation that reads a chunk."""
        return self._fill(self.update, problem=problem, chunk=chunk, memory=memory)

    def for_note(self, problem: str, chunk: str) -> tuple[Message, ...]:
        """The conversation that takes a note on a chunk."""
        return self._fill(self.note, problem=problem, chunk=chunk)

    def for_verdict(self, problem: str, chunk: str, known: str = "") -> tuple[Message, ...]:
        """The conversation that asks whether a chunk helps with a problem, beside what is `known`."""
        if known:
            return self._fill(self.further, problem=problem, chunk=chunk, memory=known)
        return self._fill(self.verdict, problem=problem, chunk=chunk)

    def for_merge(self, problem: str, notes: str, memory: str) -> tuple[Message, ...]:
        """The conversation that merges notes into the memory."""
        return self._fill(self.merge, problem=problem, chunk=notes, memory=memory)

    def for_gap(self, problem: str, memory: str) -> tuple[Message, ...]:
        """The conversation that asks what the memory lacks."""
        return self._fill(self.gap, problem=problem, memory=memory)

    def for_again(self, problem: str, chunk: str, memory: str, question: str) -> tuple[Message, ...]:
        """The conversation that reads a chunk again, for a question."""
        return self._fill(self.again, problem=problem, chunk=chunk, memory=memory, question=question)

    def for_answer(self, problem: str, memory: str) -> tuple[Message, ...]:
        """The conversation that answers from the memory."""
        return self._fill(self.answer, problem=problem, memory=memory)

    def for_doubt(self, problem: str, memory: str) -> tuple[Message, ...]:
        """The conversation that answers from a memory that may not hold the answer."""
        return self._fill(self.doubt, problem=problem, memory=memory)

    def for_check(self, problem: str, memory: str, reply: str) -> tuple[Message, ...]:
        """The conversation that asks whether a reply is a memory, or says that nothing changes."""
        return self._fill(self.check, problem=problem, memory=memory, reply=reply)

    def neutralise(self, text: str) -> str:
        """`text` with nothing left that could pass for the prompt's own structure: see `guard`."""
        return self._guard.neutralise(text)

    def restore(self, text: str) -> str:
        """Undo `neutralise`, for replies that quote what they were shown."""
        return self._guard.restore(text)

    @cached_property
    def tags(self) -> frozenset[str]:
        """The names of the tags in the templates."""
        names = ("system", *_NEEDED)
        text = "".join(self._mark(getattr(self, name)) for name in names)
        return frozenset(map(fold, _TAG.findall(text)))

    @cached_property
    def _guard(self) -> Guard:
        unmarked = tuple(sorted(name for name in self.tags if self.mark not in name))
        return Guard(unmarked, self.mark, self.guards_turns)

    def _mark(self, template: str) -> str:
        return template.replace(f"{{{_MARK}}}", self.mark)

    def _fill(self, template: str, **values: str) -> tuple[Message, ...]:
        safe = {name: self.neutralise(value) for name, value in values.items()}
        if "memory" in safe:
            safe["memory"] = safe["memory"] or self.empty_memory
        safe[_MARK] = self.mark

        def put(slot: re.Match[str]) -> str:
            name = slot.group(1)
            return safe[name] if name else slot.group(0)[0]

        user = Message("user", _SLOT.sub(put, template))
        return (Message("system", self.system), user) if self.system else (user,)


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
    first = next((it for it in opened if it.group() == "{{"), None)
    return template[: first.end()][-_SHOWN_CHARACTERS:] if first else ""


def keys() -> list[str]:
    """The keys of a template file."""
    return [field.name for field in fields(Prompts) if field.name not in _NOT_IN_FILES]


def _brace(names: set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))
