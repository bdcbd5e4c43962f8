"""The prompts of the readers that memory is compared with, in our own words, each once.

They close as the memory readers' own do, so that no reader gains by how it is asked to answer.
"""

from __future__ import annotations

from memagent.prompts import UNCHANGED, Prompts

_FOR_NO_UPDATE = "{problem}{chunk}{memory}"  # these readers have none
_CLOSING = """\
Answer the problem from the {source}, in as few words as it needs. If the {source} does not hold the \
answer, say so.
"""

LEFT_OUT = "\n\n[…]\n\n"
"""Stands where a part of the document was left out."""

DOCUMENT = Prompts(
    update=_FOR_NO_UPDATE,
    answer="""\
<document>
{memory}
</document>

<problem>
{problem}
</problem>

"""
    + _CLOSING.format(source="document"),
)
"""`full`, `truncate`, `rag`: the document, or what is left of it, stands in the memory's slot."""

REFINE = Prompts(
    update="""\
You are answering a problem from a long document that is shown to you piece by piece.

<chunk>
{chunk}
</chunk>

<problem>
{problem}
</problem>

<answer>
{memory}
</answer>

The answer above is the best so far. If this chunk helps, write a better answer, keeping what is right in \
it; otherwise repeat it as it is. Reply with the answer and nothing else.
""",
    answer="{problem}{memory}",
    empty_memory="(no answer yet)",
)
"""`refine`: the answer so far stands in the memory's slot, and the last one is the answer."""

MAP_REDUCE = Prompts(
    update=f"""\
A long document was cut into chunks, and notes are made on each. This is one of them.

<chunk>
{{chunk}}
</chunk>

<problem>
{{problem}}
</problem>

<notes>
{{memory}}
</notes>

Write down everything in this chunk that helps to solve the problem, after the notes that are already \
there, and copy names, numbers and quotations exactly. Reply with the notes and nothing else; if there is \
nothing to add, reply with the one word {UNCHANGED}.
""",
    answer="""\
Notes were made on the chunks of a long document, each without sight of the others. These are all of them, \
in order.

<notes>
{memory}
</notes>

<problem>
{problem}
</problem>

"""
    + _CLOSING.format(source="notes"),
    empty_memory="(none)",
)
"""`map_reduce`: notes on each chunk alone, also on notes that are too many, then an answer from them."""
