"""The mark in the delimiters around a document: letters that no author of a document can know.

It follows from the document and from a secret that only this installation has. So it is the same for every
chunk and question, but whoever writes a document cannot compute it. It is written in letters, since
tokenizers make about half as many tokens of 14 letters as of the 16 hex digits that say as much.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path
from string import ascii_lowercase

from memagent.prompts import MARK_LETTERS
from memagent.settings import user_data_path
from memagent.storage import lock

PUBLIC = b"the examples of training and evaluation"
"""The secret for examples: their prompts are the same on every machine."""

_NAME = "secret"
_BYTES = 32


def mark_of(fingerprint: str, secret: bytes | None = None) -> str:
    """The mark for the document with this `fingerprint`: 14 letters, or 65 bits.

    Without a `secret`, that of this installation is used, which is made when it is first needed. Blocks.
    """
    key = _secret_in(user_data_path()) if secret is None else secret
    number = int.from_bytes(hmac.digest(key, fingerprint.encode(), "sha256"))
    return "".join(ascii_lowercase[number // 26**position % 26] for position in range(MARK_LETTERS))


@cache
def _secret_in(folder: Path) -> bytes:
    """The secret in the user's data folder; if none can be kept there, one for as long as the process lives.

    That one serves as well, but no other process has it: its prompts share no prefix with theirs.
    """
    path = folder / _NAME
    with suppress(OSError):
        if path.is_file() and len(secret := path.read_bytes()) == _BYTES:
            return secret
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:  # noqa: PTH123
            lock(file, wait=True)  # of several processes that start at once, the first makes it
            secret = file.read()
            if len(secret) != _BYTES:
                secret = secrets.token_bytes(_BYTES)
                file.seek(0)
                file.write(secret)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            return secret
    return secrets.token_bytes(_BYTES)
