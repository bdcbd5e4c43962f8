"""Count tokens: with a tokenizer file, or by an estimate."""

from __future__ import annotations

import re
from pathlib import Path

from memagent.errors import SettingsError, extra_hint
from memagent.types import TokenCounter

# About what byte-pair tokenizers make one token of: up to six Latin letters, a digit, a run of blanks or of
# line ends, two letters of other alphabets, one ideograph, two marks.
_PIECES = re.compile(
    r" ?[A-Za-z]{1,6}| ?\d|[ \t]{2,16}|\n+|[\u0370-\u1fff]{1,2}|[^\W\d_]|[^\w\s]{1,2}|\S|[ \t\r]"
)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, for models whose tokenizer is not at hand.

    It depends on the text alone, so that a resumed read cuts the same chunks, and is rather too high for
    modern tokenizers: too small a chunk is only slow.
    """
    return len(_PIECES.findall(text))


def load_tokenizer(path: str | Path) -> TokenCounter:
    """A counter from a Hugging Face `tokenizer.json` (the extra `tokenizers`).

    Raises `SettingsError` if the file or the extra is missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SettingsError(f"--tokenizer needs a package: {extra_hint('tokenizers')}") from error
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise SettingsError(f"{file} is not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        sendable = text.encode("utf-8", "replace").decode()  # a lone surrogate is refused with an exception
        return len(tokenizer.encode_batch_fast([sendable], add_special_tokens=False)[0])

    return count


def shorten(text: str, limit_tokens: int, count_tokens: TokenCounter) -> str:
    """The longest beginning of `text` (by bisection) that has at most `limit_tokens` tokens."""
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
