"""Count tokens: with a tokenizer file, or by an estimate."""

from __future__ import annotations

import hashlib
from math import ceil
from pathlib import Path

from memagent.errors import SettingsError, extra_hint
from memagent.types import TokenCounter

UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Characters of scripts that put no spaces between words, for a class of a regular expression."""

# About how many tokens byte-pair tokenizers make of a byte of each kind. A word of Latin letters is one
# or two tokens, a digit one. In other scripts, the first byte of a character counts for all of it.
_WEIGHTS = (
    (bytes(byte for byte in range(128) if chr(byte).isalpha()), 0.18),
    (b" ", 0.55),
    (b"\t\n\r", 0.65),
    (b"0123456789", 1.0),
    (bytes(byte for byte in range(33, 127) if not chr(byte).isalnum()), 0.65),
    (bytes(range(0xC2, 0xE0)), 0.55),  # Cyrillic, Greek, Arabic, Hebrew, accents
    (bytes(range(0xE0, 0xF0)), 1.0),  # ideographs, Hangul, Indic
    (bytes(range(0xF0, 0xF5)), 2.0),  # emoji
)
_IDEOGRAPHS = bytes(range(0xE4, 0xEA))  # the first bytes of U+4000 to U+9FFF
_SPACES = b" \t\n\v\f\r\x1c\x1d\x1e\x1f\xc2\xe1\xe2\xe3"  # the first bytes of all white space


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a text has, for models whose tokenizer is not at hand.

    The estimate depends on the text alone, so a resumed read cuts the same chunks. It errs on the high side
    for modern tokenizers: chunks that are too small only cost time.
    """
    rest, tokens = text.encode("utf-8", "replace"), 0.0
    for kind, weight in _WEIGHTS:  # as in `_count`, with less left to search each time
        left = rest.translate(None, kind)
        tokens += (len(rest) - len(left)) * weight
        rest = left
    return ceil(tokens)


def fewest_tokens(text: str) -> int:
    """A lower bound on the number of tokens in a text, whatever the tokenizer.

    No tokenizer in common use makes one token of two words, of more than three ideographs, or of more than
    16 characters on average.
    """
    raw = text.encode("utf-8", "replace")
    return _fewest(text, raw, words=len(text.split()))


def fewest_tokens_at_most(text: str) -> int:
    """An upper bound on `fewest_tokens`, several times as fast: each space counts as a word."""
    raw = text.encode("utf-8", "replace")
    return _fewest(text, raw, words=1 + _count(raw, _SPACES))


def _fewest(text: str, raw: bytes, words: int) -> int:
    ideographs = 0 if len(raw) == len(text) else _count(raw, _IDEOGRAPHS)
    return max(words + ideographs // 3, len(text) // 16)


def _count(raw: bytes, kind: bytes) -> int:
    """How many bytes are of a kind: deleting them is by far the fastest way to count them."""
    return len(raw) - len(raw.translate(None, kind))


def load_tokenizer(path: str | Path) -> TokenCounter:
    """Load a token counter from a Hugging Face `tokenizer.json` (needs the extra `tokenizers`).

    Raises `SettingsError` if the extra is missing, or the file is missing or invalid.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SettingsError(f"`tokenizer` needs a package: {extra_hint('tokenizers')}") from error
    file = _tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise SettingsError(f"{file} is not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        sendable = text.encode("utf-8", "replace").decode()  # the library raises on a lone surrogate
        return len(tokenizer.encode_batch_fast([sendable], add_special_tokens=False)[0])

    return count


def tokenizer_name(path: str | Path) -> str:
    """The name of a `tokenizer.json` with a digest of its content, which decides where texts are cut."""
    file = _tokenizer_file(path)
    return f"{file.name}@{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def _tokenizer_file(path: str | Path) -> Path:
    file = Path(path)
    return file / "tokenizer.json" if file.is_dir() else file


def shorten(text: str, limit_tokens: int, count_tokens: TokenCounter) -> str:
    """The longest prefix of `text` (by bisection) that has at most `limit_tokens` tokens."""
    if count_tokens(text) <= limit_tokens:
        return text
    fits, over = 0, len(text)
    while over - fits > 1:
        middle = (fits + over) // 2
        if count_tokens(text[:middle]) <= limit_tokens:
            fits = middle
        else:
            over = middle
    return text[:fits].rstrip()
