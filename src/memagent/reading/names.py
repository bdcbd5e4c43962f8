"""The names in a question, and which of them a text has.

A name is a number, a word with a capital, or a key such as `red-hen`: texts that say the same of different
things differ in them. What is compared are stems, within words too, whatever their case, accents and hyphens.
Only questions in English are understood: other languages give capitals to all nouns, or inflect names.
"""

from __future__ import annotations

import re

from memagent.reading.quotes import THOUSANDS, words
from memagent.reading.ranking import COMMON, stems
from memagent.text import SENTENCE_GAP, SOFT_HYPHEN, without_accents

_QUESTION_ENDS = ("?", '?"', "?”", "?)")
_ENGLISH = frozenset(words("the what which who whom whose when where why how does did"))
_TITLES = frozenset(words("mr mrs ms dr prof st"))
_WORD = re.compile(r"\w+(?:[-_]\w+)*")
_HYPHENS = str.maketrans({SOFT_HYPHEN: "", "\u2010": "-", "\u2011": "-"})
_JOINT = re.compile(r"(?<=\w)[-_](?=\w)")


def names_of(problem: str) -> frozenset[str]:
    """The names in the sentences of a problem that end with a question mark, their first words aside.

    None if it has none of the words that most English questions have.
    """
    sentences = (part for line in problem.splitlines() for part in SENTENCE_GAP.split(line.strip()))
    questions = [_WORD.findall(_plain(part)) for part in sentences if part.endswith(_QUESTION_ENDS)]
    if _ENGLISH.isdisjoint(word.lower() for question in questions for word in question):
        return frozenset()
    names = (word for question in questions for word in question[1:] if _is_name(word))
    return frozenset("".join(stems(_join(name))) for name in names) - COMMON - _TITLES


def seen_in(text: str, names: frozenset[str]) -> frozenset[str]:
    """Those of the names that a text has."""
    if not names:
        return names
    joined = _join(_plain(text)).lower()
    return frozenset(name for name in names if name in joined)


def lacks_a_name(text: str, problem: str) -> bool:
    """Whether a text lacks a name in a question."""
    names = names_of(problem)
    return seen_in(text, names) != names


def _is_name(word: str) -> bool:
    return len(word) > 1 and (word != word.lower() or not word.isalpha())


def _plain(text: str) -> str:
    """Without accents and commas between thousands, and with one kind of hyphen."""
    return without_accents(THOUSANDS.sub("", text.translate(_HYPHENS)))


def _join(text: str) -> str:
    return _JOINT.sub("", text)
