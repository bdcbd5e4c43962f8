"""RTF files to text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import IO

from .text import clean

_DROPPED = re.compile(r"(?<!\\)\\(?:footnote|\*\\shpinst|shptxt|shpgrp|shp)(?![a-z]) ?")
"""What opens a note or a text box, with which striprtf would drop its text."""


def rtf(file: IO[bytes]) -> Iterator[str]:
    """The text."""
    from striprtf.striprtf import rtf_to_text

    convert: Callable[..., str] = rtf_to_text
    source = _DROPPED.sub("", file.read().decode("cp1252", "replace"))
    text = convert(source, errors="replace")
    # Word writes a character beyond U+FFFF, such as an emoji, as two halves.
    yield clean(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
