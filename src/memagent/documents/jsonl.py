"""Read JSONL as the texts of its rows, and JSON as it is, with letters in place of their escapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from memagent.text import sendable

_MAX_ROW = 2**25  # characters; parsed, a row takes several times its length
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.|\Z)", re.DOTALL
)
_MAX_ESCAPE = 12  # characters


def row_texts(blocks: Iterable[str]) -> Iterator[str]:
    """The text of each row of a JSONL file, followed by a blank line.

    A row of over 32 Mi characters is not parsed but read as it is, so that memory use stays bounded.
    """
    parts: list[str] = []  # of the current row
    length, is_long = 0, False
    for block in chain(blocks, ("\n",)):
        *ends, rest = block.split("\n")
        for end in ends:
            line = "".join([*parts, end]).strip()
            if is_long:
                yield line + "\n\n"
            elif line:
                yield _row_text(line) + "\n\n"
            parts, length, is_long = [], 0, False
        parts.append(rest)
        length += len(rest)
        if length > _MAX_ROW:
            yield "".join(parts)
            parts, is_long = [], True


def _row_text(line: str) -> str:
    """A row's `text`, or else its `content`, or the row itself if it is a string; or else the line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line
    texts = (row.get("text"), row.get("content")) if isinstance(row, dict) else (row,)
    text = next((value for value in texts if isinstance(value, str) and value.strip()), None)
    return "".join(unescape([line])) if text is None else sendable(text)


def unescape(blocks: Iterable[str]) -> Iterator[str]:
    r"""JSON with letters in place of their escapes (\u0434), except those that a string must escape."""
    rest = ""
    for block in chain(blocks, ("",)):
        text = rest + block
        end = max(len(text) - _MAX_ESCAPE, 0) if block else len(text)
        # An escape that reaches beyond may continue in the next block.
        end = next((match.start() for match in _ESCAPE.finditer(text) if match.end() > end), end)
        yield _ESCAPE.sub(_unescape_one, text[:end])
        rest = text[end:]


def _unescape_one(match: re.Match[str]) -> str:
    escape = match.group()
    if len(escape) < 6:
        return escape
    letter: str = json.loads(f'"{escape}"')
    return escape if letter < " " or letter in '"\\' or "\ud800" <= letter <= "\udfff" else letter
