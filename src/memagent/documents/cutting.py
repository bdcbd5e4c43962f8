"""Cut one text into pieces within a token budget, at natural places, without losing a character.

On request, pieces are cut exactly at the budget instead, as the published readers were trained.
The length of a piece is guessed in characters from the piece before it, moved back to the end of
a paragraph, line, sentence or word, and then counted: the text is tokenised about once in all.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import islice
from typing import NamedTuple

from memagent.documents.converters.tables import names_columns
from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, longest_prefix
from memagent.types import TokenCounter

_FIRST_CHARACTERS_PER_TOKEN = 3.5
_AIM = 0.97  # of the budget: a guess that exceeds the budget has to be counted again
_LEAST = 0.75  # of the budget: a smaller chunk is grown if there is more text
_WINDOW = 0.2  # of a chunk's length: how far back to look for a natural place
_TRIES = 6
_MAX_TOKEN = 24  # characters: a token that ends with them may replace several that end before

PARAGRAPH_END = re.compile(r"\n[ \t]*(?:\r?\n[ \t]*)+")
"""One blank line, or several."""

# Best first: a blank line, a line end, a sentence end, white space. Only the end of a match counts;
# a pattern that begins with a literal character is found ten times as fast.
_BOUNDARIES = (
    PARAGRAPH_END,
    re.compile(r"\n"),
    re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』]*"),
    re.compile(r"\s+"),
)
_MAX_MARKS = 32  # of a letter: further ones may be cut off
_BAR = re.compile(r"(?<!\\)\|")
_SEPARATORS = (",", ";", "\t", "|")
_MAX_ROWS = 50  # that are looked at to find a table's head
TABLE_HEAD = re.compile(r"\|[^\n]*\n\|(?=[^\n]*-)[ \t:|-]+\r?(?:\n|\Z)")  # a row with a rule below it


class Cut(NamedTuple):
    """A piece of a text. `columns` is the head of the table that it continues, and counts in `tokens`."""

    text: str
    tokens: int
    last: bool
    columns: str


def cut(
    blocks: Iterable[str],
    chunk_tokens: int,
    count_tokens: TokenCounter,
    *,
    exact: bool = False,
    separated: bool = False,
) -> Iterator[Cut]:
    """Cut one text, given in blocks, into pieces.

    The pieces do not depend on how the text is divided into blocks. Those of a `separated` text all continue
    one table; `exact` pieces are shown without heads.
    """
    stream = iter(blocks)
    buffer, position, columns, first = "", 0, "", True
    ratio = _FIRST_CHARACTERS_PER_TOKEN
    while True:
        target = max(1, int(chunk_tokens * ratio * _AIM))
        if len(buffer) - position <= 2 * target:
            buffer, position = _fill(buffer[position:], stream, 2 * target), 0
        if position == len(buffer):
            return
        # One character more than a piece may have shows whether more text follows.
        ahead = buffer[position : position + 2 * target + 1]
        head = columns
        if exact or (head and count_tokens(head) * 2 > chunk_tokens):  # it would leave too little room
            head = ""
        if exact:
            length, tokens = _fit_exactly(ahead[: 2 * target], chunk_tokens, count_tokens)
        else:
            length, tokens = _fit(ahead, target, chunk_tokens, count_with(head, count_tokens))
        position += length
        yield Cut(ahead[:length], tokens, position == len(buffer), head)
        following = ahead[length : length + 1]
        columns = columns_after(ahead[:length], columns, following, separated=separated, first=first)
        first = False
        # Blank or unbroken text may have hardly any tokens: pieces stay finite.
        ratio = min(length / max(tokens, 1), MAX_CHARACTERS_PER_TOKEN)


def _fill(buffer: str, stream: Iterator[str], least: int) -> str:
    """`buffer` and what follows it, until it is longer than `least` or the stream ends."""
    parts, length = [buffer], len(buffer)
    while length <= least and (block := next(stream, None)) is not None:
        parts.append(block)
        length += len(block)
    return "".join(parts)


def _fit(text: str, target: int, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """The length of the first piece of `text`, in characters (at most 2 * `target`) and tokens."""
    best, guess, most = (0, 0), target, 2 * target
    for _ in range(_TRIES):
        length = natural_end(text, guess)
        if length <= best[0]:
            break
        tokens = count_tokens(text[:length])
        if tokens <= budget:
            best = (length, tokens)
            if length == len(text) or tokens >= _LEAST * budget:
                return best
            guess = min(most, int(length / max(tokens, 1) * budget * _AIM))
        elif length == 1:
            return length, tokens
        else:
            guess = max(1, int(length * budget / tokens * _AIM))
    return best if best[0] else _bisect(text, guess, budget, count_tokens)


def _fit_exactly(text: str, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """The length of the longest piece of `text` that fits, in whole characters, and its tokens.

    Found by bisection; then the characters after it are tried, since a whole word may have fewer tokens than
    its beginning.
    """
    fits = longest_prefix(text, budget, count_tokens, 1, len(text) + 1)
    ends = range(min(fits + _MAX_TOKEN, len(text)), fits, -1)
    fits = next((end for end in ends if count_tokens(text[:end]) <= budget), fits)
    length = _whole_character(text, fits)
    return length, count_tokens(text[:length])


def _bisect(text: str, length: int, budget: int, count_tokens: TokenCounter) -> tuple[int, int]:
    """Halve the length until it fits: for the rare text whose token density jumps."""
    length = natural_end(text, length)
    while (tokens := count_tokens(text[:length])) > budget and length > 1:
        length = _whole_character(text, length // 2)
    return length, tokens


def natural_end(text: str, limit: int) -> int:
    """The last natural place to end a piece of at most `limit` characters (at least one)."""
    if limit >= len(text):
        return len(text)
    earliest = int(limit * (1 - _WINDOW))
    for boundary in _BOUNDARIES:
        end = 0
        for match in boundary.finditer(text, earliest, limit):
            end = match.end()
        if end > earliest and (whole := _whole_character(text, end)) > earliest:
            return whole
    return _whole_character(text, limit)


def _whole_character(text: str, end: int) -> int:
    """`end`, moved back so that it splits no line end, and no letter from its combining marks."""
    end = max(end, 1)
    for position in range(end, max(end - _MAX_MARKS, 0), -1):
        after = text[position : position + 1] or " "
        if text[position - 1] + after != "\r\n" and not unicodedata.category(after).startswith("M"):
            return position
    return end


def count_with(head: str, count_tokens: TokenCounter) -> TokenCounter:
    """Count a text together with the `head` that is shown before it."""
    return (lambda text: count_tokens(head + text)) if head else count_tokens


def is_separated(name: str) -> bool:
    """Whether a file of this name is a table of separated values."""
    return name.lower().endswith((".csv", ".tsv"))


def columns_after(text: str, columns: str, following: str, *, separated: bool, first: bool) -> str:
    """The head of the table that continues after `text`; an empty string if none does, or it has no head.

    `text` itself continues a table with the head `columns`, or is the `first` piece of its file. All pieces
    of a `separated` file continue one table. `following` begins with the character after the text.
    """
    if separated:
        return _head_of_values(text) if first else columns
    if text.endswith("\n") and not following.startswith("|"):
        return ""
    start = len(text)
    while start:
        line = text.rfind("\n", 0, start - 1) + 1
        if not text.startswith("|", line) and (line or not columns):
            break
        start = line
    if head := TABLE_HEAD.match(text, start):
        return _head_of_table(head[0], text[head.end() :])
    return "" if start else columns


def row_cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table, as they are written."""
    return _BAR.split(line.strip().removeprefix("|").removesuffix("|"))


