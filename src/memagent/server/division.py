"""Divide a chat into problem and document, by the rules that docs/serving.md describes.

The last user turn asks. If it is one long text, and a short turn right before it asks, that is the problem,
and the long text is data and nothing else; so it is if it has no tags, and a system message asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memagent.documents.tokens import is_within
from memagent.server.asking import asks, find_request, outside_tags
from memagent.server.errors import ApiError
from memagent.server.schemas import Turn
from memagent.types import TokenCounter

_LABELS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, slots=True)
class Division:
    """A problem, and the texts of the document with their names."""

    problem: str
    texts: tuple[tuple[str, str], ...] = ()


def divide(turns: Sequence[Turn], budget_tokens: int, count_tokens: TokenCounter) -> Division:
    """Divide a chat. Raises `ApiError` if nothing is asked. Blocks."""
    said = ["\n\n".join(turn.texts).strip() for turn in turns]
    last = asking = _find_question(turns)
    fitting, long = _fit(turns[last].texts, budget_tokens, count_tokens)
    problem = "\n\n".join(fitting)
    if not problem and last and turns[last - 1].role == "user":
        before = said[last - 1]
        if is_within(before, budget_tokens, count_tokens) and asks(before):
            asking, problem = last - 1, before
    problem = problem or outside_tags(long[-1], budget_tokens, count_tokens)
    limit = budget_tokens if problem else budget_tokens // 2
    instructions: list[str] = []
    others: list[str] = []
    for number, turn in enumerate(turns):
        if number in (asking, last) or not said[number]:
            continue
        together = "\n\n".join(filter(None, [*instructions, said[number], problem]))
        instructs = turn.role in ("system", "developer") and number < last
        if instructs and is_within(together, limit, count_tokens):
            instructions.append(said[number])
        else:
            others.append(label(turn.role, said[number]))
    instructed = "\n\n".join(instructions)
    if not problem and not asks(instructed):
        room = budget_tokens - count_tokens(instructed) if instructed else budget_tokens
        problem = find_request(long[-1], room, count_tokens)
    texts = [("conversation", "\n\n".join(others))] if others else []
    names = ("message",) if len(long) == 1 else tuple(f"message {n}" for n in range(1, len(long) + 1))
    problem = "\n\n".join(filter(None, [instructed, problem]))
    return Division(problem, (*texts, *zip(names, long, strict=True)))


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
    """The parts of the last turn that ask, which fit the budget together, and the others.

    Around long parts all ask, those at the end first. Of short ones that are too many, the outer two do.
    """

    def fits(*texts: str) -> bool:
        return is_within("\n\n".join(texts), budget_tokens, count_tokens)

    rest = [it for it in parts if it.strip()]
    if not fits(*rest) and all(map(fits, rest)):
        outer = [rest[0], rest[-1]] if fits(rest[0], rest[-1]) else rest[-1:]
        return outer, rest[len(outer) - 1 : -1]
    head: list[str] = []
    tail: list[str] = []
    while rest and fits(rest[-1], *tail):
        tail.insert(0, rest.pop())
    while rest and fits(*head, rest[0], *tail):
        head.append(rest.pop(0))
    return head + tail, rest
