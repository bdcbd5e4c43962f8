"""What a reply to an update changes in the memory.

Only the markers that the prompt asked for decide that. A reply that they do not explain is never thrown away:
if it would drop most of the memory, one more question settles what it is, and if that fails, both are kept.
A reply that holds nothing of what its marker announces, or repeats the prompt, changes nothing: the model is
asked once more, for a note. No function here guesses from the words of any language.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from memagent.prompts import ENOUGH, MEMORY, NOT_THERE, UNCHANGED, Prompts
from memagent.prompts.guard import fold
from memagent.prompts.thoughts import without_thought
from memagent.reading.quotes import words
from memagent.reading.ranking import stems, telling
from memagent.types import Conversation

_FENCED = re.compile(r"```[\w-]*\n((?:(?!```).)*?)\n?```", re.DOTALL)
_OPENING_TAG = re.compile(r"<([^\s<>/]+)>")
_MARKED = re.compile(rf"(?:[^\w\n]*\n)*[^\w\n]*{MEMORY}(?:[^\w\n]*(?:\n|\Z)|:[*_ \t]*)")
_SHORT_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """What a reply does to the memory: `keep` it, `replace` it with `text`, or, if neither is certain, `ask`.

    With `note`, the reply is of no use, and a note on the chunk is still to be asked for. `text` is the
    memory that the reply would make. `enough` is whether the model said that it needs no more, `refused` how
    many of the reply's passages were not accepted, `given_up` how many passages the memory has no room for.
    """

    action: Literal["keep", "replace", "ask", "note"]
    text: str = ""
    enough: bool = False
    refused: int = 0
    given_up: int = 0

    def memory_after(self, memory: str) -> str:
        """The memory after the update, if nothing is asked: an unexplained reply counts as the new one."""
        return memory if self.action in ("keep", "note") else self.text


ReplyReader = Callable[[str, str, Prompts], MemoryChange | Awaitable[MemoryChange]]
"""Makes the change from a reply as the model wrote it, the memory before it and the prompts; awaited if that
takes time."""


def read_overwrite(reply: str, memory: str, prompts: Prompts) -> MemoryChange:  # noqa: ARG001 - a ReplyReader
    """As published: a reply that is not empty is the new memory. Never asks.

    The placeholder of an empty memory, repeated, makes an empty one, which looks the same in the next prompt.
    """
    text = prompts.restore(without_thought(reply))
    if text == prompts.empty_memory:
        return MemoryChange("replace", "")
    return MemoryChange("replace", text) if text else MemoryChange("keep")


def read_gated(reply: str, memory: str, prompts: Prompts) -> MemoryChange:
    """Read a reply by its markers. An empty memory is never enough.

    A reply without MEMORY, or with only a short text after it, is doubtful if it goes on after UNCHANGED or
    would drop most of the memory. The change is then `ask`, but only if `prompts.asks`: in training it
    does not, so that the markers alone decide.
    """
    change = _by_markers(_unwrap(without_thought(reply), prompts.tags), prompts)
    change = replace(change, text=prompts.restore(change.text))
    if not memory and change.action == "ask":
        change = replace(change, action="replace" if change.text else "keep")
    contradicted = _bare(change.text.partition("\n")[0]) == UNCHANGED
    doubtful = contradicted or _drops_most(change.text, memory)
    if change.action == "ask" and not (prompts.asks and doubtful):
        change = replace(change, action="replace")
    return replace(change, enough=change.enough and bool(change.memory_after(memory)))


def read_plain_note(note: str, memory: str, problem: str, text: str) -> MemoryChange:
    """Read a note on a text that was asked for without a way out: it may say nothing to the purpose.

    It is added below the memory if most of its own words stand in the text, some of them are new to the
    memory, and the text has words of the problem.
    """
    problem_words, text_words = telling(problem), frozenset(stems(text))
    own_words = telling(note) - problem_words
    supported = own_words & text_words
    stands = len(supported) * 2 >= len(own_words) and bool(supported - telling(memory))
    if not stands or (problem_words and not problem_words & text_words):
        return MemoryChange("keep")
    return MemoryChange("replace", f"{memory}\n{note}".strip())


def read_note(reply: str, memory: str, prompts: Prompts) -> MemoryChange:
    """A note on a chunk, added below `memory`, the notes on it so far. Never asks: nothing is dropped."""
    change = read_gated(reply, "", prompts)
    if change.action == "note":
        return change
    note = change.text
    return MemoryChange("replace", f"{memory}\n{note}".strip()) if note else MemoryChange("keep")


def read_answer(last: Conversation, prompts: Prompts) -> str:
    """The answer of a read by its last conversation: if that is an update, its memory. Empty for none."""
    if last.kind == "update":
        return last.memory
    answer = prompts.restore(without_thought(last.completion.text))
    return "" if "doubt" in prompts.own and is_declined(answer) else answer


def is_declined(reply: str) -> bool:
    """Whether a reply says that what was asked for is not there."""
    return reply.strip().lower().startswith(NOT_THERE)


def read_gap(reply: str, prompts: Prompts) -> str:
    """The question that a reply to the template `gap` asks; empty if it says that the memory is enough."""
    text, enough = _without_enough(_unwrap(without_thought(reply), prompts.tags))
    return "" if enough else prompts.restore(" ".join(text.split()))


def read_check(reply: str) -> Literal["keep", "replace", "ask"]:
    """The answer to the template `check`; `ask` if it has neither of the two words, or both."""
    reply_words = set(re.findall(r"\w+", without_thought(reply).upper()))
    if MEMORY in reply_words and UNCHANGED not in reply_words:
        return "replace"
    return "keep" if UNCHANGED in reply_words and MEMORY not in reply_words else "ask"


def settle(change: MemoryChange, check: str, memory: str, fits: Callable[[str], bool]) -> MemoryChange:
    """The change once the model has replied `check` to the question what its reply was. Never `ask`.

    If that settles nothing either, the memory stays, followed by as much of the reply as `fits`.
    """
    action = read_check(check)
    if action != "ask":
        return replace(change, action=action)
    lines = change.text.split("\n")

    def both(count: int) -> str:
        return "\n".join([memory, *lines[:count]])

    fit = bisect_left(range(1, len(lines) + 1), True, key=lambda count: not fits(both(count)))
    return replace(change, action="replace", text=both(fit))


def _by_markers(text: str, prompts: Prompts) -> MemoryChange:
    """The change by the markers alone, each on a line of its own: UNCHANGED or MEMORY first, ENOUGH last."""
    enough = False
    if ENOUGH in prompts.update:
        text, enough = _without_enough(text)
        text = _unwrap(text, prompts.tags)  # ENOUGH may stand behind a code fence
    marked = prompts.replies == "marked"
    marker = _MARKED.match(text) if marked else None
    body = _unwrap(text[marker.end() :] if marker else text, prompts.tags)
    if _bare(body) == UNCHANGED:
        return MemoryChange("keep", "", enough)
    if (
        not enough
        and prompts.asks
        and "note" in prompts.own
        and (not body or _echoes(body, marker is not None, prompts))
    ):
        return MemoryChange("note")
    if body in ("", prompts.empty_memory):
        return MemoryChange("keep", "", enough)
    explained = marker is not None and len(body) > _SHORT_CHARACTERS
    return MemoryChange("replace" if explained else "ask", body, enough)


def _echoes(text: str, marked: bool, prompts: Prompts) -> bool:
    """Whether a reply only repeats the placeholder of an empty memory, or words of the prompt's own.

    One such word below a marker may be meant.
    """
    bare = _bare(text)
    repeated = f" {bare} " in f" {_bare(prompts.update, most=None)} "
    return text == prompts.empty_memory or (repeated and not (marked and " " not in bare))


def _without_enough(text: str) -> tuple[str, bool]:
    """The text without its last line, if that is ENOUGH alone, and whether it was."""
    bare = text.rstrip("`~>*_ \t\r\n")
    before, _, last = bare.rpartition("\n")
    if _bare(last) == ENOUGH:
        return before.strip(), True
    if _bare(text) == f"{UNCHANGED} {ENOUGH}":
        return UNCHANGED, True
    return text, False


def _unwrap(text: str, tags: frozenset[str]) -> str:
    """The text without a code fence around it, or an enclosing tag of the prompt's own."""
    text = text.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1].strip()
    opening = _OPENING_TAG.match(text)
    if opening and fold(opening.group(1)) in tags:
        inside, closing, after = text[opening.end() :].partition(f"</{opening.group(1)}>")
        if closing and not after:
            return inside.strip()
    return text


def _bare(line: str, most: int | None = _SHORT_CHARACTERS) -> str:
    """A line without the decoration that models put around a word; one of over `most` characters as it is."""
    if most is not None and len(line) > most:
        return line
    return " ".join(re.sub(r"[^\w\s]|_", " ", line.replace("\\boxed", "")).split()).upper()


def _drops_most(text: str, memory: str) -> bool:
    """Whether fewer than half of the memory's words occur in the text, in any language."""
    before = set(words(memory))
    return len(before.intersection(words(text))) * 2 < len(before)
