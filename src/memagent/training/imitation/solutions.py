"""What a perfect reader writes down: the evidence it has seen, or the words it has counted.

Each solution sees a document piece by piece. It gives the memory after each piece, and the answer at the end.
Prompts and replies are the job of `oracle`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from memagent.errors import SettingsError
from memagent.tasks import TASKS
from memagent.tasks.corpora import SENTENCE_END
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.scoring import substring_match
from memagent.tasks.words import CODED_NOISE
from memagent.types import Example, TokenCounter

REFUSAL = f"The memory {ABSENT_ANSWERS[0]}."
"""The answer if the memory does not hold one."""

_MIN_PIECE = 0.5  # of a sentence: a smaller piece, at a chunk's border, does not show what it is about
SENTENCE_ENDS = re.compile(rf"{SENTENCE_END.pattern}|\n+")
_TALLIED = {"cwe": re.compile(r"\s*\d+\.(?:\s+|$)"), "fwe": re.compile(r"\s+")}
_TALLY_TIMES = 4  # times as many words are counted as asked for: lower ranks may still rise


class Solution(Protocol):
    """What is known of a document from the pieces seen so far."""

    def see(self, start: int, end: int, limit_tokens: int) -> str:
        """The memory after the characters from `start` to `end`, of at most `limit_tokens`."""

    def answer(self) -> str:
        """The answer that the memory gives; `REFUSAL` if it gives none."""


def solution_of(example: Example, document: str, count_tokens: TokenCounter) -> Solution:
    """The solution of the example; `document` is its text as it is read.

    Raises `SettingsError` for an example that does not tell what its answers follow from.
    """
    if example.task in _TALLIED:
        return WordCounts(example, document, count_tokens)
    if not example.evidence and not set(example.answers) <= set(ABSENT_ANSWERS):
        raise SettingsError(
            f"the example {example.id} has no evidence, so the memory that leads to its answer is not "
            "known: leave it out, or add `evidence` to its row"
        )
    return Notes(example, document, count_tokens)


@dataclass(frozen=True, slots=True)
class Note:
    """A span of the document, and whether it holds an answer; `passage` is the index of its evidence."""

    start: int
    end: int
    passage: int
    telling: bool


class Notes:
    """The evidence, noted word for word as it comes, sentence by sentence.

    A sentence split by a chunk's border is noted in pieces as they are seen. A piece is noted if it is at
    least half of the sentence, holds part of an answer, or continues an earlier note. If there are too many
    notes, those without an answer go first, the longest before the others.
    """

    def __init__(self, example: Example, document: str, count_tokens: TokenCounter) -> None:
        self._example = example
        self._document = document
        self._count_tokens = count_tokens
        self._sentences = list(_find_sentences(example, document))
        self._answers = list(_find_spans(example, document, self._sentences))
        self._notes: list[Note] = []

    def see(self, start: int, end: int, limit_tokens: int) -> str:
        """The memory, with the evidence between these characters added."""
        for sentence in self._sentences:
            if note := self._note(sentence, start, end):
                self._notes.append(note)
        while self._notes and self._count_tokens(self._text()) > limit_tokens:
            self._notes.remove(max(self._notes, key=lambda it: (not it.telling, it.end - it.start)))
        return self._text()

    def answer(self) -> str:
        """The answers in the memory if several are asked for, else the first one if the memory supports it.

        `REFUSAL` if there is none. The example's rationale, if any, comes before the answer.
        """
        answer = ", ".join(self._find_answers())
        if not answer:
            return REFUSAL
        rationale = self._example.rationale
        return f"{rationale} The answer is {answer}." if rationale else answer

    def _find_answers(self) -> Sequence[str]:
        answers, memory = self._example.answers, self._text()
        task = TASKS.get(self._example.task)
        if task and task.wants_all:
            memory = memory.lower()
            found = [answer for answer in answers if answer.lower() in memory]
            return sorted(found, key=lambda it: memory.find(it.lower()))
        noted = {note.passage for note in self._notes}
        evidence = enumerate(self._example.evidence)
        complete = all(number in noted or text in memory for number, text in evidence)
        known = complete or substring_match(memory, answers) == 1
        return answers[:1] if self._notes and known else ()

    def _note(self, sentence: tuple[int, int, int], start: int, end: int) -> Note | None:
        """What to note of a sentence when these characters are seen, without the white space around it."""
        first, last, passage = sentence
        start, end = max(start, first), min(end, last)
        text = self._document[start : max(start, end)]
        start += len(text) - len(text.lstrip())
        end = start + len(text.strip())
        if start == end:
            return None
        note = Note(start, end, passage, any(a < end and start < b for a, b in self._answers))
        if any(first <= it.start < it.end <= start for it in self._notes):
            return note
        known = any(text.strip() == self._document[it.start : it.end] for it in self._notes)
        return note if not known and (note.telling or end - start >= _MIN_PIECE * (last - first)) else None

    def _text(self) -> str:
        """The notes, one per line; those adjacent in the document are joined as they stand there."""
        texts = [self._document[note.start : note.end] for note in self._notes]
        for number, (one, other) in enumerate(pairwise(self._notes)):
            gap = self._document[one.end : other.start]
            follows = one.passage == other.passage and one.end <= other.start and not gap.strip()
            texts[number] += gap if follows else "\n"
        return "".join(texts)


def _find_sentences(example: Example, document: str) -> Iterator[tuple[int, int, int]]:
    """The sentences of the evidence: start, end and the index of their passage."""
    for passage, (start, text) in enumerate(_find_passages(example, document)):
        ends = [match.span() for match in SENTENCE_ENDS.finditer(text)]
        starts = [0, *(after for _, after in ends)]
        for first, last in zip(starts, [*(before for before, _ in ends), len(text)], strict=True):
            yield start + first, start + last, passage


def _find_spans(
    example: Example, document: str, sentences: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int]]:
    one = re.compile("|".join(map(re.escape, example.answers)), re.IGNORECASE)
    for start, end, _ in sentences:
        yield from (match.span() for match in one.finditer(document, start, end))


def _find_passages(example: Example, document: str) -> Sequence[tuple[int, str]]:
    """Where the passages start. A title may occur often; its last place before the next passage counts."""
    places: list[tuple[int, str]] = []
    before = len(document)
    for text in reversed(example.evidence):
        before = document.rfind(text, 0, before + len(text) - 1 if places else before)
        if before < 0:
            raise SettingsError(f"{example.id}: the evidence {text!r} is not in the document or out of order")
        places.append((before, text))
    return places[::-1]


class WordCounts:
    """Words and how often they were seen, the most common first: what a counting reader can carry along.

    A word that drops out of the memory is counted from zero if it appears again.
    """

    def __init__(self, example: Example, document: str, count_tokens: TokenCounter) -> None:
        self._document = document
        self._count_tokens = count_tokens
        self._between = _TALLIED[example.task]
        self._wanted = len(example.answers)
        self._counts: list[tuple[str, int]] = []

    def see(self, start: int, end: int, limit_tokens: int) -> str:
        """The counts, with the words between these characters added."""
        counts = Counter(dict(self._counts))
        counts.update(self._between.split(self._document[start:end].strip()))
        for no_word in ("", CODED_NOISE):
            del counts[no_word]
        self._counts = counts.most_common(_TALLY_TIMES * self._wanted)
        while self._counts and self._count_tokens(self._text()) > limit_tokens:
            self._counts.pop()
        return self._text()

    def answer(self) -> str:
        """The most common words."""
        return ", ".join(word for word, _ in self._counts[: self._wanted]) or REFUSAL

    def _text(self) -> str:
        return ", ".join(f"{word} {count}" for word, count in self._counts)
