"""What a reply to an update means for the memory.

A reply that only talks about the memory, instead of being one, never replaces it: "the existing
answer remains relevant" in place of the answer is how refining readers lose what they had.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from memagent.prompts import ENOUGH, UNCHANGED

Verdict = tuple[str, bool]
"""The memory after the update, and whether the model said that it is enough."""

ReplyReader = Callable[[str, str], Verdict]
"""From a reply and the memory before it to the verdict."""

_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_NOTHING_NEW_WORDS = 60
_SUBJECT = (
    r"(?:memory|memories|answer|notes?|summary|response|information|context|text|chunk|section|passage"
    r"|piece|excerpt|document|update|content|it|this|there)"
)
_NOTHING_NEW = re.compile(
    rf"\b{_SUBJECT}\b.*\b(?:remains?|stays?|(?:is|are)(?: still| already)?|kept|keep) +(?:\w+ly +)?"
    r"(?:unchanged|the same|as (?:it )?(?:is|was)|relevant|valid|correct|sufficient|accurate|intact)\b"
    rf"|\bno +(?:new|relevant|additional|further|useful|other|more)?[\w ,]*"
    rf"\b(?:information|details?|content|evidence|updates?|changes?|mention)\b"
    rf"|\b{_SUBJECT}\b.*\b(?:does|do|did|is|are|was|has|need)(?:n't|n’t| not| no)\b.*"
    r"\b(?:contain|provide|mention|add|include|offer|need|require|relevant|related|helpful|necessary"
    r"|change|changed|give|refine|refinement|updated?)\b"
    rf"|\b(?:keep|leave|retain|return)(?:ing)?\b.*\b{_SUBJECT}\b.*\b(?:as|same|unchanged)\b",
    re.IGNORECASE,
)


def without_thought(reply: str) -> str:
    """The reply after a leading `<think>` block, which reasoning models put before it."""
    return _THOUGHT.sub("", reply).strip()


def read_rewrite(reply: str, memory: str) -> Verdict:
    """The reply is the new memory; one that is empty or says nothing new leaves the old one."""
    text = without_thought(reply)
    return (memory if _adds_nothing(text) else text), False


def read_gated(reply: str, memory: str) -> Verdict:
    """As `read_rewrite`, with the markers: UNCHANGED as the first line, ENOUGH as the last.

    An empty memory is never enough.
    """
    lines = without_thought(reply).splitlines() or [""]
    first, last, both = _bare(lines[0]), _bare(lines[-1]), f"{UNCHANGED} {ENOUGH}"
    text = "\n".join(lines[:-1] if last == ENOUGH else lines).strip()
    unchanged = first in (UNCHANGED, both) or _adds_nothing(text)
    after = memory if unchanged else text
    return after, bool(after) and (last == ENOUGH or first == both)


def _bare(line: str) -> str:
    """A line without the decoration that models put around a word."""
    return " ".join(re.sub(r"[^\w\s]|_", " ", line).split()).upper()


def _adds_nothing(text: str) -> bool:
    """Whether every sentence of a short text says that there is nothing to say."""
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]
    short = len(text.split()) <= _NOTHING_NEW_WORDS
    return short and all(_NOTHING_NEW.search(sentence) for sentence in sentences)