def _head_of_table(head: str, rows: str) -> str:
    """The head of a Markdown table, or the first of the rows below it that is as wide as they are.

    What the table calls its head is one unless it is narrower, or like the rows; another row must surely be.
    """
    lines = [head.partition("\n")[0], *islice(StringIO(rows), _MAX_ROWS)]
    cells = [row_cells(line) for line in lines]
    index = _first_wide(cells)
    named = names_columns(cells[index], cells[index + 1 :])
    if index:
        return f"{lines[index].rstrip()}\n|{' --- |' * len(cells[index])}\n" if named else ""
    return "" if named is False else head


def _head_of_values(text: str) -> str:
    """The line of separated values that certainly names the columns; an empty string if there is none."""
    lines = [*islice(StringIO(text, newline=""), _MAX_ROWS)]

    def parse(separator: str) -> list[tuple[int, list[str]]]:
        """Each row, with the number of the line that it ends in."""
        reader = csv.reader(lines, delimiter=separator)
        return [(reader.line_num, row) for row in reader]

    def fit(rows: list[tuple[int, list[str]]]) -> tuple[int, int]:
        """How many rows are as wide as most, if they have several cells, and how wide they are."""
        ((width, count),) = Counter(len(row) for _, row in rows).most_common(1)
        return count * (width > 1), width

    try:
        ends, rows = zip(*max(map(parse, _SEPARATORS), key=fit), strict=True)
    except csv.Error:  # a cell of over 128 KiB
        return ""
    index = _first_wide(rows)
    begin = ends[index - 1] if index else 0
    return "".join(lines[begin : ends[index]]) if names_columns(rows[index], rows[index + 1 :]) else ""


def _first_wide(rows: Sequence[Sequence[str]]) -> int:
    """The first row that is at least as wide as most; those above it are a title or a preamble."""
    ((width, _),) = Counter(map(len, rows)).most_common(1)
    return next(number for number, row in enumerate(rows) if len(row) >= width)
