"""A model that reads without fault: it finds what a prompt's problem leads to, in the prompt alone.

It understands sentences of one form and problems of one form, which a document must not hold by chance. It
is the same for all who ask, knows no answer beforehand, and has no memory. What it cannot do is see that a
statement matters whose link to the problem is not in the prompt: so a clue that comes late sends one back.
Leaves out a real model's mistakes: none of the readers is told apart by how many of them it invites.
"""

from __future__ import annotations

import re

NOTHING = "The text says nothing about it."
_STATEMENT = re.compile(
    r"The clerk of the harbour office entered in the ledger that the (?P<what>\w+) of (?P<whose>[A-Z]\w+) "
    r"is (?P<value>\w+), and two witnesses signed it\."
)
_PROBLEM = re.compile(r"What does the ledger give as ((?:\w+ of )+)([A-Z]\w+)\?")
_SECTION = re.compile(r"<((\w+)-\w+)>\n(.*?)\n</\1>", re.DOTALL)
_NEXT_PART = re.compile(r"\[part \d+ of \d+, next\]\n(.*?)(?=\n\n\[part |\Z)", re.DOTALL)


def statement(what: str, whose: str, value: str) -> str:
    """A sentence of the kind that the model understands."""
    entry = f"the {what} of {whose} is {value}, and two witnesses signed it."
    return f"The clerk of the harbour office entered in the ledger that {entry}"


def problem(*path: str, whose: str) -> str:
    """A question that the model understands: what is `path[0]` of `path[1]` of ... of `whose`?"""
    return f"What does the ledger give as {''.join(f'{what} of ' for what in path)}{whose}?"


def relevant(text: str) -> list[str]:
    """The statements in a prompt that its problem leads to, in order, each once.

    Those about whom a problem names, and then about whom these name, as far as the problem asks for what they
    tell. A statement whose link to the problem is not in the prompt is not seen to matter.
    """
    problems = _PROBLEM.findall(text)
    asked = {word for path, _ in problems for word in path.split(" of ") if word}
    stated = {found[0]: found for found in _STATEMENT.finditer(text) if found["what"] in asked}
    known = {whose for _, whose in problems}
    while more := {it["value"] for it in stated.values() if it["whose"] in known} - known:
        known |= more
    return [sentence for sentence, it in stated.items() if it["whose"] in known]


def first_gap(text: str) -> str:
    """The question for the first thing that the problem leads to and the prompt does not state, if any."""
    stated = {(it["what"], it["whose"]): it["value"] for it in _STATEMENT.finditer(text)}
    for path, whose in _PROBLEM.findall(text):
        for what in reversed(path.removesuffix(" of ").split(" of ")):
            if (what, whose) not in stated:
                return problem(what, whose=whose)
            whose = stated[what, whose]
    return ""


def reply_to(prompt: str) -> str:
    """What the model replies: the statements that matter, word for word, in the form that is asked for.

    Where the prompt offers UNCHANGED as a reply: that word if the text that is read has nothing which the
    memory lacks, else the marker MEMORY (or lines that begin with ADD) and what the prompt asks for: the
    memory with what is new, the part of it that is its turn, or what is new alone. Where the prompt offers
    ENOUGH or a question: a question for what is missing. Everywhere else: all statements that matter, be it a
    memory, a note, an answer to be refined or the last one.
    """
    found = relevant(prompt)
    sections = {name: text for _, name, text in _SECTION.findall(prompt)}
    told = _SECTION.sub("", prompt)
    if "ENOUGH, or the question" in told:
        return first_gap(prompt) or "ENOUGH"
    if "UNCHANGED" not in told:
        return "\n".join(found) or NOTHING
    sections.pop("problem", None)
    shown = sections.pop(next(iter(sections), ""), "")
    memory = "\n".join(sections.values())
    new = [it for it in found if it in shown and it not in memory]
    if not new:
        return "UNCHANGED"
    if re.search("^ADD ", told, re.MULTILINE):
        return "\n".join(f'ADD "{it}"' for it in new)
    part = _NEXT_PART.search(memory)
    kept = part[1] if part else "" if "leave out what the memory already holds" in told else memory
    return "\n".join(["MEMORY", *(it for it in found if it in kept), *new])
