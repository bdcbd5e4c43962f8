"""Examples in files: JSON lines or a JSON list, gzipped if the name ends in .gz.

A row needs a `problem` (or `question`, `input`), a `document` (or `documents`, `context`), and `answers` (or
`answer`), an empty list if the document has none; the other fields of `Example` are optional. So MemAgent's
published files can be read as they are.

MemAgent trains on HotpotQA questions among 200 documents, `hqa` made from the train split, without those
that its base model answers closed-book (best of two; arXiv 2507.02259, section 4.1). Its test questions are
those of the dev split's first 200 that neither Qwen2.5-7B nor its Instruct version answers closed-book.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from memagent.concurrency import in_thread, map_concurrent
from memagent.documents.tokens import estimate_tokens
from memagent.errors import SettingsError, reason
from memagent.prompts.thoughts import without_thought
from memagent.storage import write_in_place
from memagent.tasks.corpora import open_text, parse_row, read_rows, read_text
from memagent.tasks.recipe import ABSENT_ANSWERS, count_long, number_documents
from memagent.tasks.scoring import score_reply
from memagent.types import Engine, Example, Message, Sampling, TokenCounter

_SAMPLING = Sampling(256, temperature=1.0, thinking=False)


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Write the examples and return how many there were. The file appears only when it is complete."""
    count = 0
    with new_file(Path(path)) as file:
        for example in examples:
            file.write(_line_of(example))
            count += 1
    return count


def _line_of(example: Example) -> str:
    return json.dumps(asdict(example)) + "\n"


@contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """A text file to write, gzipped if its name ends in .gz; it appears at `path` only if all goes well.

    Raises `SettingsError` if it cannot be written.
    """
    try:
        with write_in_place(path) as temporary, open_text(temporary, "wt") as file:
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


def load_example(path: str | Path) -> Example:
    """The example of a file that holds a single JSON object. Raises `SettingsError` if it is none."""
    path = Path(path)
    return example_of(parse_row(read_text(path), path, 1), path)


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


def example_of(
    row: dict[str, Any], path: Path, number: int = 1, count_tokens: TokenCounter = estimate_tokens
) -> Example:
    """The example of a row, which messages place at `path`. Raises `SettingsError` if it is none."""
    where = f"{path}, row {number}"
    task = str(row.get("task") or path.name.partition(".")[0])
    document = _document(row, where)
    problem, answers = question_of(row, where)
    length = row.get("length_tokens") or 0
    if not isinstance(length, int) or length < 0:
        raise SettingsError(f"{where}: length_tokens is {length!r}, it must be a whole number above 0")
    return Example(
        id=str(row.get("id") or f"{task}-{number}"),
        task=task,
        problem=problem,
        document=document,
        answers=answers,
        length_tokens=length or count_long(document, count_tokens),
        evidence=_evidence(row, document, where),
        **{name: _text(row[name], name, where) for name in ("rationale", "haystack") if row.get(name)},
    )


def _document(row: dict[str, Any], where: str) -> str:
    """The single document, or several under numbered headings, each with its title if it has one."""
    if isinstance(row.get("context"), list):  # as in the published files of more than 10,000 documents
        raise SettingsError(
            f"{where}: context is a list, not a text: make these examples again from the task hqa, "
            "with a number of `documents` and this file as its `questions`"
        )
    if "document" in row or "documents" not in row:
        return _text(row.get("document", row.get("context")), "document", where)
    texts = []
    if not isinstance(row["documents"], list) or not row["documents"]:
        raise SettingsError(f"{where}: documents is {row['documents']!r}, it must be a list of texts")
    for item in row["documents"]:
        if isinstance(item, dict) and "text" not in item:
            raise SettingsError(f"{where}: one of the documents has no `text`, only {', '.join(item)}")
        parts = [item.get("title"), item.get("text")] if isinstance(item, dict) else [item]
        texts.append("\n".join(_text(part, "documents", where) for part in parts if part or len(parts) == 1))
    return number_documents(texts)


def question_of(row: dict[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    """A row's problem and answers. Raises `SettingsError` if it lacks them."""
    problem = row.get("problem", row.get("question", row.get("input")))
    value = row.get("answers", row.get("answer"))
    given = [value] if isinstance(value, str | int | float) else value
    if not isinstance(given, list):
        raise SettingsError(
            f"{where} has no answers: give a list of texts, each of them right, or an empty list if the "
            "document has no answer"
        )
    answers = (str(answer) if isinstance(answer, int | float) else answer for answer in given)
    return _text(problem, "problem", where), tuple(
        _text(answer, "answers", where) for answer in answers
    ) or ABSENT_ANSWERS


def _evidence(row: dict[str, Any], document: str, where: str) -> tuple[str, ...]:
    """The passages that the answer follows from, in the document's order; empty if the row has none."""
    passages = row.get("evidence") or []
    if not isinstance(passages, list):
        raise SettingsError(f"{where}: evidence is {passages!r}, it must be a list of texts")
    for passage in passages:
        if _text(passage, "evidence", where) not in document:
            raise SettingsError(f"{where}: the document does not have the evidence {passage!r} word for word")
    return tuple(passages)


def _text(value: object, field: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"{where}: {field} is {value!r}, it must be text that is not empty")
    return value


@dataclass(frozen=True, slots=True)
class ClosedBook:
    """How to ask a model without the document: `attempts` times per question.

    A question is known if any attempt scores 1 by `scorer`. At temperature 0, all attempts are alike.
    """

    attempts: int = 2
    scorer: str = "substring_match"
    sampling: Sampling = _SAMPLING

    async def knows(self, engine: Engine, example: Example) -> bool:
        """Whether any attempt answers the question. Raises `EngineError`."""
        for attempt in range(self.attempts):
            seed = self.sampling.seed
            sampling = replace(self.sampling, seed=None if seed is None else seed + attempt)
            completion = await engine.complete((Message("user", example.problem),), sampling)
            if score_reply(self.scorer, without_thought(completion.text), example.answers) == 1:
                return True
        return False


async def write_unknown(
    path: Path, out: Path, engine: Engine, asking: ClosedBook, count: int | None = None
) -> tuple[int, int]:
    """Write the examples of a file that the model does not know, at most `count`, to another.

    Returns how many were written and how many were judged. Raises `SettingsError`, and `EngineError` if a
    call fails for good: a question that could not be asked is not "unknown".
    """

    async def judge(example: Example) -> tuple[Example, bool]:
        return example, await asking.knows(engine, example)

    written = judged = 0
    examples = in_thread(load_examples(path))
    with new_file(out) as file:
        async with aclosing(map_concurrent(judge, examples, engine.model.calls)) as verdicts:
            async for example, known in verdicts:
                judged += 1
                if not known:
                    written += 1
                    file.write(_line_of(example))
                if written == count:
                    break
    return written, judged
