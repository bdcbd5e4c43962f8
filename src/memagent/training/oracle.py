"""The perfect memory-writer: an engine that knows what each example's answer follows from.

It runs the package's workflows unchanged, so a warm start trains on conversations with exactly the prompts
of a read. It never says ENOUGH, since what was read does not tell whether more is to come. It notes the
evidence it has seen, or the words it has counted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Protocol

from memagent.documents.opening import text_document
from memagent.documents.tokens import shorten
from memagent.errors import EngineError, SettingsError
from memagent.prompts import MEMORY, UNCHANGED, Prompts
from memagent.tasks import TASKS
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.tasks.scoring import is_absent, substring_match
from memagent.tasks.words import CODED_NOISE
from memagent.text import SENTENCE_GAP
from memagent.types import Completion, Engine, Example, Message, Model, Sampling, TokenCounter, Usage

REFUSAL = f"The memory {ABSENT_ANSWERS[0]}."
"""The answer if the memory does not hold one."""

_CHUNK = "\ue000chunk\ue000"  # stands for the chunk when prompts are compared; occurs in no document
_SENTENCE_ENDS = re.compile(rf"{SENTENCE_GAP.pattern}|\n+")
_MIN_PIECE = 0.5  # of a sentence: a smaller piece, at a chunk's border, does not show what it is about
_TALLIED = {"cwe": re.compile(r"\s*\d+\.(?:\s+|$)"), "fwe": re.compile(r"\s+")}
_TALLY_TIMES = 4  # times as many words are counted as asked for: lower ranks may still rise


class Expert(Engine, Protocol):
    """An engine to imitate, for one read; `erred` holds its replies that are not to be imitated."""

    erred: set[str]


MakeExpert = Callable[[Example, Prompts, Model], Expert]
"""Makes the expert of an example, with the prompts of its read, for the model being trained."""


class Oracle:
    """The perfect expert for one example.

    It replies to an update with the memory so far and the evidence in the chunk. If there is none, it replies
    UNCHANGED if the prompt offers that word, and otherwise with the memory as it is. At the end it gives the
    gold answer, or says that the memory does not hold it. A mistake is a note of the sentence that shares the
    most words with the problem; it is dropped with the next note. Raises `SettingsError` for an example whose
    solution is not known.
    """

    def __init__(self, example: Example, prompts: Prompts, model: Model, mistakes: float = 0.0) -> None:
        self.erred: set[str] = set()
        self.model = replace(model, name="oracle")
        self._example = example
        mark = text_document(example.document, is_example=True).mark
        self.prompts = prompts.for_document(mark, guards_turns=model.reads_turn_tokens, asks=False)
        self._document = self._clean(example.document)
        cleaned = replace(example, evidence=tuple(map(self._clean, example.evidence)))
        solve = WordCounts if example.task in _TALLIED else Notes
        self._solution = solve(cleaned, self._document, self._count_tokens)
        self._position = 0
        self._noted = ""
        self._memory = ""
        self._mistakes = mistakes
        self._source = random.Random(example.id)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """The perfect reply. Raises `EngineError` for a prompt that does not belong to this read."""
        problem = self._example.problem
        if messages == self.prompts.fill("answer", problem=problem, memory=self._memory):
            return self._completion(messages, self._solution.answer(), sampling)
        if chunk := self._find_chunk(messages):
            return self._completion(messages, self._update(chunk, sampling), sampling)
        raise EngineError(
            f"the oracle did not write the memory of a prompt for {self._example.id}: it plays only "
            "workflows that keep each reply as the memory, with the prompts that it was given"
        )

    async def aclose(self) -> None:
        """Nothing to release."""

    def _update(self, chunk: str, sampling: Sampling) -> str:
        start = self._document.find(chunk, self._position)
        if start < 0:
            raise EngineError(f"{self._example.id}: a chunk is not in the document, or was read before")
        self._position = start + len(chunk)
        head = f"{MEMORY}\n" if self.prompts.replies == "marked" else ""
        # The end of a reply needs room too, and so does its head.
        limit_tokens = sampling.max_tokens - 1 - (self._count_tokens(head) if head else 0)
        noted, self._noted = self._noted, self._solution.see(start, self._position, limit_tokens)
        idle, may_leave = self._noted == noted, UNCHANGED in self.prompts.update
        mistake = self._add_mistake(chunk, limit_tokens) if idle and self._errs() else ""
        before, right = self._memory, self._memory if idle and may_leave else self._noted
        self._memory = mistake or right
        if may_leave and self._memory == before:
            return UNCHANGED
        reply = head + self.prompts.neutralise(self._memory or self.prompts.empty_memory)
        if mistake:
            self.erred.add(reply)
        return reply

    def _errs(self) -> bool:
        return self._source.random() < self._mistakes

    def _add_mistake(self, chunk: str, limit_tokens: int) -> str:
        """The memory with a sentence of the chunk that does not belong there; empty if none fits."""
        problem_words = _words(self._example.problem)
        sentences = _SENTENCE_ENDS.split(chunk.strip())
        for sentence in sorted(
            sentences, key=lambda sentence: len(problem_words & _words(sentence)), reverse=True
        ):
            after = f"{self._noted}\n{sentence}".strip()
            if self._count_tokens(after) <= limit_tokens:
                return after
        return ""

    def _find_chunk(self, messages: tuple[Message, ...]) -> str:
        """The chunk in an update's prompt; empty for another kind of prompt, or for another memory."""
        expected = self.prompts.fill(
            "update", problem=self._example.problem, chunk=_CHUNK, memory=self._memory
        )
        if messages[:-1] != expected[:-1]:
            return ""
        text, parts = messages[-1].content, expected[-1].content.split(_CHUNK)
        length = (len(text) - sum(map(len, parts))) // (len(parts) - 1)
        chunk = text[len(parts[0]) : len(parts[0]) + length] if length > 0 else ""
        return self.prompts.restore(chunk) if chunk.join(parts) == text else ""

    def _clean(self, text: str) -> str:
        """The text as a reader sees it: without the few characters that no prompt can carry."""
        return self.prompts.restore(self.prompts.neutralise(text))

    def _count_tokens(self, text: str) -> int:
        return self.model.count_tokens(self.prompts.neutralise(text))

    def _completion(self, messages: tuple[Message, ...], text: str, sampling: Sampling) -> Completion:
        whole, text = text, shorten(text, sampling.max_tokens, self.model.count_tokens)
        usage = Usage(self.model.count_prompt(messages), self.model.count_tokens(text))
        return Completion(text, "stop" if text == whole else "length", usage=usage)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


