"""Whether a text says a statement, and where: all its words, in order, with no others between them.

What hardly changes the meaning may differ: case, white space, punctuation within a sentence, soft hyphens,
articles; and a comma or colon may stand where the statement has *is* or *was*. Numbers keep their signs,
symbols and units. Paraphrases are not recognised. Time grows linearly with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from unicodedata import category

from memagent.documents.tokens import UNSPACED
from memagent.text import SOFT_HYPHEN

_MINUS, _MONEY = "\\-\u2212\u2013", "$\u00a2-\u00a5\u20a0-\u20bf"
_QUIET = r".,:;!?…'\"()\[\]{}«»“”‘’„‚‹›*_`|\-\u2010-\u2015•·。、，；：！？「」『』（）"
"""Punctuation that has no meaning of its own."""

_TOKEN = re.compile(
    rf"(?P<number>(?:(?<![\w)\]%°{_MONEY}])[{_MINUS}±](?=[{_MONEY}.\d]))?(?:[{_MONEY}]\s?[{_MINUS}]?)?"
    rf"(?:(?<![^\s(\[{_MONEY}{_MINUS}±])\.)?\d+(?:[.,/:\u00a0\u202f{_MINUS}]\d+)*"
    rf"(?:\s?[%‰°]|\s?[{_MONEY}](?!\s?\d))?)"
    rf"|[{UNSPACED}]|[^\W{UNSPACED}]+(?:{SOFT_HYPHEN}[^\W{UNSPACED}]+)*|[^\s\w{_QUIET}{SOFT_HYPHEN}]"
)
_PLAIN_WORD = re.compile(
    rf"[{UNSPACED}](?=([{UNSPACED}]?))|[^\W_{UNSPACED}]+(?:{SOFT_HYPHEN}[^\W_{UNSPACED}]+)*"
)
THOUSANDS = re.compile(r"(?<=\d)[,\u00a0\u202f](?=\d{3}(?!\d))")
"""What stands between the thousands of a number."""

_UNSPACED = re.compile(f"[{UNSPACED}]")
_HYPHENATED = re.compile(r"\w[-\u2010\u2011]\w")
_JOINING = set("/\\^×÷±+=~#&@")
_SYMBOL = re.compile(rf"[{_MONEY}%‰°]")
_END = re.compile(r"[.!?…][\"'”’»)\]]*\s|[。！？]|\n[^\S\n]*\n")
_ABBREVIATION = re.compile(r"[A-Z][a-z]{0,2}")  # Mr., St., No.

_ARTICLES = {"the", "a", "an"}
_COPULAS = {"is": "is", "are": "is", "was": "was", "were": "was"}
_TURNING = {
    "not", "no", "never", "neither", "nor", "without", "minus", "negative", "nicht", "nie", "kein", "keine",
    "keinen", "ohne", "pas", "jamais", "sans", "nunca", "jamás", "sin", "не", "нет", "без", "不", "没", "沒",
    "无", "無", "非", "未", "別", "别",
}  # fmt: skip
"""Words that reverse the meaning of what follows them."""

_DENYING = {
    "not", "no", "never", "nothing", "nobody", "none", "nicht", "nichts", "nie", "pas", "rien", "jamais",
}  # fmt: skip
"""Words that reverse the meaning of what comes before them."""

_MULTIPLYING = {
    "dozen", "hundred", "thousand", "million", "millions", "billion", "billions", "trillion", "percent", "k",
    "m", "bn", "mio", "mrd", "tausend", "millionen", "milliarden", "prozent",
    "十", "百", "千", "万", "萬", "亿", "億",
}  # fmt: skip
"""Words that change the value of the number before them."""


@dataclass(slots=True)
class _Words:
    """The words of a text in lower case, their spans, and what comes before each.

    That is "" for nothing, "pause" for punctuation, "is" or "was", or "end" for the end of a sentence.
    """

    words: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    numbers: list[bool] = field(default_factory=list)
    capitals: list[bool] = field(default_factory=list)
    positions: dict[str, list[int]] = field(default_factory=dict)

    def add(self, match: re.Match[str], before: str) -> None:
        """Add a word."""
        number = match.lastgroup == "number"
        word = _number(match.group()) if number else match.group().casefold().replace(SOFT_HYPHEN, "")
        self.positions.setdefault(word, []).append(len(self.words))
        self.words.append(word)
        self.spans.append(match.span())
        self.before.append(before)
        self.numbers.append(number)
        self.capitals.append(match.group()[0].isupper())


def words(text: str) -> Iterator[str]:
    """The words of a text in lower case; in scripts without spaces, each pair of adjacent characters."""
    return (word for word, _, _ in placed_words(text))


def placed_words(text: str) -> Iterator[tuple[str, int, int]]:
    """The same words, each with where it begins and ends in the text."""
    for match in _PLAIN_WORD.finditer(text):
        word = match.group() + (match.group(1) or "")
        yield word.lower().replace(SOFT_HYPHEN, ""), match.start(), match.start() + len(word)


def says(text: str, statement: str) -> bool:
    """Whether a text says a statement."""
    return find_span(statement, text) is not None


def find_span(statement: str, text: str) -> tuple[int, int] | None:
    """The span of a statement's words in a text, the first if there are several; None if there is none."""
    needle, haystack = _words_of(statement), _words_of_text(text)
    count = len(needle.words)
    if not count or any(word not in haystack.positions for word in needle.words):
        return None
    anchor = min(range(count), key=lambda number: len(haystack.positions[needle.words[number]]))
    for index in haystack.positions[needle.words[anchor]]:
        first = index - anchor
        if first < 0 or haystack.words[first] != needle.words[0]:
            continue
        if haystack.words[first : first + count] == needle.words and _agree(needle, haystack, first):
            start, end = haystack.spans[first][0], haystack.spans[first + count - 1][1]
            if not (_is_within_word(text, start) or _is_within_word(text, end)):
                return start, end
    return None


