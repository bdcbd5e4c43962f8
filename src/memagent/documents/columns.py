"""The heads of tables that are cut: of Markdown, and of files of separated values."""

from __future__ import annotations

import re

_HEAD = re.compile(r"\|[^\n]*\n\|(?=[^\n]*-)[ \t:|-]+\r?(?:\n|\Z)")
"""A row of Markdown with a rule below it."""


def is_separated(name: str) -> bool:
    """Whether a file of this name has its columns' names in its first line."""
    return name.lower().endswith((".csv", ".tsv"))


def columns_after(text: str, columns: str, following: str, separated: bool) -> str:
    """The head of the table that goes on after `text`; an empty string if none does.

    `text` itself continues a table with the head `columns`, or is the beginning of one that is `separated`.
    `following` begins with the character after it.
    """
    if separated:
        return columns or text[: text.find("\n") + 1]
    if text.endswith("\n") and not following.startswith("|"):
        return ""
    start = len(text)
    while start:
        line = text.rfind("\n", 0, start - 1) + 1
        if not text.startswith("|", line) and (line or not columns):
            break
        start = line
    if head := _HEAD.match(text, start):
        return head.group()
    return "" if start else columns
