"""The record of one read, which is also an engine: prompts that are on record are answered from it.

A journal is a log (`memagent.storage`): a header with everything that the read depends on; a line for each
reply, written as soon as it is paid for; a line for each conversation of the workflow; and the answer.
Replies are found by the digest of their prompt, in any order, each once. So every workflow can be resumed,
even one that holds conversations side by side. See docs/file-formats.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Self

from memagent.engines.wrappers import Wrapper
from memagent.errors import ContextOverflowError, JournalError
from memagent.reading.lines import Answer, Line, Overflow, RecordedReply, from_json, to_json
from memagent.storage import Log, read_log
from memagent.types import Completion, Conversation, Engine, Message, Sampling

FORMAT = 2
_BEGINNING = b'{"type": "header"'
_INCIDENTAL = ("created", "version", "given", "sources", "titles", "mark")
"""The fields in which headers of the same read may differ."""
_CHANGES = {
    "document.sha256": "the document has changed since the read began",
    "document.formats": "the document's files had names of other formats when the read began",
    "prompts": "the templates have changed since the read began",
    "memory": "the memory that it started from has changed",
}
"""The message for a difference whose values would mean nothing to the user."""


class Journal(Wrapper):
    """Records a read, and answers from what it recorded before; made by `Journal.open`."""

    def __init__(self, log: Log, engine: Engine) -> None:
        super().__init__(engine)
        self.path = log.path
        self.answer: str | None = None
        self.header: Mapping[str, Any] | None = None
        """The header on record; None in a new journal."""
        self.recalled = 0
        """How many replies came from the record."""
        self._log = log
        self._replies: defaultdict[str, deque[int]] = defaultdict(deque)  # offsets by the prompt's digest
        self._recorded: Counter[tuple[str, bool]] = Counter()  # by the prompt's digest and `unused`

    @classmethod
    def open(cls, path: Path, engine: Engine, resume: bool = False) -> Self:
        """Claim a journal and, with `resume`, read what is on record. Blocks; call `begin` next.

        Raises `JournalError` for a file that cannot be used, and without `resume` for one that holds a read.
        """
        journal = cls(Log(path, JournalError, _BEGINNING), engine)
        try:
            journal._load(resume)
        except BaseException:
            journal._log.close()
            raise
        return journal

    def _load(self, resume: bool) -> None:
        number = 0
        for number, (line, offset) in enumerate(self._log.lines()):
            if number and not resume:
                raise JournalError(
                    f"{self.path} already holds a read: add `resume` to continue it, or name another `trace`"
                )
            _check_line(number, line, self.path)
            match line["type"]:
                case "header":
                    self.header = line
                case "reply" | "overflow":
                    self._replies[line["prompt_sha256"]].append(offset)
                case "conversation":
                    self._recorded[line["prompt_sha256"], line["unused"]] += 1
                case "answer":
                    self.answer = line["answer"]
        if not number:  # no reply was paid for: the new read takes its place
            self.header = None
        self._log.cut(self._log.end if number else 0)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write the header of a new read, or check that the record is of this one. Blocks.

        Raises `JournalError`, saying what differs.
        """
        header = {"type": "header", "format": FORMAT, **json.loads(json.dumps(header))}
        if self.header is None:
            self._log.append(header)
        elif changed := difference(self.header, header):
            raise JournalError(
                f"{self.path} cannot be resumed: {changed}; "
                "for a new read leave out `resume` and name another `trace`"
            )

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete from the record, or with the engine, whose reply is on disk when this returns."""
        digest = prompt_digest(messages, sampling)
        match await self._recall(digest):
            case Overflow(error=message, unusable=unusable):
                overflow = ContextOverflowError(message)
                overflow.unusable = unusable
                raise overflow
            case RecordedReply(completion=completion):
                self.recalled += 1
                return completion
        try:
            completion = await self.engine.complete(messages, sampling)
        except ContextOverflowError as error:
            await self._write(to_json(Overflow(digest, str(error), error.paid)))
            raise
        await self._write(to_json(RecordedReply(digest, completion)))
        return completion

    def left_over(self) -> list[Completion]:
        """The replies on record that were not asked for again. Blocks."""
        offsets = chain.from_iterable(self._replies.values())
        lines = (from_json(self._log.at(offset)) for offset in offsets)
        return [line.completion for line in lines if isinstance(line, RecordedReply)]

    def close(self) -> None:
        """Release the file; the engine stays open."""
        self._log.close()

    async def append(self, conversation: Conversation) -> None:
        """Write the outcome of a conversation, unless it is already on record."""
        digest = prompt_digest(conversation.messages)
        key = digest, conversation.unused  # a prompt asked ahead in vain may be asked again in its turn
        if self._recorded[key]:
            self._recorded[key] -= 1
            return
        line = to_json(conversation) | {"prompt_sha256": digest}
        await self._write(line, sync=False)  # it follows from the reply, which is on disk

    async def finish(self, answer: Answer) -> None:
        """Write the answer, which ends the journal, unless it is already on record."""
        if self.answer != answer.answer:
            await self._write(to_json(answer))
            self.answer = answer.answer

    async def _write(self, line: Mapping[str, Any], sync: bool = True) -> None:
        try:
            await asyncio.to_thread(self._log.append, line, sync)
        except JournalError as error:
            raise JournalError(f"{error}; once it can be, `resume` continues the read") from error

    async def _recall(self, digest: str) -> Line | None:
        """A recorded line of a prompt; each is used once."""
        offsets = self._replies.get(digest)
        return from_json(await asyncio.to_thread(self._log.at, offsets.popleft())) if offsets else None


def prompt_digest(messages: tuple[Message, ...], sampling: Sampling | None = None) -> str:
    """SHA-256 (16 hex digits) of the messages of a prompt, and of how its completion is drawn."""
    texts = [f"{message.role}\x1f{message.content}" for message in messages]
    if sampling is not None:
        texts.append(repr(sampling))
    return hashlib.sha256("\x1e".join(texts).encode("utf-8", "replace")).hexdigest()[:16]


def read_journal(path: Path) -> Iterator[Line]:
    """The lines of a journal, which may be in use; a torn last line is left out. Raises `JournalError`.

    The first is the `Header`.
    """
    for number, line in enumerate(read_log(path, JournalError, _BEGINNING)):
        _check_line(number, line, path)
        yield from_json(line)


def _check_line(number: int, line: Mapping[str, Any], path: Path) -> None:
    """Raise `JournalError` unless the first line, and no other, is a header of this format."""
    if (number == 0) != (line.get("type") == "header"):
        raise JournalError(f"{path}, line {number + 1}: not a line of a journal")
    if number == 0 and line.get("format") != FORMAT:
        raise JournalError(f"{path} has format {line.get('format')}, this version reads {FORMAT}")


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> str:
    """The difference between two headers, or "" if all that a read depends on is the same."""

    # Another workflow also has other prompts and options, but says more than they do; digests say least.
    def order(key: str) -> tuple[bool, bool, str]:
        return key != "workflow", f"{prefix}{key}" in _CHANGES, key

    for key in sorted(old.keys() | new.keys(), key=order):
        before, after = old.get(key), new.get(key)
        if before == after or key in _INCIDENTAL:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            if inner := difference(before, after, f"{prefix}{key}."):
                return inner
            continue
        name = f"{prefix}{key}"
        return _CHANGES.get(name) or f"{name} was {_short(before)}, now it is {_short(after)}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def new_path(folder: Path, document: str, problem: str) -> Path:
    """The path of a journal that was given none: named by time, document (its SHA-256) and problem."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{now}-{os.getpid()}-{_key(document, problem)}.jsonl"


def earlier_paths(folder: Path, document: str, problem: str) -> list[Path]:
    """The journals of this document and problem in a folder, largest first, then newest first."""
    paths = folder.glob(f"*-{_key(document, problem)}.jsonl")
    return sorted(paths, key=lambda path: (path.stat().st_size, path.name), reverse=True)


def _key(document: str, problem: str) -> str:
    return f"{document[:12]}-{hashlib.sha256(problem.encode('utf-8', 'replace')).hexdigest()[:8]}"