def is_telling(statement: str) -> bool:
    """Whether a statement says something by itself: several words, a number, a name, a non-ASCII word."""
    parsed = _words_of(statement)
    return len(parsed.words) > 1 or any(
        number or capital or not word.isascii()
        for word, number, capital in zip(parsed.words, parsed.numbers, parsed.capitals, strict=True)
    )


def _words_of(text: str) -> _Words:
    parsed, end, before, last = _Words(), 0, "", ""
    for match in _TOKEN.finditer(text):
        if match.start() > end + 1 or not text[end : match.start()].isspace():
            before = _stronger(before, _between(text, end, match.start(), last))
        last, end = match.group(), match.end()
        word = last.lower()
        if word in _COPULAS:
            before = _stronger(before, _COPULAS[word])
        elif word not in _ARTICLES or (last == "A" and parsed.words and before != "end"):
            parsed.add(match, before)
            before = ""
    return parsed


_words_of_text = lru_cache(maxsize=32)(_words_of)  # several statements are looked for in a text


def _between(text: str, start: int, end: int, last: str) -> str:
    """What separates two adjacent words, the first of which is `last`."""
    between = text[start:end]
    if not between or between.isspace():
        return "end" if between.count("\n") > 1 else ""
    ends = _END.search(between)
    if ends and not (ends.group()[0] == "." and _ABBREVIATION.fullmatch(last)):
        return "end"
    return "pause"


def _stronger(one: str, other: str) -> str:
    return max(one, other, key=("", "pause", "is", "was", "end").index)


def _number(text: str) -> str:
    """A number in a form that is the same for all its spellings: minus, digits, symbols."""
    symbols = "".join(sorted(_SYMBOL.findall(text)))
    digits = re.sub(rf"[{_MINUS}]", "-", "".join(_SYMBOL.sub("", text).split(" ")))
    return re.sub(r"(?<!\d)\.", "0.", THOUSANDS.sub("", digits.strip())) + symbols


def _agree(needle: _Words, haystack: _Words, first: int) -> bool:
    """Whether the same words mean the same, judging by what comes between, before and after them."""
    behind = first + len(needle.words)
    for number in range(1, len(needle.words)):
        one, other = needle.before[number], haystack.before[first + number]
        pair = {one, other}
        apposition = "pause" in pair and "end" not in pair and not haystack.capitals[first + number]
        if not (one == other or pair == {"", "pause"} or apposition):
            return False
    if (
        first
        and haystack.before[first] in ("", "is", "was")
        and _turns(haystack, first - 1, haystack.numbers[first])
    ):
        return False
    if behind < len(haystack.words) and haystack.before[behind] in ("", "is", "was"):
        word = haystack.words[behind]
        if word in _DENYING or (haystack.numbers[behind - 1] and word in _MULTIPLYING):
            return False
        return not _goes_on(haystack, behind)
    return True


def _is_within_word(text: str, index: int) -> bool:
    """Whether a word goes on at an index: across a hyphen, or a combining mark, such as a vowel of Hindi."""
    if not index:
        return False
    if _HYPHENATED.match(text, index - 1) or _HYPHENATED.match(text, index - 2):
        return True
    return "".join(category(character)[0] for character in text[index - 1 : index + 1]) in ("LM", "ML", "MM")


def _goes_on(parsed: _Words, index: int) -> bool:
    """Whether a word is part of a quantity or name that began before it: 5 mg/kg, 12B, 10^5, 5 ± 2, C++."""
    word, after_number = parsed.words[index], parsed.numbers[index - 1]
    adjacent = parsed.spans[index - 1][1] == parsed.spans[index][0]
    if word in _JOINING:
        return adjacent or after_number
    return adjacent and after_number and not _UNSPACED.match(word)


def _turns(parsed: _Words, index: int, number: bool) -> bool:
    """Whether a word reverses the meaning of what follows: "not", "isn't", or a sign before a number."""
    word = parsed.words[index]
    contracted = word == "t" and index > 0 and parsed.words[index - 1].endswith("n")
    return word in _TURNING or contracted or (number and not word[0].isalnum())
