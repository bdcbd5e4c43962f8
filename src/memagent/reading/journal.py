"""The append-only record of one read, and going on from it after a crash.

A journal is JSON lines: a header with everything the read depends on, one line a conversation
(written as soon as it is finished) or overflow, and the answer. It is itself an engine: prompts
that it has on record are answered from the record, all others by the engine it wraps. So a resumed
read is the same read from the start, with what was paid for taken from the file.
See docs/file-formats.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

from memagent.errors import ContextOverflowError, JournalError
from memagent.types import Completion, Conversation, Engine, Message, Model, Sampling, Usage, model_of

FORMAT = 1
_BEGINNING = b'{"type": "header"'


class Journal:
    """Records a read, and replays what it has recorded before.

    With `resume`, an existing file is gone on with; it must have been made with the same `header`.
    Without, a file that holds an unfinished read, or that is no journal, is not overwritten.
    Raises `JournalError`.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], engine: Engine, resume: bool = False) -> None:
        self.path = path
        self.engine = engine
        self.answer: str | None = None
        self._ahead: defaultdict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._replayed: Counter[str] = Counter()
        self._record: Iterator[dict[str, Any]] = iter(())
        header = {"type": "header", "format": FORMAT, **json.loads(json.dumps(header))}
        kept = 0
        if path.exists():
            kept = self._go_on(header) if resume else self._make_way()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # "a", so that a journal in use is not emptied before that is known.
            self._file: IO[str] = path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")
            claim(self._file, JournalError(f"{path} is in use by another read: wait for it, or stop it"))
            self._file.truncate(kept)
        except OSError as error:
            raise JournalError(f"the journal {path} cannot be written: {error.strerror}") from error
        if kept:
            self._record = (line for line, _ in read_lines(path) if "prompt_sha256" in line)
        else:
            self._write(header)

    @property
    def model(self) -> Model:
        """The model of the engine it wraps."""
        return model_of(self.engine)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """From the record, or from the engine."""
        digest = prompt_digest(messages)
        if (line := self._recall(digest)) is not None:
            if line["type"] == "overflow":
                raise ContextOverflowError(line["error"])
            self._replayed[digest] += 1
            return Completion(line["reply"], line["finish_reason"], usage=Usage(**line["usage"]))
        try:
            return await self.engine.complete(messages, sampling)
        except ContextOverflowError as error:
            self._write({"type": "overflow", "prompt_sha256": digest, "error": str(error)})
            raise

    async def aclose(self) -> None:
        """Close the file; the engine stays open."""
        with suppress(OSError):  # what could not be written was told when it was tried
            self._file.close()

    def append(self, conversation: Conversation) -> None:
        """Write a finished conversation, unless it came from the record."""
        digest = prompt_digest(conversation.messages)
        if self._replayed[digest]:
            self._replayed[digest] -= 1
            return
        completion = conversation.completion
        self._write(
            {
                "type": "conversation",
                "kind": conversation.kind,
                "chunk_index": conversation.chunk_index,
                "span": conversation.span,
                "source": conversation.source,
                "prompt_sha256": digest,
                "reply": completion.text,
                "finish_reason": completion.finish_reason,
                "usage": asdict(completion.usage),
                "memory": conversation.memory,
                "enough": conversation.enough,
                "seconds": round(conversation.seconds, 3),
            }
        )

    def finish(self, answer: str) -> None:
        """Write the answer, which ends the journal."""
        if self.answer is None:
            self._write({"type": "answer", "answer": answer})
            self.answer = answer

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise JournalError(
                f"the journal {self.path} cannot be written: {error.strerror}; once it can, --resume goes on"
            ) from error

    def _recall(self, digest: str) -> dict[str, Any] | None:
        """The recorded line of a prompt, each once; read from the file no further than needed."""
        while not self._ahead[digest]:
            line = next(self._record, None)
            if line is None:
                break
            self._ahead[line["prompt_sha256"]].append(line)
        if found := self._ahead.pop(digest, None):
            line = found.popleft()
            if found:
                self._ahead[digest] = found
            return line
        if self._ahead:
            raise JournalError(
                f"{self.path} was made from other prompts ({len(self._ahead)} of its conversations "
                "were not met again): the tokenizer or this program has changed; start a new --trace"
            )
        return None

    def _go_on(self, header: Mapping[str, Any]) -> int:
        """Check that the record is of this read. Returns how many bytes of it are whole lines."""
        kept = 0
        for line, end in read_lines(self.path):
            if kept == 0 and (changed := difference(line, header)):
                raise JournalError(f"{self.path} cannot be resumed: {changed}")
            kept = end
            self.answer = line["answer"] if line["type"] == "answer" else None
        return kept

    def _make_way(self) -> int:
        """Refuse to overwrite what is still of use."""
        types = [line["type"] for line, _ in read_lines(self.path)]
        if len(types) > 1 and types[-1] != "answer":
            raise JournalError(
                f"{self.path} holds an unfinished read: add --resume to go on with it, or delete it"
            )
        return 0


