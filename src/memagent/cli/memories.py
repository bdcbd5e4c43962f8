"""Print how a memory changed, sentence by sentence, and where statements come from."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from memagent.cli.messages import harmless, print_line, say
from memagent.reading.sources import NEAREST, Source, Statement

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_STYLES = {"+": "green", "-": "red"}


def say_styled(text: str, style: str = "") -> None:
    """Print a line to stdout, in colour on a terminal."""
    out = Console(soft_wrap=True, highlight=False)
    if not out.is_terminal:
        say(text)
        return
    with out.capture() as captured:
        out.print(Text(harmless(text), style=style))
    print_line(captured.get().removesuffix("\n"))


def citations(
    statements: Iterable[Statement],
    unsupported: str = "the document does not say so, and no passage comes near it",
) -> Iterator[str]:
    """Each statement of an answer, with the place in the document that says it, or its nearest passages."""
    for statement in statements:
        yield f"\n- {statement.text}"
        if statement.source:
            yield f"  {_place(statement.source)}"
        elif not statement.nearest:
            yield f"  {unsupported}"
        for passage in statement.nearest:
            yield f"  {NEAREST}: {_place(passage)}"


def _place(source: Source) -> str:
    page = "" if source.page is None else f", page {source.page}"
    return f"{source.file}{page}, characters {source.start:,} to {source.end:,}: {source.excerpt!r}"


def say_changes(before: str, after: str, indent: str = "") -> bool:
    """Print the removed (-) and added (+) sentences in order; return whether there are any."""
    changed = False
    for mark, sentence in _changes(before, after):
        changed = True
        say_styled(f"{indent}{mark} {sentence}", _STYLES[mark])
    return changed


def _changes(before: str, after: str) -> Iterator[tuple[str, str]]:
    old, new = _sentences(before), _sentences(after)
    for tag, i, j, k, m in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (("-", sentence) for sentence in old[i:j])
            yield from (("+", sentence) for sentence in new[k:m])


def _sentences(text: str) -> list[str]:
    return [" ".join(part.split()) for part in _SENTENCE_END.split(text) if part.strip()]
