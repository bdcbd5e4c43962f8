"""Text as such: where sentences end, letters without accents, and what can be sent."""

from __future__ import annotations

import re
import unicodedata

# After a mark and its closing quotes, before a capital or a digit; not after "Mr.".
SENTENCE_GAP = re.compile(
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bNo\.)(?<=[.!?\"'”’)]) (?=[\"'“‘(]?[A-Z0-9])"
)
"""The space between two sentences of English prose on one line."""

SOFT_HYPHEN = "\u00ad"
"""Where a word may be broken; it is no part of the word."""

_SURROGATES = re.compile("[\ud800-\udfff]")


def without_accents(text: str) -> str:
    """The text in Unicode's simplest letters (NFKD), without the marks that combine with them."""
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


def sendable(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which no encoding has."""
    try:
        text.encode()  # ten times as fast as a search for surrogates
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text
