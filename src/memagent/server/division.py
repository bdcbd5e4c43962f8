"""Divide a chat into problem and document, by the rule that docs/serving.md describes.

The last user turn is the problem, with system messages in front of it if all fit the problem's budget.
Everything else is the document, in order: other turns, and parts of the last turn that exceed the budget.
If all parts do, the problem is the ends of the last one, where instructions usually are, and all are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, is_within, shorten
from memagent.reading.workflows.whole import LEFT_OUT
from memagent.server.errors import ApiError
from memagent.server.schemas import Turn
from memagent.types import TokenCounter

_MAX_END_TOKENS = 256
_BOUNDARIES = (r"\n[ \t\r]*\n\s*", r"\n\s*", r"(?<=[.!?])\s+|(?<=[。！？])")
_LABELS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, slots=True)
class Division:
    """A problem, and the texts of the document with their names."""

    problem: str
    texts: tuple[tuple[str, str], ...] = ()


def divide(turns: Sequence[Turn], budget_tokens: int, count_tokens: TokenCounter) -> Division:
    """Divide a chat. Raises `ApiError` if nothing is asked. Blocks."""
    last = _find_question(turns)
    fitting, long = _fit(turns[last].texts, budget_tokens, count_tokens)
    problem = "\n\n".join(fitting) if fitting else _take_ends(long[-1], budget_tokens, count_tokens)
    instructions: list[str] = []
    others: list[str] = []
    for number, turn in enumerate(turns):
        said = "\n\n".join(turn.texts).strip()
        if number == last or not said:
            continue
        together = "\n\n".join([*instructions, said, problem])
        instructs = turn.role in ("system", "developer") and number < last
        if instructs and is_within(together, budget_tokens, count_tokens):
            instructions.append(said)
        else:
            others.append(label(turn.role, said))
    texts = [("conversation", "\n\n".join(others))] if others else []
    names = ("message",) if len(long) == 1 else tuple(f"message {n}" for n in range(1, len(long) + 1))
    return Division("\n\n".join([*instructions, problem]), (*texts, *zip(names, long, strict=True)))


def label(role: str, text: str) -> str:
    """Format a turn as it appears in a document."""
    return f"{_LABELS.get(role, 'Tool')}: {text}"


def _find_question(turns: Sequence[Turn]) -> int:
    """The index of the turn that asks: the user's last one with text, or else the last one with text."""
    speaking = [number for number, turn in enumerate(turns) if any(it.strip() for it in turn.texts)]
    users = [number for number in speaking if turns[number].role == "user"]
    if not speaking:
        raise ApiError(400, "no message has any text: ask something", "no_problem", "messages")
    return (users or speaking)[-1]


def _fit(parts: Sequence[str], budget_tokens: int, count_tokens: TokenCounter) -> tuple[list[str], list[str]]:
    """The parts that fit the budget together, chosen from the last one backwards, and the others."""
    fitting: list[str] = []
    long: list[str] = []
    for part in reversed([it for it in parts if it.strip()]):
        together = "\n\n".join([part, *fitting])
        (fitting if is_within(together, budget_tokens, count_tokens) else long).insert(0, part)
    return fitting, long


def _take_ends(text: str, budget_tokens: int, count_tokens: TokenCounter) -> str:
    """The first and the last paragraph of a text; if one is too long, its outer line, sentence or words."""
    limit = max(1, min(_MAX_END_TOKENS, budget_tokens // 2 - 8))
    text = text.strip()
    first = _take_end(text, limit, count_tokens, at_end=False)
    last = _take_end(text, limit, count_tokens, at_end=True)
    return first if first == last else first + LEFT_OUT + last


def _take_end(text: str, limit_tokens: int, count_tokens: TokenCounter, at_end: bool) -> str:
    characters = limit_tokens * MAX_CHARACTERS_PER_TOKEN
    near = text[-characters:] if at_end else text[:characters]
    for boundary in _BOUNDARIES:
        pieces = [it for it in re.split(boundary, near) if it and it.strip()]
        if len(pieces) > 1:
            piece = pieces[-1 if at_end else 0].strip()
            if count_tokens(piece) <= limit_tokens:
                return piece
    words = re.findall(r"\S+", near)
    kept = ""
    for word in reversed(words) if at_end else words:
        longer = f"{word} {kept}" if at_end else f"{kept} {word}"
        if count_tokens(longer.strip()) > limit_tokens:
            break
        kept = longer.strip()
    return kept or shorten(near[-limit_tokens:] if at_end else near, limit_tokens, count_tokens)
