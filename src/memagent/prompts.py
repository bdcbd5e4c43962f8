"""Every prompt, once; and how untrusted text is put into one.

A template has slots `{problem}`, `{chunk}` and `{memory}`; `{{` and `}}` are literal braces. Slots
are filled in one pass, so a slot that stands in a document stays text. The prompts are our own;
`load_prompts` reads replacements, which published checkpoints need: each was trained on its own.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path

from memagent.errors import SettingsError
from memagent.types import Message

UNCHANGED = "UNCHANGED"
ENOUGH = "ENOUGH"

_SLOT = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_TAG = re.compile(r"</?\s*([^\W\d_][\w.:-]*)(?:\s[^<>]*)?>")
_NEEDED = {"update": {"problem", "chunk", "memory"}, "answer": {"problem", "memory"}}

# What chat templates use to open and close turns, beside the likes of `<|im_start|>` and `<turn|>`.
_CHAT_TAGS = ("s", "bos", "eos", "pad", "unk", "start_of_turn", "end_of_turn", "think")
_CHAT_WORDS = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK"
# Brackets, bars and slashes, each with the other shapes that a model takes for the same.
_LEFT, _RIGHT, _BAR, _SLASH = "[<＜﹤]", "[>＞﹥]", "[|｜]", r"/\\／⁄∕"
# Characters without a width, which hide in a word.
_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2064\u206a-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0100-\U000e01ef"
)
# Controls that no reader needs: C0 and C1 but tab and line ends; and what shows a person something
# else than it shows the model: bidirectional overrides, and tags, which are invisible letters.
_CONTROLS = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
_PAGE_ENDS = re.compile("[\x0b\x0c]")
_ASCII_CONTROLS = dict.fromkeys((*range(9), *range(14, 32), 127)) | {11: "\n", 12: "\n"}
_SURROGATES = re.compile("[\ud800-\udfff]")  # cannot be sent at all


@dataclass(frozen=True)
class Prompts:
    """The templates of one workflow.

    `update` is asked at each chunk, `answer` at the end; `system`, if not empty, precedes both.
    `empty_memory` stands in the memory's place before anything was kept.
    """

    update: str
    answer: str
    system: str = ""
    empty_memory: str = "(empty)"

    def __post_init__(self) -> None:
        for name, needed in _NEEDED.items():
            found = {slot for slot in _SLOT.findall(getattr(self, name)) if slot}
            if missing := needed - found:
                raise SettingsError(f"the {name} template lacks {_braced(missing)}")
            if unknown := found - needed:
                raise SettingsError(
                    f"the {name} template has unknown {_braced(unknown)}: its slots are "
                    f"{_braced(needed)}; write {{{{word}}}} for a literal {{word}}"
                )

    @property
    def fingerprint(self) -> str:
        """A digest of all templates (16 hex digits)."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]

    @property
    def bare_text(self) -> str:
        """The longer of the two prompts with its slots empty, for counting the fixed tokens."""
        longer = max(self.update, self.answer, key=len)
        return self.system + _SLOT.sub("", longer) + self.empty_memory

    def for_update(self, problem: str, chunk: str, memory: str) -> tuple[Message, ...]:
        """The conversation that reads a chunk."""
        return self._fill(self.update, {"problem": problem, "chunk": chunk, "memory": memory})

    def for_answer(self, problem: str, memory: str) -> tuple[Message, ...]:
        """The conversation that answers from the memory."""
        return self._fill(self.answer, {"problem": problem, "memory": memory})

    def _fill(self, template: str, values: Mapping[str, str]) -> tuple[Message, ...]:
        safe = {name: self.neutralise(value) for name, value in values.items()}
        safe["memory"] = safe["memory"] or self.empty_memory

        def put(slot: re.Match[str]) -> str:
            name = slot.group(1)
            return safe[name] if name else slot.group(0)[0]

        user = Message("user", _SLOT.sub(put, template))
        return (Message("system", self.system), user) if self.system else (user,)

    def neutralise(self, text: str) -> str:
        """`text` with nothing left that could pass for the prompt's own structure.

        The bracket of a tag that this prompt uses, or that chat templates use for turns, becomes
        `‹`, a look-alike that closes nothing; unprintable controls are dropped. The rest stays.
        """
        if text.isascii() and "<" not in text and "[" not in text:
            return text.translate(_ASCII_CONTROLS)  # the same, many times as fast
        text = _SURROGATES.sub("\ufffd", _PAGE_ENDS.sub("\n", _CONTROLS.sub("", text)))
        return self._structure.sub(lambda tag: "‹" + tag.group()[1:], text)

    @cached_property
    def _structure(self) -> re.Pattern[str]:
        """The brackets to replace. All repeats are possessive: no text makes the search slow."""
        own = {name.lower() for name in _TAG.findall(self.system + self.update + self.answer)}
        ours, chats = _any_spelling(own), _any_spelling(_CHAT_TAGS)
        hidden, blank, blank_or_slash = f"[{_HIDDEN}]*+", rf"[\s{_HIDDEN}]*+", rf"[\s{_HIDDEN}{_SLASH}]*+"
        closing = rf"{blank}[{_SLASH}]{blank_or_slash}{ours}(?![\w-])"
        opening = rf"{blank}{ours}(?:{blank_or_slash}|\s[^<>＜＞﹤﹥]*+){_RIGHT}"
        turn = rf"{hidden}(?:[{_SLASH}]{hidden})?{chats}{hidden}{_RIGHT}"
        barred = rf"{hidden}{_BAR}{hidden}[^\s>]|\w++{_BAR}{_RIGHT}"
        return re.compile(
            rf"{_LEFT}(?={closing}|{opening}|{turn}|{barred}|</?SYS>)|\[(?=/?(?:{_CHAT_WORDS})\])",
            re.IGNORECASE,
        )


