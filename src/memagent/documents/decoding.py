"""Decode a file's bytes to text that can be sent to a model; JSONL becomes the texts of its rows."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

_MAX_ROW = 2**25  # characters; parsed, a row takes several times its length
_SURROGATES = re.compile("[\ud800-\udfff]")


def decode(blocks: Iterable[bytes], encoding: str) -> Iterator[str]:
    """The decoded text; undecodable bytes become U+FFFD."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for block in blocks:
        if text := decoder.decode(block):
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def row_texts(blocks: Iterable[str]) -> Iterator[str]:
    """The text of each row of a JSONL file, followed by a blank line.

    A row of over 32 Mi characters is not parsed but read as it is, so that memory use stays bounded.
    """
    held: list[str] = []  # of the current row
    length, is_long = 0, False
    for block in chain(blocks, ("\n",)):
        *ends, rest = block.split("\n")
        for end in ends:
            line = "".join([*held, end]).strip()
            if is_long:
                yield line + "\n\n"
            elif line:
                yield _row_text(line) + "\n\n"
            held, length, is_long = [], 0, False
        held.append(rest)
        length += len(rest)
        if length > _MAX_ROW:
            yield "".join(held)
            held, is_long = [], True


def _row_text(line: str) -> str:
    """A row's `text`, or else its `content`, or the row itself if it is a string; or the line as it is."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line
    texts = (row.get("text"), row.get("content")) if isinstance(row, dict) else (row,)
    return next((sendable(it) for it in texts if isinstance(it, str) and it.strip()), line)


def sendable(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which no encoding has."""
    return _SURROGATES.sub("\ufffd", text)
