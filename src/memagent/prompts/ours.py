"""The prompts of our own workflows.

What most conversations share comes first, and the problem comes after the chunk. Servers with a prefix cache,
and training, therefore compute the instructions once for all documents, and a chunk once for all questions
about it and all attempts of a training group.
"""

from __future__ import annotations

from dataclasses import replace

from memagent.prompts.templates import ENOUGH, MEMORY, NOT_THERE, UNCHANGED, Prompts, sections

OPENING = "You read a long document piece by piece. Of what you have read, only your memory remains.\n\n"

REWRITE = f"""\
If the chunk gives nothing that helps to solve the problem, reply with the one word {UNCHANGED}. \
Otherwise write the word {MEMORY} on the first line, alone, and below it the memory anew, so that the \
problem can later be solved from it without the document: keep what it already holds for that, add what \
the chunk gives, and copy names, numbers and quotations exactly."""
"""Asks to rewrite a memory or leave it alone, in workflows whose replies are marked."""

SECTIONS = f"\n{sections(chunk='chunk', problem='problem', memory='memory')}\n"

UPDATE = OPENING + REWRITE + "\n" + SECTIONS + f"{UNCHANGED}, or {MEMORY} and the new memory:\n"
"""How a chunk is read into a memory by workflows whose replies are marked."""

ANSWER = f"""\
You have read a long document piece by piece. All that remains of it is your memory. Answer the problem \
from the memory, in as few words as it needs. If the memory does not hold the answer, say so.

{sections(problem="problem", memory="memory")}
The answer:
"""

MERGE = f"""\
Notes were taken on a long document, piece by piece. Bring what they add into the memory.

If the notes give nothing that the memory lacks, reply with the one word {UNCHANGED}. Otherwise write \
the word {MEMORY} on the first line, alone, and below it the memory anew, so that the problem can later be \
solved from it without the document: keep what it already holds for that, add what the notes give, say \
nothing twice, and copy names, numbers and quotations exactly.

{sections(notes="chunk", problem="problem", memory="memory")}
{UNCHANGED}, or {MEMORY} and the new memory:
"""
"""How notes are merged into a memory, in workflows that gather them."""

NO_UPDATE = "{problem}{chunk}{memory}"
"""The update template of workflows that have no updates."""

CLOSING = """\
Answer the problem from the {source}, in as few words as it needs. If the {source} does not hold the \
answer, say so.
"""
"""Asks for the answer in workflows without a memory; the wording is the others', so that none has an edge."""

WHOLE = sections(document="memory", problem="problem") + "\n" + CLOSING.format(source="document")
"""How a whole document is asked about, which stands in the memory's slot."""

NOTE = f"""\
{sections(text="chunk")}
Write a short note of what the text says that helps to answer this question: {{problem}}
"""
"""Asks for a note on a chunk and offers no way out, because small models take any that is offered."""

VERDICT = f"""\
{sections(text="chunk")}
Does the text help to answer the question? Reply Yes or No.
Question: {{problem}}
"""
"""Asks for a verdict on a chunk; the question comes last, so that a cache computes the rest only once."""

FURTHER = (
    VERDICT
    + f"""\
What is known so far:
{sections(known="memory")}"""
)
"""The same with what is known so far, which may name what the question does not."""

_QUESTION = sections(document="memory") + "\nQuestion: {problem}\n"

_DOUBT = (
    _QUESTION
    + f"If the document does not answer it, reply: {NOT_THERE}. "
    + "Otherwise answer in as few words as it needs.\n"
)

AUTO = Prompts(
    update=NO_UPDATE,
    answer=_QUESTION + "Answer from the document, in as few words as it needs.\n",
    own={"note": NOTE, "verdict": VERDICT, "further": FURTHER, "doubt": _DOUBT},
    workflow="auto",
)
"""The answer is made from passages; over a whole document, `full`'s own words are asked instead."""

NOTES = replace(AUTO, own={"note": NOTE, "doubt": _DOUBT}, workflow="notes")

OVERWRITE = Prompts(
    update=OPENING
    + """\
Write the memory anew, so that the problem can later be solved from it without the document. Keep \
what the memory already holds for that, add what the chunk gives, and copy names, numbers and \
quotations exactly. Reply with the new memory and nothing else.
"""
    + SECTIONS
    + "The new memory:\n",
    answer=ANSWER,
    workflow="overwrite",
)

GATED = Prompts(
    update=OPENING
    + REWRITE
    + f" If the memory now holds all that the problem asks for, put the one word {ENOUGH} on a last line of "
    "its own.\n" + SECTIONS + f"{UNCHANGED}, or {MEMORY} and the new memory:\n",
    answer=ANSWER,
    workflow="gated",
    replies="marked",
    own={"note": NOTE},
)
