"""Count tokens: a tokenizer file, or an estimate that learns from what the server reports."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from memagent.errors import SettingsError
from memagent.types import TokenCounter

_FIRST_BYTES_PER_TOKEN = 3.0  # below English (about 4), so the first chunk errs on the small side
_LEAST_BYTES_PER_TOKEN = 1.0
_MOST_BYTES_PER_TOKEN = 6.0


@dataclass(slots=True)
class TokenEstimate:
    """Counts tokens as UTF-8 bytes over a ratio, corrected by the usage a server reports.

    One per read: its state is a function of that read's completions alone, so that a resumed
    read cuts the same chunks. The ratio stays between 1 and 6 bytes a token: a server that
    silently drops part of a prompt reports too few tokens, and must not make chunks grow.
    """

    bytes_per_token: float = _FIRST_BYTES_PER_TOKEN

    def __call__(self, text: str) -> int:
        """Tokens that `text` probably has."""
        return ceil(len(text.encode("utf-8", "replace")) / self.bytes_per_token)

    def observe(self, text: str, tokens: int) -> None:
        """Learn that `text` (a whole prompt) was `tokens` tokens long."""
        if tokens > 0:
            ratio = len(text.encode("utf-8", "replace")) / tokens
            bounded = min(max(ratio, _LEAST_BYTES_PER_TOKEN), _MOST_BYTES_PER_TOKEN)
            # A denser text is believed at once, a thinner one by halves: too small is only slow.
            thinner = bounded > self.bytes_per_token
            self.bytes_per_token = (self.bytes_per_token + bounded) / 2 if thinner else bounded


def load_tokenizer(path: str | Path) -> TokenCounter:
    """A counter from a Hugging Face `tokenizer.json` (the extra `tokenizers`).

    Raises `SettingsError` if the file or the extra is missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SettingsError("--tokenizer needs the extra: pip install 'memagent[tokenizers]'") from error
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
