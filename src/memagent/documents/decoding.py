"""Decode a file's bytes to text that can be sent to a model; JSONL becomes the texts of its rows.

JSON stays as it is, with letters in place of their escapes.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

_MAX_ROW = 2**25  # characters; parsed, a row takes several times its length
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.|\Z)", re.DOTALL
)
_MAX_ESCAPE = 12  # characters
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
    """A row's `text`, or else its `content`, or the row itself if it is a string; or else the line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line
    texts = (row.get("text"), row.get("content")) if isinstance(row, dict) else (row,)
    text = next((it for it in texts if isinstance(it, str) and it.strip()), None)
    return "".join(unescape([line])) if text is None else sendable(text)


def unescape(blocks: Iterable[str]) -> Iterator[str]:
    r"""JSON with letters in place of their escapes (\u0434), except those that a string must escape."""
    held = ""
    for block in chain(blocks, ("",)):
        text, done, place = held + block, list[str](), 0
        for found in _ESCAPE.finditer(text):
            if block and found.start() > len(text) - _MAX_ESCAPE:  # it may go on in the next block
                break
            done += text[place : found.start()], _letter(found.group())
            place = found.end()
        else:
            done.append(text[place:])
            place = len(text)
        held = text[place:]
        yield "".join(done)


def _letter(escape: str) -> str:
    if len(escape) < 6:
        return escape
    letter: str = json.loads(f'"{escape}"')
    return escape if letter < " " or letter in '"\\' or _SURROGATES.match(letter) else letter


def sendable(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which no encoding has."""
    return _SURROGATES.sub("\ufffd", text)