class Span(NamedTuple):
    """A sentence of the evidence, or what was noted of one; `passage` is the index of its evidence."""

    start: int
    end: int
    passage: int


class Notes:
    """The evidence, noted word for word as it comes, sentence by sentence.

    A sentence split by a chunk's border is noted in pieces as they are seen. A piece is noted if it is at
    least half of the sentence, holds part of an answer, or continues an earlier note. If there are too many
    notes, those without an answer go first, the longest before the others. `document` is the example's text
    as it is read. Raises `SettingsError` for an example that does not tell what its answers follow from.
    """

    def __init__(self, example: Example, document: str, count_tokens: TokenCounter) -> None:
        if not example.evidence and not is_absent(example.answers):
            raise SettingsError(
                f"the example {example.id} has no evidence, so the memory that leads to its answer is not "
                "known: leave it out, or add `evidence` to its row"
            )
        self._example = example
        self._document = document
        self._count_tokens = count_tokens
        self._sentences = list(_find_sentences(example, document))
        answer = re.compile("|".join(map(re.escape, example.answers)), re.IGNORECASE)
        searches = (answer.finditer(document, sentence.start, sentence.end) for sentence in self._sentences)
        self._answers = [match.span() for matches in searches for match in matches]
        self._notes: list[Span] = []

    def see(self, start: int, end: int, limit_tokens: int) -> str:
        """The memory, with the evidence between these characters added."""
        for sentence in self._sentences:
            if note := self._note(sentence, start, end):
                self._notes.append(note)
        while self._notes and self._count_tokens(self._text()) > limit_tokens:
            self._notes.remove(
                max(self._notes, key=lambda note: (not self._tells(note), note.end - note.start))
            )
        return self._text()

    def answer(self) -> str:
        """The example's rationale, if any, and the answers that the memory holds; `REFUSAL` if none."""
        answer = ", ".join(self._find_answers())
        if not answer:
            return REFUSAL
        rationale = self._example.rationale
        return f"{rationale} The answer is {answer}." if rationale else answer

    def _find_answers(self) -> Sequence[str]:
        """The answers in the memory if several are asked for, else the first if the memory supports it."""
        answers, memory = self._example.answers, self._text()
        task = TASKS.get(self._example.task)
        if task and task.wants_all:
            memory = memory.lower()
            present = [answer for answer in answers if answer.lower() in memory]
            return sorted(present, key=lambda answer: memory.find(answer.lower()))
        noted = {note.passage for note in self._notes}
        evidence = enumerate(self._example.evidence)
        complete = all(number in noted or text in memory for number, text in evidence)
        known = complete or substring_match(memory, answers) == 1
        return answers[:1] if self._notes and known else ()

    def _note(self, sentence: Span, start: int, end: int) -> Span | None:
        """What to note of a sentence when these characters are seen, without the white space around it."""
        start, end = max(start, sentence.start), min(end, sentence.end)
        text = self._document[start : max(start, end)]
        start += len(text) - len(text.lstrip())
        note = Span(start, start + len(text.strip()), sentence.passage)
        if note.start == note.end:
            return None
        if any(sentence.start <= earlier.start < earlier.end <= start for earlier in self._notes):
            return note
        large = note.end - note.start >= _MIN_PIECE * (sentence.end - sentence.start)
        known = any(text.strip() == self._document[earlier.start : earlier.end] for earlier in self._notes)
        return note if (large or self._tells(note)) and not known else None

    def _tells(self, note: Span) -> bool:
        """Whether the note holds part of an answer."""
        return any(start < note.end and note.start < end for start, end in self._answers)

    def _text(self) -> str:
        """The notes, one per line; those adjacent in the document are joined as they stand there."""
        texts = [self._document[note.start : note.end] for note in self._notes]
        for number, (one, other) in enumerate(pairwise(self._notes)):
            gap = self._document[one.end : other.start]
            follows = one.passage == other.passage and one.end <= other.start and not gap.strip()
            texts[number] += gap if follows else "\n"
        return "".join(texts)


