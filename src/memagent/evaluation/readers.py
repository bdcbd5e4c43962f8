"""The readers that are compared: two with a memory, five without.

Each is an async generator of conversations, so that the same code counts the calls and tokens of
all. `overwrite` and `gated` are the package's own reads; the others are what people do without a memory.
Leaves out: embeddings for `rag`, and mapping an example's chunks side by side in `map_reduce`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from memagent.documents.chunking import cut, split
from memagent.documents.opening import text_document
from memagent.engines.limit import CallLimit
from memagent.errors import ContextOverflowError, EngineError, SettingsError
from memagent.evaluation import prompts
from memagent.prompts import Prompts, load_prompts
from memagent.reading.read import Read, counter_of, fitted_budgets
from memagent.reading.replies import read_gated, read_rewrite, without_thought
from memagent.reading.retrieval import best_passages
from memagent.reading.workflows import WORKFLOWS, Reader
from memagent.settings import Settings
from memagent.types import Chunk, Conversation, Engine, Sampling, TokenCounter, model_of

DEFAULT_WINDOW_TOKENS = 8192  # the paper's, for an endpoint that does not tell its own
_SLACK_TOKENS = 96  # for the chat template, and for tokens that differ where texts are joined
_MOST_CHARACTERS_PER_TOKEN = 16
_SHRINK = 0.8
_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """What `rag` shows the model: so many passages, each of at most so many tokens."""

    passages: int = 16
    passage_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One reader's attempt at one example."""

    problem: str
    document: str
    engine: Engine
    settings: Settings
    retrieval: Retrieval = Retrieval()

    def reader(self, prompts: Prompts) -> Reader:
        """What holds the conversations, under the budgets that every reader has."""
        limit = self.settings.max_calls
        return Reader(
            problem=self.problem,
            engine=CallLimit(self.engine, limit) if limit else self.engine,
            prompts=prompts,
            budgets=fitted_budgets(self.settings, self.engine, prompts),
            sampling=Sampling(0, self.settings.temperature, self.settings.top_p, self.settings.seed),
            count_tokens=counter_of(self.engine),
        )

    @property
    def window_tokens(self) -> int:
        """The model's window."""
        known = self.settings.window_tokens or model_of(self.engine).window_tokens
        return known or DEFAULT_WINDOW_TOKENS


async def read_in_workflow(attempt: Attempt, name: str) -> AsyncGenerator[Conversation, None]:
    """Read with a memory, as `memagent ask` does."""
    settings = replace(attempt.settings, workflow=name)
    reading = Read(attempt.problem, text_document(attempt.document), attempt.engine, settings)
    async with aclosing(aiter(reading)) as steps:
        async for conversation in steps:
            yield conversation


async def full(attempt: Attempt) -> AsyncGenerator[Conversation, None]:
    """The whole document in one prompt. Raises `ContextOverflowError` where the window is too small."""
    reader = attempt.reader(prompts.DOCUMENT)
    model = model_of(attempt.engine)
    if model.count_tokens and model.window_tokens:  # an estimate must not refuse what the model may take
        tokens = await asyncio.to_thread(model.count_tokens, attempt.document)
        if tokens > model.window_tokens:
            raise ContextOverflowError(
                f"the document does not fit the model's window of {model.window_tokens} tokens"
            )
    yield await reader.answer(attempt.document)


async def truncate(attempt: Attempt) -> AsyncGenerator[Conversation, None]:
    """The head and the tail of the document, half each, as much as the window takes."""
    reader = attempt.reader(prompts.DOCUMENT)

    def text(room_tokens: int) -> str:
        return head_and_tail(attempt.document, room_tokens, reader.count_tokens)

    yield await _answer_in_window(reader, text, _room_tokens(attempt, reader))


async def rag(attempt: Attempt) -> AsyncGenerator[Conversation, None]:
    """The passages that BM25 ranks best for the problem, in the document's order."""
    reader, wanted = attempt.reader(prompts.DOCUMENT), attempt.retrieval
    pieces = cut([attempt.document], wanted.passage_tokens, reader.count_tokens)
    passages = await asyncio.to_thread(lambda: [text for text, _ in pieces])
    best = await asyncio.to_thread(best_passages, attempt.problem, passages, wanted.passages)

    def text(room_tokens: int) -> str:
        return _joined(passages, best, room_tokens, reader.count_tokens)

    yield await _answer_in_window(reader, text, _room_tokens(attempt, reader))


async def refine(attempt: Attempt) -> AsyncGenerator[Conversation, None]:
    """An answer from the first chunk, refined by each chunk after it; the last one is the answer."""
    reader = attempt.reader(prompts.REFINE)
    answer = ""
    for chunk in _chunks(attempt, reader):
        async for update in reader.update(chunk, answer, read_rewrite):
            answer = update.memory
            yield update


async def map_reduce(attempt: Attempt) -> AsyncGenerator[Conversation, None]:
    """Notes on each chunk by itself, then an answer from all notes.

    Notes too long for the last prompt are noted down again, in groups, until they fit.
    """
    reader = attempt.reader(prompts.MAP_REDUCE)
    notes: list[str] = []
    async for conversation in _take_notes(reader, _chunks(attempt, reader), notes):
        yield conversation
    budgets = reader.budgets
    limit = budgets.window_tokens - budgets.problem_tokens - budgets.answer_tokens
    while True:
        while len(notes) > 1 and reader.count_tokens("\n\n".join(notes)) > limit:
            groups, notes = list(_grouped(notes, budgets.chunk_tokens, reader.count_tokens)), []
            async for conversation in _take_notes(reader, groups, notes):
                yield conversation
        try:
            yield await reader.answer("\n\n".join(notes))
            return
        except ContextOverflowError:
            if len(notes) < 2:
                raise
            limit //= 2


