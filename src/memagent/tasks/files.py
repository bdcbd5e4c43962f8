"""Examples in files: JSON lines or a JSON list, gzipped if the name ends in .gz.

A row needs a `problem` (or `question`, `input`), a `document` (or `documents`, `context`), and `answers` (or
`answer`); the other fields of `Example` are optional. So MemAgent's published files can be read as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from memagent.documents.tokens import estimate_tokens
from memagent.errors import SettingsError, reason
from memagent.storage import write_in_place
from memagent.tasks.corpora import open_text, parse_row, read_rows
from memagent.tasks.lengths import count_long
from memagent.tasks.recipe import number_documents
from memagent.types import Example, TokenCounter


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Write the examples and return how many there were. The file appears only when it is complete."""
    count = 0
    with new_file(Path(path)) as file:
        for example in examples:
            file.write(line_of(example))
            count += 1
    return count


def line_of(example: Example) -> str:
    """An example as a line of a file."""
    return json.dumps(asdict(example)) + "\n"


@contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """A text file to write, gzipped if its name ends in .gz; it appears at `path` only if all goes well.

    Raises `SettingsError` if it cannot be written.
    """
    try:
        with write_in_place(path) as place, open_text(place, "wt") as file:
            yield file
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {reason(error)}") from error


def load_examples(path: str | Path, count_tokens: TokenCounter | None = None) -> Iterator[Example]:
    """The examples of a file, one in memory at a time.

    `count_tokens` counts the documents whose row gives no length; without it, lengths are estimated. Raises
    `SettingsError` naming the row that is not an example.
    """
    path, count = Path(path), count_tokens or estimate_tokens
    for number, row in read_rows(path):
        yield example_of(row, path, number, count)


@dataclass(frozen=True, slots=True)
class ExampleLine:
    """Where an example stands in a plain JSONL file, so that its document need not stay in memory."""

    path: Path
    number: int
    offset: int  # bytes

    def example(self, count_tokens: TokenCounter) -> Example:
        """Read the example. Raises `SettingsError` if the file cannot be read, or its row is not one."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                line = file.readline()
        except OSError as error:
            raise SettingsError(f"{self.path} cannot be read on this machine: {reason(error)}") from error
        row = parse_row(line, self.path, self.number)
        return example_of(row, self.path, self.number, count_tokens)


def example_lines(path: Path) -> Iterator[ExampleLine]:
    """The non-blank lines of a plain file. Raises `SettingsError` if it cannot be read."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield ExampleLine(path, number, offset)
                offset += len(line)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {reason(error)}") from error


def example_of(row: dict[str, Any], path: Path, number: int, count_tokens: TokenCounter) -> Example:
    """The example in a row that is numbered `number`. Raises `SettingsError` if it is not one."""
    place = f"{path}, row {number}"
    task = str(row.get("task") or path.name.partition(".")[0])
    document = _document(row, place)
    problem, answers = question_of(row, place)
    return Example(
        id=str(row.get("id") or f"{task}-{number}"),
        task=task,
        problem=problem,
        document=document,
        answers=answers,
        length_tokens=_length(row, place) or count_long(document, count_tokens),
        evidence=_evidence(row, document, place),
        **{name: _text(row[name], name, place) for name in ("rationale", "haystack") if row.get(name)},
    )


def _document(row: dict[str, Any], place: str) -> str:
    """The single document, or several under numbered headings, each with its title if it has one."""
    if isinstance(row.get("context"), list):  # as in the published files of more than 10,000 documents
        raise SettingsError(
            f"{place}: context is a list, not a text: make these examples again from the task hqa, "
            "with a number of `documents` and this file as its `questions`"
        )
    if "document" in row or "documents" not in row:
        return _text(row.get("document", row.get("context")), "document", place)
    texts = []
    if not isinstance(row["documents"], list) or not row["documents"]:
        raise SettingsError(f"{place}: documents is {row['documents']!r}, it must be a list of texts")
    for item in row["documents"]:
        if isinstance(item, dict) and "text" not in item:
            raise SettingsError(f"{place}: one of the documents has no `text`, only {', '.join(item)}")
        parts = [item.get("title"), item.get("text")] if isinstance(item, dict) else [item]
        texts.append("\n".join(_text(part, "documents", place) for part in parts if part or len(parts) == 1))
    return number_documents(texts)


def question_of(row: dict[str, Any], place: str) -> tuple[str, tuple[str, ...]]:
    """A row's problem and answers. Raises `SettingsError` if it lacks them."""
    problem = row.get("problem", row.get("question", row.get("input")))
    return _text(problem, "problem", place), _answers(row.get("answers", row.get("answer")), place)


def _answers(value: object, place: str) -> tuple[str, ...]:
    answers = [value] if isinstance(value, str | int | float) else value
    if not isinstance(answers, list) or not answers:
        raise SettingsError(f"{place} has no answers: give a list of texts, each of them right")
    return tuple(_text(str(item) if isinstance(item, int | float) else item, "answers", place)
                 for item in answers)  # fmt: skip


def _evidence(row: dict[str, Any], document: str, place: str) -> tuple[str, ...]:
    """The passages that the answer follows from, in the document's order; empty if the row has none."""
    passages = row.get("evidence") or []
    if not isinstance(passages, list):
        raise SettingsError(f"{place}: evidence is {passages!r}, it must be a list of texts")
    for passage in passages:
        if _text(passage, "evidence", place) not in document:
            raise SettingsError(f"{place}: the document does not have the evidence {passage!r} word for word")
    return tuple(passages)


def _length(row: dict[str, Any], place: str) -> int:
    value = row.get("length_tokens") or 0
    if not isinstance(value, int) or value < 0:
        raise SettingsError(f"{place}: length_tokens is {value!r}, it must be a whole number above 0")
    return value


def _text(value: object, field: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"{place}: {field} is {value!r}, it must be text that is not empty")
    return value
