"""RTF files and Jupyter notebooks to text; pictures are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import IO, Any

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


def ipynb(file: IO[bytes]) -> Iterator[str]:
    """Each cell, code and output between fences."""
    for cell in json.load(file)["cells"]:
        source = _text(cell.get("source"))
        yield _fence(source) if cell.get("cell_type") == "code" else f"{source}\n\n"
        for output in cell.get("outputs", ()):
            error = [output[name] for name in ("ename", "evalue") if name in output]
            content = output.get("text") or output.get("data", {}).get("text/plain") or ": ".join(error)
            yield _fence(_text(content))


def _fence(text: str) -> str:
    return f"```\n{text}\n```\n\n" if text else ""


def _text(lines: Any) -> str:
    """A text that may be divided into lines."""
    return clean("".join(lines or ())).strip("\n")