@dataclass(frozen=True, slots=True)
class Way:
    """A named way to read, with its prompts (those of a workflow may be the user's)."""

    run: Callable[[Attempt], AsyncGenerator[Conversation, None]]
    prompts: Prompts


READERS = {
    "overwrite": Way(lambda attempt: read_in_workflow(attempt, "overwrite"), WORKFLOWS["overwrite"].prompts),
    "gated": Way(lambda attempt: read_in_workflow(attempt, "gated"), WORKFLOWS["gated"].prompts),
    "full": Way(full, prompts.DOCUMENT),
    "truncate": Way(truncate, prompts.DOCUMENT),
    "rag": Way(rag, prompts.DOCUMENT),
    "refine": Way(refine, prompts.REFINE),
    "map_reduce": Way(map_reduce, prompts.MAP_REDUCE),
}


def prompts_of(name: str, settings: Settings) -> Prompts:
    """The prompts that a reader will use. Raises `SettingsError` for templates that cannot be."""
    if name in WORKFLOWS and settings.templates:
        return load_prompts(settings.templates)
    return READERS[name].prompts


def answer_of(last: Conversation | None) -> str:
    """The answer that conversations led to: the last one's reply, or its memory if it was an update.

    Raises `EngineError` if there is none: nothing was read, or nothing was ever written down.
    """
    if last is None:
        raise EngineError("the document is empty")
    if answer := without_thought(last.completion.text) if last.kind == "answer" else last.memory:
        return answer
    raise EngineError("the reader came to the document's end without an answer")


def head_and_tail(text: str, room_tokens: int, count_tokens: TokenCounter) -> str:
    """`text` if it has at most `room_tokens`, else its beginning and its end, about half of that each."""
    if len(text) <= room_tokens * _MOST_CHARACTERS_PER_TOKEN and count_tokens(text) <= room_tokens:
        return text
    half = (room_tokens - count_tokens(prompts.LEFT_OUT)) // 2
    longest = range(1, min(len(text), half * _MOST_CHARACTERS_PER_TOKEN) + 1)
    head = bisect_right(longest, half, key=lambda length: count_tokens(text[:length]))
    tail = bisect_right(longest, half, key=lambda length: count_tokens(text[-length:]))
    return text[:head] + prompts.LEFT_OUT + text[len(text) - tail :]


def _room_tokens(attempt: Attempt, reader: Reader) -> int:
    """What a prompt has left for the document, in tokens."""
    taken = reader.count_tokens(reader.prompts.bare_text) + reader.count_tokens(reader.problem)
    room = attempt.window_tokens - taken - reader.budgets.answer_tokens - _SLACK_TOKENS
    if room <= _SLACK_TOKENS:
        raise SettingsError(
            f"a window of {attempt.window_tokens} tokens leaves no room for a document: lower --answer-tokens"
        )
    return room


async def _answer_in_window(reader: Reader, text: Callable[[int], str], room_tokens: int) -> Conversation:
    """Answer from the text that fits, with less of it as long as the model says that it is too long."""
    for _ in range(_TRIES):
        shown = await asyncio.to_thread(text, room_tokens)
        try:
            return await reader.answer(shown)
        except ContextOverflowError:
            room_tokens = int(room_tokens * _SHRINK)
    return await reader.answer(await asyncio.to_thread(text, room_tokens))


def _joined(passages: Sequence[str], best: Sequence[int], room_tokens: int, count: TokenCounter) -> str:
    """As many of the best passages as there is room for, in order, with a mark where some are left out."""
    kept: list[int] = []
    left, mark = room_tokens, count(prompts.LEFT_OUT)
    for number in best:
        left -= count(passages[number]) + mark
        if left < 0:
            break
        kept.append(number)
    if best and not kept:
        return head_and_tail(passages[best[0]], room_tokens, count)
    parts: list[str] = []
    before = -1
    for number in sorted(kept):
        parts += [prompts.LEFT_OUT] if number != before + 1 else []
        parts.append(passages[number])
        before = number
    return "".join(parts)


def _chunks(attempt: Attempt, reader: Reader) -> Iterable[Chunk]:
    return split(text_document(attempt.document), reader.budgets.chunk_tokens, reader.count_tokens)


async def _take_notes(
    reader: Reader, chunks: Iterable[Chunk], notes: list[str]
) -> AsyncGenerator[Conversation, None]:
    """Read each chunk with nothing in memory, and append what is noted down of it to `notes`."""
    for chunk in chunks:
        note = ""
        async for update in reader.update(chunk, "", read_gated):
            note = update.memory
            yield update
        if note:
            notes.append(note)


def _grouped(notes: Sequence[str], group_tokens: int, count_tokens: TokenCounter) -> Iterable[Chunk]:
    """Notes put together in groups of the size of a chunk, two at least, each as a chunk of its own."""
    start, index = 0, 0
    while start < len(notes):
        end = min(start + 2, len(notes))
        while end < len(notes) and count_tokens("\n\n".join(notes[start : end + 1])) <= group_tokens:
            end += 1
        text = "\n\n".join(notes[start:end])
        yield Chunk(index, text, 0, len(text), count_tokens(text), "notes")
        start, index = end, index + 1
