"""Jupyter notebooks to Markdown: the cells, and the text that they printed; pictures are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from .text import clean


def ipynb(file: IO[bytes]) -> Iterator[str]:
    """Each cell, code and output between fences."""
    for cell in json.load(file)["cells"]:
        source = _text(cell.get("source"))
        yield _fenced(source) if cell.get("cell_type") == "code" else f"{source}\n\n"
        for output in cell.get("outputs", ()):
            error = [output[name] for name in ("ename", "evalue") if name in output]
            shown = output.get("text") or output.get("data", {}).get("text/plain") or ": ".join(error)
            yield _fenced(_text(shown))


def _fenced(text: str) -> str:
    return f"```\n{text}\n```\n\n" if text else ""


def _text(lines: Any) -> str:
    """A text that may be divided into lines."""
    return clean("".join(lines or ())).strip("\n")
