"""A model that reads without error: it finds what a prompt's problem leads to, in the prompt alone.

It understands one form of sentence and one form of problem, which a document must not contain by chance. It
is the same for all callers, knows no answers in advance, and has no memory. It cannot see that a statement
matters if its link to the problem is not in the prompt, so a late clue forces a reader to go back. It makes
no mistakes as real models do, so readers are not told apart by how many mistakes they provoke.
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
    """A sentence that the model understands."""
    entry = f"the {what} of {whose} is {value}, and two witnesses signed it."
    return f"The clerk of the harbour office entered in the ledger that {entry}"


def problem(*path: str, whose: str) -> str:
    """A question that the model understands: what is `path[0]` of `path[1]` of ... of `whose`?"""
    return f"What does the ledger give as {''.join(f'{what} of ' for what in path)}{whose}?"


def relevant(text: str) -> list[str]:
    """The statements in a prompt that its problem leads to, in order, each once.

    These are about those whom the problem names, or whom other relevant statements name, and tell something
    that the problem asks for. A statement whose link to the problem is not in the prompt is not found.
    """
    problems = _PROBLEM.findall(text)
    asked = {word for path, _ in problems for word in path.split(" of ") if word}
    stated = {
        statement[0]: statement for statement in _STATEMENT.finditer(text) if statement["what"] in asked
    }
    known = {whose for _, whose in problems}
    while more := {item["value"] for item in stated.values() if item["whose"] in known} - known:
        known |= more
    return [sentence for sentence, item in stated.items() if item["whose"] in known]


def first_gap(text: str) -> str:
    """The question for the first thing that the problem needs and the prompt does not state, if any."""
    stated = {(match["what"], match["whose"]): match["value"] for match in _STATEMENT.finditer(text)}
    for path, whose in _PROBLEM.findall(text):
        for what in reversed(path.removesuffix(" of ").split(" of ")):
            if (what, whose) not in stated:
                return problem(what, whose=whose)
            whose = stated[what, whose]
    return ""


def reply_to(prompt: str) -> str:
    """The model's reply: the statements that matter, word for word, in the requested form.

    If the prompt offers UNCHANGED: that word if the text adds nothing to the memory, else the marker MEMORY
    (or lines that begin with ADD) and what the prompt asks for: the memory with what is new, its next part
    with what is new, or only what is new. If the prompt offers ENOUGH or a question: a question for what is
    missing, or ENOUGH. Otherwise, for a memory, a note or an answer: all statements that matter.
    """
    facts = relevant(prompt)
    sections = {name: text for _, name, text in _SECTION.findall(prompt)}
    instructions = _SECTION.sub("", prompt)
    if "ENOUGH, or the question" in instructions:
        return first_gap(prompt) or "ENOUGH"
    if "UNCHANGED" not in instructions:
        return "\n".join(facts) or NOTHING
    sections.pop("problem", None)
    shown = sections.pop(next(iter(sections), ""), "")
    memory = "\n".join(sections.values())
    new = [item for item in facts if item in shown and item not in memory]
    if not new:
        return "UNCHANGED"
    if re.search("^ADD ", instructions, re.MULTILINE):
        return "\n".join(f'ADD "{fact}"' for fact in new)
    part = _NEXT_PART.search(memory)
    text_to_keep = (
        part[1] if part else "" if "leave out what the memory already holds" in instructions else memory
    )
    return "\n".join(["MEMORY", *(item for item in facts if item in text_to_keep), *new])
