"""The lines of a journal as values, and as the JSON that they are written in. See docs/file-formats.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from memagent.errors import JournalError
from memagent.reading.sources import Statement, statements_from
from memagent.types import Completion, Conversation, Usage


@dataclass(frozen=True, slots=True)
class Header:
    """What a read depends on: all of it is in `values`, the part that is shown in the other fields."""

    problem: str
    memory: str
    model: str
    workflow: str
    budgets: Mapping[str, int]
    sha256: str
    sources: tuple[str, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """The reply to the prompt with this digest."""

    prompt_sha256: str
    completion: Completion


@dataclass(frozen=True, slots=True)
class Overflow:
    """The prompt with this digest does not fit the model's window; `unusable` is what was paid for it."""

    prompt_sha256: str
    error: str
    unusable: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a read: as in `Result`.

    `statements` are None if no sources were looked for.
    """

    answer: str
    found: bool = True
    statements: tuple[Statement, ...] | None = None


Line = Header | RecordedReply | Overflow | Conversation | Answer
"""A line of a journal; a `Conversation` is without its prompt and the text of its reply."""

_ELSEWHERE = {"messages", "completion"}  # fields of a conversation that follow from its prompt's digest


def to_json(line: Line) -> dict[str, Any]:
    """A line as it is written."""
    match line:
        case Header():
            return {"type": "header", **line.values}
        case RecordedReply():
            completion = line.completion
            return {
                "type": "reply",
                "prompt_sha256": line.prompt_sha256,
                "reply": completion.text,
                "finish_reason": completion.finish_reason,
                **_usage_of(completion),
                **({"alternatives": dict(completion.alternatives)} if completion.alternatives else {}),
            }
        case Overflow():
            return {"type": "overflow", **asdict(line)}
        case Conversation():
            return {"type": "conversation", **outcome_of(line)}
        case Answer():
            return {"type": "answer", **asdict(line)}


def outcome_of(conversation: Conversation) -> dict[str, Any]:
    """A conversation without its prompt and reply."""
    values = {field.name: getattr(conversation, field.name) for field in fields(conversation)}
    completion = conversation.completion
    own = {name: value for name, value in values.items() if name not in _ELSEWHERE}
    if own["table"] is None:
        del own["table"]
    return own | {
        "seconds": round(conversation.seconds, 3),
        "finish_reason": completion.finish_reason,
        **_usage_of(completion),
    }


def _usage_of(completion: Completion) -> dict[str, Any]:
    unusable = [asdict(usage) for usage in completion.unusable]
    return {"usage": asdict(completion.usage), **({"unusable": unusable} if unusable else {})}


def from_json(line: Mapping[str, Any]) -> Line:
    """The reverse of `to_json`. Raises `JournalError` for what is no line of a journal."""
    try:
        match line["type"]:
            case "header":
                return _header(line)
            case "reply":
                completion = _completion(line, line["reply"])
                completion = replace(completion, alternatives=line.get("alternatives", {}))
                return RecordedReply(line["prompt_sha256"], completion)
            case "overflow":
                return Overflow(line["prompt_sha256"], line["error"], _unusable(line))
            case "conversation":
                return _conversation(line)
            case "answer":
                recorded = line["statements"]
                statements = None if recorded is None else statements_from(recorded)
                return Answer(line["answer"], line["found"], statements)
    except (KeyError, TypeError) as error:
        raise JournalError(f"{str(line)[:60]}... is not a line of a journal: {error}") from error
    raise JournalError(f"{line['type']!r} is not a kind of line that this version reads: update memagent")


def _header(line: Mapping[str, Any]) -> Header:
    document = line["document"]
    return Header(
        problem=line["problem"],
        memory=line["memory"],
        model=line["model"],
        workflow=line["workflow"],
        budgets=line["budgets"],
        sha256=document["sha256"],
        sources=tuple(document["sources"]),
        values={name: value for name, value in line.items() if name != "type"},
    )


def _conversation(line: Mapping[str, Any]) -> Conversation:
    own = {field.name for field in fields(Conversation)} & line.keys()
    values = {name: line[name] for name in own}
    if line["span"] is not None:
        values["span"] = tuple(line["span"])
    return Conversation(messages=(), completion=_completion(line, ""), **values)


def _completion(line: Mapping[str, Any], text: str) -> Completion:
    return Completion(text, line["finish_reason"], usage=Usage(**line["usage"]), unusable=_unusable(line))


def _unusable(line: Mapping[str, Any]) -> tuple[Usage, ...]:
    return tuple(Usage(**usage) for usage in line.get("unusable", ()))
