"""Markdown for reports: tables that stay tables, whatever their cells contain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table whose first `texts` columns are texts, and the others numbers."""
    lines = [heads, ["---" if place < texts else "---:" for place in range(len(heads))], *rows]
    return "".join("| " + " | ".join(map(cell, line)) + " |\n" for line in lines)


def cell(text: str) -> str:
    """Escape a text so that it stays inside its cell, whatever a server put into it."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
