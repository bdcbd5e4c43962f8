"""Find what is asked in one long text: by its tags, or else by signs of asking at its ends.

Signs are a label ("Question:"), a question mark, and English words that request or announce something.
Without any, the ends are taken as far as the budget goes: too much is better than a lost question. A document
can pose as a question, so this is only for chats that say no more. No model is asked: a small one, shown the
paragraphs at both ends by number, names the first one, whatever it says.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise, takewhile

from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, is_within
from memagent.reading.workflows.whole import LEFT_OUT
from memagent.types import TokenCounter

_MAX_HEAD_TOKENS = 256  # longer beginnings are documents
_SPARE_TOKENS = 8  # for the mark between the ends, and for tokens that differ where texts are joined

_VERBS = (
    r"(?:analy[sz]e|check|choose|classify|compare|count|describe|determine|explain|extract|find|give|identify"
    r"|list|name|outline|paraphrase|quote|review|rewrite|select|show|state|summari[sz]e|tell|translate|write)\b"
)
_LABELLED = (
    r"[^\w\n]*+(?:(?:user|my|the|final)(?:'s)?[ _])?(?:question|query|q|task|instructions?|request|frage"
    r"|pregunta|pergunta|domanda|вопрос|问题|問題|質問|问|질문)\b(?: \d+| and [\w ]{1,30})?[ *_]*(?:[:：>]|$)"
)
_FLAGS = re.MULTILINE | re.IGNORECASE
_LABEL = re.compile(f"^{_LABELLED}", _FLAGS)
_QUESTION = re.compile(
    r"^(?![^\w\n]*+[a-j][.):]).*?(?:[?؟](?=[\s\"'”’)\]*_<]|$)|？)",  # but not in an option: `B) Who?`
    _FLAGS,
)
_REQUEST = re.compile(
    rf"(?:^[^\w\n]*+|[.!:] +)(?:(?:now|please|kindly|can you|could you|you|then),? )*{_VERBS}", _FLAGS
)
_ANNOUNCEMENT = re.compile(
    rf"^[^\w\n]*+(?:now,? (?:please )?(?:answer|{_VERBS})|(?:the following|here|below) (?:is|are)\b"
    r"|(?:abstract|claim|hypothesis|statement):)",
    _FLAGS,
)
_SALUTATION = re.compile(r"(?:dear|hi|hello|to)\b", _FLAGS)
_OPENING = re.compile(r"^[ \t]*<([a-z][\w:.-]*)(?:[ \t][^<>\n]*)?>", _FLAGS)
_CLOSING = re.compile(r"^[ \t]*</([a-z][\w:.-]*)>|</([a-z][\w:.-]*)>[ \t]*$", _FLAGS)

_PARAGRAPH = rf"\n[ \t\r]*\n\s*|\n(?={_LABELLED})"  # a labelled line begins a paragraph
_UNITS = (_PARAGRAPH, r"\n\s*", r"(?<=[.!?])\s+|(?<=[。！？])", r"\s+", r"(?<=.)")
_SIGNIFICANT = 3  # of them: words and characters show no signs


def asks(text: str) -> bool:
    """Whether a text shows a sign of asking: a label, a question mark, or an English word that requests."""
    return any(sign.search(text) for sign in (_LABEL, _QUESTION, _REQUEST))


def outside_tags(text: str, budget_tokens: int, count_tokens: TokenCounter) -> str:
    """What stands around the widest pair of tags, such as <document> and </document>, if it fits the budget.

    A tag counts at the beginning of a line, a closing one at the end of a line too. The last closing tag of a
    name counts, so no text between the tags can end them.
    """
    text = text.strip()
    characters = budget_tokens * MAX_CHARACTERS_PER_TOKEN
    opened: dict[str, int] = {}
    for tag in _OPENING.finditer(text[:characters]):
        opened.setdefault(tag[1], tag.start())
    skipped = max(0, len(text) - characters)
    closed = {tag[1] or tag[2]: skipped + tag.end() for tag in _CLOSING.finditer(text[skipped:])}
    spans = [(opened[name], closed[name]) for name in opened.keys() & closed.keys()]
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        outer = LEFT_OUT.join(filter(None, (text[:start].strip(), text[end:].strip())))
        if start < end and outer and is_within(outer, budget_tokens, count_tokens):
            return outer
    return ""


def find_request(text: str, budget_tokens: int, count_tokens: TokenCounter) -> str:
    """What is asked at the ends of a text, as far as the budget goes.

    Where only the beginning asks, the end belongs to the document. Where neither does, both ends are taken.
    """
    text = text.strip()
    room = budget_tokens - _SPARE_TOKENS
    tail = take_end(text, room, count_tokens, at_end=True)
    head = take_end(text, min(budget_tokens, _MAX_HEAD_TOKENS), count_tokens, at_end=False)
    begin = _find_begin(tail)
    if begin is None and not _ends_with_colon(tail[-1]) and _introduces(head[0]):
        return "".join([head[0], *takewhile(asks, head[1:])]).strip()
    if begin is None:
        tail = take_end(text, room - room // 4, count_tokens, at_end=True)
    asked = "".join(tail[begin or 0 :]).strip()
    room -= count_tokens(asked)
    if room <= 0:
        return asked
    if begin is None:
        head = ["".join(take_end(text, room, count_tokens, at_end=False))]
    else:
        head = take_end(text, min(room, _MAX_HEAD_TOKENS), count_tokens, at_end=False)
    return head[0].strip() + LEFT_OUT + asked


def _find_begin(tail: Sequence[str]) -> int | None:
    """The number of the paragraph at which the request at the end of a text begins; None without a sign.

    Seen from the end, what asks comes before any document. What is announced before it belongs to it.
    """
    labelled, asking, announced = (
        [number for number, it in enumerate(tail) if sign.search(it)]
        for sign in (_LABEL, _QUESTION, _ANNOUNCEMENT)
    )
    last = len(tail) - 1
    if _QUESTION.search(tail[last].rstrip().rpartition("\n")[2]):
        begins = [last]
    elif labelled:
        begins = labelled[-1:]
    elif _ends_with_colon(tail[last]):  # as in "Answer:"
        begins = asking[-1:]
    elif _QUESTION.search(tail[last]) or _REQUEST.search(tail[last]):
        begins = [last]
    else:
        return None
    return min([*begins, *announced[:1]], default=None)


def _ends_with_colon(text: str) -> bool:
    return text.rstrip().endswith((":", "："))


def _introduces(paragraph: str) -> bool:
    """Whether the first paragraph of a text asks for something, or introduces what follows."""
    line = paragraph.strip()
    introduces = _ends_with_colon(line) and " " in line and not _SALUTATION.match(line)
    return introduces or asks(line)


def take_end(text: str, limit_tokens: int, count_tokens: TokenCounter, at_end: bool) -> list[str]:
    """The outer paragraphs that fit, at least one.

    If not one does, they are lines or sentences, or else words in one piece.
    """
    limit = max(1, limit_tokens)
    characters = limit * MAX_CHARACTERS_PER_TOKEN
    near = text[-characters:] if at_end else text[:characters]
    for number, unit in enumerate(_UNITS):
        cuts = [0, *(it.end() for it in re.finditer(unit, near, _FLAGS) if it.end() < len(near)), len(near)]
        pieces = [near[start:end] for start, end in pairwise(cuts)]
        if outer := _take_outer(pieces, limit, count_tokens, at_end):
            return outer if number < _SIGNIFICANT else ["".join(outer)]
    return [near[-1:] if at_end else near[:1]]


def _take_outer(pieces: list[str], limit_tokens: int, count_tokens: TokenCounter, at_end: bool) -> list[str]:
    def take(number: int) -> list[str]:
        return pieces[len(pieces) - number :] if at_end else pieces[:number]

    numbers = range(1, len(pieces) + 1)
    return take(
        bisect_right(numbers, limit_tokens, key=lambda number: count_tokens("".join(take(number)).strip()))
    )
