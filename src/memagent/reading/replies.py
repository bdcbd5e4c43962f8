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

# A chat template may open the block itself, so that the reply has only its end.
_THOUGHT = re.compile(r"\A(?:\s*<think>.*?(?:</think>|\Z))+|\A.*?</think>", re.DOTALL)
_OPENING_TAG = re.compile(r"<(\w+)>")
_LABEL = re.compile(r"\A(?:(?:THE |NEW |UPDATED )*(?:MEMORY|REPLY|RESPONSE|ANSWER|OUTPUT|BOXED) (?:IS )?)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_NOTHING_NEW_WORDS, _NOTHING_NEW_CHARACTERS = 60, 600
_SUBJECT = (
    r"(?:memory|memories|answer|notes?|summary|response|information|context|text|chunk|section|passage"
    r"|piece|excerpt|document|update|content|it|this|there)"
)
_SAME_MEMORY = re.compile(
    r"\b(?:memory|memories|answer|notes|summary) (?:(?:still |already )?(?:remains?|stays?|is|are) "
    r"(?:\w+ly )?(?:unchanged|(?:the same|as (?:it )?(?:is|was))(?!:|\s+\w))|stands"
    r"|already \w+ (?:all|everything|enough))\b",
    re.IGNORECASE,
)
_KEPT = re.compile(
    rf"\b{_SUBJECT}\b.*\b(?:remains?|stays?|(?:is|are)(?: still| already)?|kept|keep) +(?:\w+ly +)?"
    r"(?:unchanged|the same|as (?:it )?(?:is|was)|relevant|valid|correct|sufficient|accurate|intact)\b"
    rf"|\b(?:keep|leave|retain|return)(?:ing)?\b.*\b{_SUBJECT}\b.*\b(?:as|same|unchanged)\b",
    re.IGNORECASE,
)
_NOTHING_FOUND = re.compile(
    r"\bno +(?:new|relevant|additional|further|useful|other|more)?[\w ,]*"
    r"\b(?:information|details?|content|evidence|updates?|changes?|mention)\b"
    rf"|\b{_SUBJECT}\b.*\b(?:does|do|did|is|are|was|has|need)(?:n't|n’t| not| no)\b.*"
    r"\b(?:contain|provide|mention|add|include|offer|need|require|relevant|related|helpful|useful"
    r"|necessary|change|changed|give|refine|refinement|updated?)\b"
    rf"|\b{_SUBJECT}\b.*\b(?:is|are|was|were|seems?|appears?)(?: \w+ly)? (?:unrelated|irrelevant)\b"
    r"|\b(?:nothing|none)\b.*\b(?:new|helps?|helpful|relevant|useful|related|needed)\b",
    re.IGNORECASE,
)
_NO_MEMORY = ("UNCHANGED", "NO CHANGE", "EMPTY", "")
_CONTRAST = re.compile(r"\bbut\b|;", re.IGNORECASE)
_FACT = re.compile(r"\d[\w.,]*\w|\d|(?<=[\s\"'“‘(:])[A-Z]\w+")


def without_thought(reply: str) -> str:
    """The reply after a leading `<think>` block, which reasoning models put before it."""
    return _THOUGHT.sub("", reply).strip()


def read_rewrite(reply: str, memory: str) -> Verdict:
    """The reply is the new memory; one that is empty or says nothing new leaves the old one."""
    text = _unwrapped(without_thought(reply))
    return (memory if _adds_nothing(text, memory) else text), False


def read_gated(reply: str, memory: str) -> Verdict:
    """As `read_rewrite`, with the markers: UNCHANGED as the first line, ENOUGH as the last.

    An empty memory is never enough.
    """
    lines = _unwrapped(without_thought(reply)).split("\n")
    worded = [number for number, line in enumerate(lines) if _bare(line)] or [0]
    first, last = (_bare("".join(lines[at : at + 1])) for at in (worded[0], worded[-1]))
    both = f"{UNCHANGED} {ENOUGH}"
    if last == ENOUGH:
        del lines[worded[-1]]
    text = _unwrapped("\n".join(lines))
    unchanged = _LABEL.sub("", first) in (UNCHANGED, both) or _adds_nothing(text, memory)
    after = memory if unchanged else text
    return after, bool(after) and (last == ENOUGH or first == both)


def _unwrapped(text: str) -> str:
    """The text without a tag around it all, such as the prompt's own."""
    text = text.strip()
    if opening := _OPENING_TAG.match(text):
        inside, closing, after = text[opening.end() :].partition(f"</{opening.group(1)}>")
        if closing and not after:
            return inside.strip()
    return text


def _bare(line: str) -> str:
    """A line without the decoration that models put around a word."""
    return " ".join(re.sub(r"[^\w\s]|_", " ", line).split()).upper()


def _adds_nothing(text: str, memory: str) -> bool:
    """Whether a short text is no memory, or each of its sentences says that there is nothing to say."""
    if _LABEL.sub("", _bare(text)) in _NO_MEMORY:
        return True
    if len(text) > _NOTHING_NEW_CHARACTERS or len(text.split()) > _NOTHING_NEW_WORDS:
        return False
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if _bare(sentence)]
    return all(_is_idle(sentence, memory) for sentence in sentences)


def _is_idle(sentence: str, memory: str) -> bool:
    """Whether a sentence says that nothing was found or changed, and no name or number of its own.

    What was not found is named in passing ("no mention of Alice"): it counts only after a "but".
    """
    if _SAME_MEMORY.search(sentence):
        return True
    if _KEPT.search(sentence):
        said = sentence
    elif _NOTHING_FOUND.search(sentence):
        said = " ".join(_CONTRAST.split(sentence)[1:])
    else:
        return False
    return all(fact.lower() in memory.lower() for fact in _FACT.findall(said))