def claim(file: IO[Any], refusal: Exception) -> None:
    """Hold a file alone until it is closed or the process ends; raise `refusal` if another one does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise refusal from error


def prompt_digest(messages: tuple[Message, ...]) -> str:
    """SHA-256 (16 hex digits) of the messages of a prompt."""
    text = "\x1e".join(f"{message.role}\x1f{message.content}" for message in messages)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def read_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The lines of a journal, each with the offset of its end in bytes; a torn last line is left out.

    Raises `JournalError` if the file cannot be read or is not a journal.
    """
    try:
        with path.open("rb") as file:
            end = 0
            for number, raw in enumerate(file, 1):
                line = _parsed(raw)
                torn = line is None and not file.peek(1)
                if torn and (number > 1 or raw.startswith(_BEGINNING) or _BEGINNING.startswith(raw)):
                    return
                if line is None or (number == 1) != (line.get("type") == "header"):
                    raise JournalError(f"{path}, line {number}: not a memagent journal")
                if line.get("format", FORMAT) != FORMAT:
                    raise JournalError(f"{path} has format {line['format']}, this version reads {FORMAT}")
                end += len(raw)
                yield line, end
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be read: {error.strerror}") from error


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw) if raw.endswith(b"\n") else None
    except ValueError:
        return None
    return line if isinstance(line, dict) and "type" in line else None


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> str:
    """Say how two headers differ, or "" if they do not in anything that a read depends on."""
    # `prompts` last: a digest says little, and another workflow brings other prompts.
    for key in sorted(old.keys() | new.keys(), key=lambda key: (key == "prompts", key)):
        before, after = old.get(key), new.get(key)
        if before == after or key in ("created", "version", "sources"):
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            if inner := difference(before, after, f"{prefix}{key}."):
                return inner
            continue
        return f"{prefix}{key} was {_short(before)}, now it is {_short(after)}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def new_path(folder: Path, document: str, problem: str) -> Path:
    """Where a journal goes that was given no place: named by time, document (its SHA-256) and problem."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return folder / f"{now}-{os.getpid()}-{_key(document, problem)}.jsonl"


def earlier_paths(folder: Path, document: str, problem: str) -> list[Path]:
    """The journals there of this document and problem: the newest first, those without a conversation last.

    Raises `JournalError` if there is none.
    """
    newest = sorted(folder.glob(f"*-{_key(document, problem)}.jsonl"), reverse=True)
    if not newest:
        raise JournalError(f"no journal of this document and problem in {folder}: leave out --resume")
    return sorted(newest, key=_is_bare)


def _is_bare(path: Path) -> bool:
    """Whether a journal has nothing to go on from."""
    try:
        return len(list(islice(read_lines(path), 2))) < 2
    except JournalError:
        return True


def _key(document: str, problem: str) -> str:
    return f"{document[:12]}-{hashlib.sha256(problem.encode('utf-8', 'replace')).hexdigest()[:8]}"