def _any_spelling(names: Iterable[str]) -> str:
    """A pattern for the names, also in full-width letters or with hidden characters between."""
    between = f"[{_HIDDEN}]*+"
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    return f"(?:{'|'.join(between.join(map(_letter, name)) for name in longest_first) or '(?!)'})"


def _letter(character: str) -> str:
    wide = chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else ""
    return f"[{re.escape(character)}{wide}]"


def load_prompts(path: str | Path) -> Prompts:
    """Templates from a TOML file with the keys `update`, `answer`, and if wanted `system`, `empty_memory`.

    A file is read again only once it has changed: training loads it for every attempt. Raises
    `SettingsError`, naming the file, for a file, key or slot that is missing or unknown.
    """
    try:
        stat = Path(path).stat()
    except (OSError, ValueError) as error:
        raise SettingsError(f"the template file {path} cannot be read: {error}") from error
    return _load(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _load(path: str | Path, _changed_ns: int, _size: int) -> Prompts:
    try:
        table = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # TOML errors are ValueErrors
        raise SettingsError(f"the template file {path} cannot be read: {error}") from error
    known = {field.name for field in fields(Prompts)}
    if unknown := table.keys() - known:
        raise SettingsError(f"{path}: unknown key {min(unknown)!r}; known: {', '.join(sorted(known))}")
    for name in ("update", "answer"):
        if name not in table:
            raise SettingsError(f"{path}: the key {name!r} is missing")
    for name, value in table.items():
        if not isinstance(value, str):
            raise SettingsError(f"{path}: {name} must be text, not {type(value).__name__}")
    try:
        return Prompts(**table)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _braced(names: set[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names))


# What is the same for most conversations comes first, and the problem after the chunk: the instructions are
# read once for all chunks, and a chunk once for all questions about it and all attempts of a training
# group, by servers with a prefix cache and by training.
_OPENING = "You read a long document piece by piece. Of what you have read, only your memory remains.\n\n"

_SECTIONS = """\

<chunk>
{chunk}
</chunk>

<problem>
{problem}
</problem>

<memory>
{memory}
</memory>

"""

_ANSWER = """\
You have read a long document piece by piece. All that remains of it is your memory. Answer the problem \
from the memory, in as few words as it needs. If the memory does not hold the answer, say so.

<problem>
{problem}
</problem>

<memory>
{memory}
</memory>

The answer:
"""

NO_UPDATE = "{problem}{chunk}{memory}"
"""The update of workflows that have none."""

CLOSING = """\
Answer the problem from the {source}, in as few words as it needs. If the {source} does not hold the \
answer, say so.
"""
"""How the workflows without a memory close: as those with one do, so that none gains by how it is asked."""

OVERWRITE = Prompts(
    update=_OPENING
    + """\
Write the memory anew, so that the problem can later be solved from it without the document. Keep \
what the memory already holds for that, add what the chunk gives, and copy names, numbers and \
quotations exactly. Reply with the new memory and nothing else.
"""
    + _SECTIONS
    + "The new memory:\n",
    answer=_ANSWER,
)

GATED = Prompts(
    update=_OPENING
    + f"""\
If the chunk gives nothing that helps to solve the problem, reply with the one word {UNCHANGED}. \
Otherwise write the memory anew, so that the problem can later be solved from it without the \
document: keep what it already holds for that, add what the chunk gives, and copy names, numbers \
and quotations exactly. Reply with the new memory and nothing else; if it now holds all that the \
problem asks for, put the one word {ENOUGH} on a last line of its own.
"""
    + _SECTIONS
    + f"The new memory, or {UNCHANGED}:\n",
    answer=_ANSWER,
)
