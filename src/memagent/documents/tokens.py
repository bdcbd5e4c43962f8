"""Count tokens: with a tokenizer file, or by an estimate."""

from __future__ import annotations

import hashlib
from pathlib import Path
from zlib import adler32

from memagent.errors import SettingsError, extra_hint
from memagent.text import sendable
from memagent.types import TokenCounter

UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Characters of scripts that put no spaces between words, for a class of a regular expression."""

MAX_CHARACTERS_PER_TOKEN = 16
"""On average over a text, whatever the tokenizer. A text with more is called too long without counting."""

# Hundredths of a token that byte-pair tokenizers make of a byte of each kind, on average. A word of Latin
# letters is one or two tokens, a digit one. In other scripts, a character's first byte counts for all of it.
_KINDS = (
    (bytes(byte for byte in range(128) if chr(byte).isalpha()), 18),
    (b" ", 55),
    (b"\t\n\r", 65),
    (b"0123456789", 100),
    (bytes(byte for byte in range(33, 127) if not chr(byte).isalnum()), 65),
    (bytes(range(0xC2, 0xE0)), 55),  # Cyrillic, Greek, Arabic, Hebrew, accents
    (bytes(range(0xE0, 0xF0)), 100),  # ideographs, Hangul, Indic
    (bytes(range(0xF0, 0xF5)), 200),  # emoji
)
# 18 of these in a row are not a word but a key, an identifier or an encoded file (base64, hex): tokenizers
# know no parts of those, and make about `_KEY_TOKENS` more tokens of such a run.
_KEY, _KEY_TOKENS = b"k" * 18, 10
_KEY_CHARACTERS = bytes(
    ord("k") if byte < 128 and (chr(byte).isalnum() or chr(byte) in "+-") else 0 for byte in range(256)
)
_HUNDREDTHS = bytes(sum(weight for kind, weight in _KINDS if byte in kind) for byte in range(256))
_IDEOGRAPHS = bytes(byte in range(0xE4, 0xEA) for byte in range(256))  # first bytes of U+4000 to U+9FFF


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a text has, for models whose tokenizer is not at hand.

    The estimate depends on the text alone, so a resumed read cuts the same chunks. It errs on the high side
    for modern tokenizers: chunks that are too small only cost time.
    """
    most = 100 if text.isascii() else 200
    raw = text.encode("utf-8", "replace")
    keys = raw.translate(_KEY_CHARACTERS).count(_KEY)
    return -(-_total(raw, _HUNDREDTHS, most) // 100) + keys * _KEY_TOKENS


def fewest_tokens(text: str) -> int:
    """A lower bound on the number of tokens in a text, whatever the tokenizer.

    No tokenizer in common use makes one token of two words, of more than three ideographs, or of more than
    16 characters on average.
    """
    raw = text.encode("utf-8", "replace")
    ideographs = 0 if len(raw) == len(text) else _total(raw, _IDEOGRAPHS, 1)
    return max(len(text.split()) + ideographs // 3, len(text) // MAX_CHARACTERS_PER_TOKEN)


def _total(raw: bytes, values: bytes, most: int) -> int:
    """The sum of the bytes' values, by a table of 256; none exceeds `most`.

    A checksum adds them up several times as fast as counting each kind of byte, which text makes hard to
    predict for a processor.
    """
    weights, size = raw.translate(values), 65_520 // most  # Adler-32 adds modulo 65,521
    blocks = (weights[start : start + size] for start in range(0, len(weights), size))
    return sum(adler32(block, 0) & 0xFFFF for block in blocks)


def load_tokenizer(path: str | Path) -> TokenCounter:
    """Load a token counter from a Hugging Face `tokenizer.json` (needs the extra `tokenizers`).

    Raises `SettingsError` if the extra is missing, or the file is missing or invalid.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SettingsError(f"`tokenizer` needs a package: {extra_hint('tokenizers')}") from error
    file = _tokenizer_file(path)
    if file.exists() and not file.is_file():  # opening a pipe would wait for whoever writes to it
        raise SettingsError(f"{file} is not a regular file: name a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise SettingsError(f"{file} is not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode_batch_fast([sendable(text)], add_special_tokens=False)[0])

    return count


def tokenizer_name(path: str | Path) -> str:
    """The name of a `tokenizer.json` with a digest of its content, which decides where texts are cut."""
    file = _tokenizer_file(path)
    return f"{file.name}@{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def _tokenizer_file(path: str | Path) -> Path:
    file = Path(path)
    return file / "tokenizer.json" if file.is_dir() else file


def is_within(text: str, limit_tokens: int, count_tokens: TokenCounter) -> bool:
    """Whether a text has at most `limit_tokens`; one that is much too long is not counted."""
    return len(text) <= limit_tokens * MAX_CHARACTERS_PER_TOKEN and count_tokens(text) <= limit_tokens


def shorten(text: str, limit_tokens: int, count_tokens: TokenCounter) -> str:
    """The longest prefix of `text` (by bisection) that has at most `limit_tokens` tokens."""
    if count_tokens(text) <= limit_tokens:
        return text
    return text[: longest_prefix(text, limit_tokens, count_tokens, 0, len(text))].rstrip()


def longest_prefix(text: str, limit_tokens: int, count_tokens: TokenCounter, fits: int, over: int) -> int:
    """The length of the longest prefix of `text` (by bisection) that has at most `limit_tokens` tokens.

    A prefix of `fits` characters counts as one that fits, one of `over` as one that does not.
    """
    while over - fits > 1:
        middle = (fits + over) // 2
        if count_tokens(text[:middle]) <= limit_tokens:
            fits = middle
        else:
            over = middle
    return fits
