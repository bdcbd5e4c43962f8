"""Tables as Markdown, for the converters."""

from __future__ import annotations

from datetime import datetime, time

from .text import clean


def as_cell(value: object) -> str:
    """A cell as a person sees it: whole numbers without a decimal point, dates without midnight."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if hasattr(value, "ref"):  # a formula of several cells
        return str(getattr(value, "text", None) or value.ref)
    return str(value)


def as_table(rows: list[list[str]]) -> str:
    """Rows, the first of which is the head."""
    return "".join(as_row(row) + (as_rule(row) if not number else "") for number, row in enumerate(rows))


def as_row(cells: list[str]) -> str:
    """One row; a bar within a cell is escaped."""
    texts = (" ".join(clean(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |\n"


def as_rule(cells: list[str]) -> str:
    """The line below a head of these cells."""
    return "|" + " --- |" * len(cells) + "\n"