def _find_sentences(example: Example, document: str) -> Iterator[Span]:
    for passage, (start, text) in enumerate(_find_passages(example, document)):
        ends = [match.span() for match in _SENTENCE_ENDS.finditer(text)]
        starts = [0, *(after for _, after in ends)]
        for first, last in zip(starts, [*(before for before, _ in ends), len(text)], strict=True):
            yield Span(start + first, start + last, passage)


def _find_passages(example: Example, document: str) -> Sequence[tuple[int, str]]:
    """Where the passages start. A title may occur often; its last position before the next passage counts."""
    positions: list[tuple[int, str]] = []
    before = len(document)
    for text in reversed(example.evidence):
        before = document.rfind(text, 0, before + len(text) - 1 if positions else before)
        if before < 0:
            raise SettingsError(f"{example.id}: the evidence {text!r} is not in the document or out of order")
        positions.append((before, text))
    return positions[::-1]


class WordCounts:
    """Words and how often they were seen, the most common first: what a counting reader can carry along.

    A word that drops out of the memory is counted from zero if it appears again.
    """

    def __init__(self, example: Example, document: str, count_tokens: TokenCounter) -> None:
        self._document = document
        self._count_tokens = count_tokens
        self._between = _TALLIED[example.task]
        self._most_words = len(example.answers)
        self._counts: list[tuple[str, int]] = []

    def see(self, start: int, end: int, limit_tokens: int) -> str:
        """The counts, with the words between these characters added."""
        counts = Counter(dict(self._counts))
        counts.update(self._between.split(self._document[start:end].strip()))
        for no_word in ("", CODED_NOISE):
            del counts[no_word]
        self._counts = counts.most_common(_TALLY_TIMES * self._most_words)
        while self._counts and self._count_tokens(self._text()) > limit_tokens:
            self._counts.pop()
        return self._text()

    def answer(self) -> str:
        """The most common words."""
        return ", ".join(word for word, _ in self._counts[: self._most_words]) or REFUSAL

    def _text(self) -> str:
        return ", ".join(f"{word} {count}" for word, count in self._counts)
