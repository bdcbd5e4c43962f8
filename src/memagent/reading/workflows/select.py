"""Verdicts on chunks, and a memory of the best of them: the model decides what is kept.

The model is asked whether a chunk helps, and what counts is how likely its reply was, not the word itself.
That costs one token a chunk. The memory holds the best chunks word for word and with their places: whole as
far as there is room, else the sentences most relevant to the problem. The answer is made from the best chunk,
and from those that are nearly as good.

A model that was trained to judge begins with the chunks that share the most words with the problem, first a
few, then more. As soon as one of them helps clearly enough, the others are not read; that nothing helps is
never said before all are read.

With more `rounds`, all chunks are judged again along with what is known by then, which may name what the
problem does not. If the engine tells no log-probabilities, a note is taken on every chunk instead (`notes`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache

from memagent.prompts import AUTO
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.excerpts import Excerpt, excerpts_of, memory_of
from memagent.reading.finds import keep_passages
from memagent.reading.locating import count_words, coverage, falls_short, locate
from memagent.reading.names import names_of, seen_in
from memagent.reading.ranking import Rarity, best_chunks
from memagent.reading.sources import Source, Span, source_at
from memagent.reading.verdicts import YES
from memagent.reading.workflow import Likeliest, Rounds, chain, delegate, take_each
from memagent.types import Chunk, Conversation

MAX_KEPT = 8
"""The most chunks of which the memory may hold something."""

MAX_SHOWN = 4
"""The most chunks that the answer is made from."""

AS_GOOD = 1.5
"""So many log-odds below the best, a chunk is shown too: several may be wanted, and the best may be wrong."""

_WORDS = 1.0  # what sharing all of the problem's words adds to the log-odds: it breaks ties
MIN_HELPS = -0.3
"""If no chunk reaches these log-odds, nothing is kept; only of a model that was trained to judge."""

MIN_CLEAR = 0.5
"""Log-odds, from which a chunk helps clearly enough by such a model."""

FIRST = 4
"""So many of the likeliest chunks are judged first of all: if any helps, one of these mostly does."""

MIN_CERTAIN = 1.0
"""Log-odds, from which one of these few is enough."""

_log = logging.getLogger("memagent")


async def select(reading: Reading, chunks: Chunks, memory: str = "") -> Conversations:
    """Judge the chunks, keep the best, and answer from the best of these.

    Raises `SettingsError` for a memory that holds anything but passages.
    """
    best = Best(reading)
    likeliest = [] if memory else await _find_likeliest(reading, best)
    async with aclosing(reading.passes.only(likeliest[:FIRST]) if likeliest else chunks) as chunks:
        first = await anext(chunks, None)
        if first is None:  # all were passed over
            return
        judgements = [conversation async for conversation in reading.judge(first)]
        if judgements[0].verdict is None:
            if reading.purpose == "read":
                _warn_of_words(reading.model.name)
            for conversation in judgements:  # it was paid for
                yield replace(conversation, memory=memory)
            rest = reading.passes.again() if likeliest else chain([first], chunks)
            async with aclosing(delegate("notes", reading, rest, memory)) as conversations:
                async for conversation in conversations:
                    yield conversation
            return
        for number, excerpt in enumerate(excerpts_of(memory), 1):
            judgement = await reading.judge_text(excerpt.source.excerpt, memory)
            yield best.take_excerpt(judgement, excerpt, -number)
        for conversation in judgements:
            yield await asyncio.to_thread(best.take, conversation, first)
        async with aclosing(_judge_all(reading, best, chunks, likeliest)) as conversations:
            async for conversation in conversations:
                yield conversation
    async for answer in reading.conclude(best.memory, best.shown, best.is_doubtful):
        yield answer


async def _find_likeliest(reading: Reading, best: Best) -> list[int]:
    """The indices of the chunks that share the most words with the problem, most first; none to read all.

    Only a model that was trained to judge tells what helps clearly, and only an answer needs no more.
    """
    first, settings = reading.settings.of(Likeliest).likeliest_chunks, reading.settings
    in_order = settings.screen or settings.of(Rounds).rounds > 1
    if not first or in_order or not (reading.answers and reading.model.judges):
        return []
    async with aclosing(reading.passes.looked_through()) as chunks:
        return await best_chunks(reading.problem, best.watch(chunks), first)


async def _judge_all(reading: Reading, best: Best, chunks: Chunks, likeliest: Sequence[int]) -> Conversations:
    """Judge these chunks and what is to be judged after them, and keep the best."""
    async with aclosing(_stages(reading, best, chunks, likeliest)) as stages:
        async for stage, known in stages:
            async with aclosing(stage), aclosing(_judge(reading, stage, known)) as judged:
                async for chunk, judgements in judged:
                    for conversation in judgements:
                        yield await asyncio.to_thread(best.take, conversation, chunk)


async def _stages(
    reading: Reading, best: Best, chunks: Chunks, likeliest: Sequence[int]
) -> AsyncGenerator[tuple[Chunks, str], None]:
    """These chunks, then more until one helps clearly enough, then all in each further round.

    Each with what is known by then.
    """
    yield chunks, ""
    if likeliest:
        others = set(range(await reading.passes.count())).difference(likeliest)
        for indices, enough in ((likeliest[FIRST:], MIN_CERTAIN), (others, MIN_CLEAR)):
            if indices and best.highest < enough:
                yield reading.passes.only(indices), ""
    for _ in range(1, reading.settings.of(Rounds).rounds or 1):
        yield reading.passes.again(), best.shown


def _judge(
    reading: Reading, chunks: Chunks, known: str
) -> AsyncGenerator[tuple[Chunk, list[Conversation]], None]:
    """The chunks with the conversations about them, in order."""

    async def judge(chunk: Chunk) -> tuple[Chunk, list[Conversation]]:
        if not chunk.text.strip():
            return chunk, []
        return chunk, [conversation async for conversation in reading.judge(chunk, known)]

    return take_each(reading, judge, chunks)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the memory may hold of a chunk: the `whole`, or the `sentences` most to do with the problem.

    Its `worth` is the verdict's, in log-odds; words that it shares with the problem break ties. Only one that
    `helps` may be kept alone.
    """

    helps: bool
    worth: float
    whole: tuple[Source, ...]
    sentences: tuple[Source, ...]

    @property
    def rank(self) -> tuple[bool, float]:
        """What candidates are sorted by, the best highest."""
        return self.helps, self.worth


class Best:
    """The best chunks so far, within the memory's budget. Its methods block."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._candidates: dict[int, Candidate] = {}  # by chunk index; below 0 what the read started from
        self._chosen: list[tuple[Candidate, tuple[Source, ...]]] = []  # best first, with what the memory has
        self._rarity, self._counted = Rarity(), set[int]()
        self._unseen = names_of(reading.problem)
        self.memory = ""
        self.highest = -math.inf
        """The highest verdict, in log-odds."""

    @property
    def is_doubtful(self) -> bool:
        """Whether the memory has too little of what the problem says, so that the model may decline.

        A trained verdict is enough, unless the document lacks a name of the problem: that a text tells of
        something else of the same kind is what verdicts see least. With `screen`, not all of it was seen.
        """
        if self._reading.model.judges:
            return bool(self._unseen) and not self._reading.settings.screen
        return falls_short(
            self._reading.problem, [_join(sources) for _, sources in self._chosen], self._rarity
        )

    @property
    def shown(self) -> str:
        """The text that the answer is made from: the best chunks and those nearly as good, in order."""
        least = self._chosen[0][0].worth - AS_GOOD if self._chosen else 0.0
        best = _sort(sources for candidate, sources in self._chosen[:MAX_SHOWN] if candidate.worth >= least)
        several = len({source.file for sources in best for source in sources}) > 1
        return "\n\n".join(
            "\n".join(
                f"{source.file}:\n{source.excerpt}" if several else source.excerpt for source in sources
            )
            for sources in best
        )

    async def watch(self, chunks: Chunks) -> Chunks:
        """The chunks, the words of each counted."""
        async for chunk in chunks:
            await asyncio.to_thread(self._count, chunk)
            yield chunk

    def take(self, conversation: Conversation, chunk: Chunk) -> Conversation:
        """Keep the chunk if it is among the best; returns the conversation with the new memory."""
        self._count(chunk)
        verdict, before = self._verdict_of(conversation), self._candidates.get(chunk.index)
        if verdict is None:
            return replace(conversation, memory=self.memory)
        self.highest = max(self.highest, verdict)
        problem, span = self._reading.problem, conversation.span or (chunk.start, chunk.end)
        helps, worth = self._helps(verdict), verdict + _WORDS * coverage(problem, chunk.text, self._rarity)
        if self._is_among_best((helps, worth)) and (before is None or (helps, worth) > before.rank):
            find = locate("", problem, chunk, span, self._rarity)
            sentences = find.sources if find else ()
            self._keep(chunk.index, Candidate(helps, worth, _whole(chunk, span), sentences))
        given_up = int(helps and not self.memory)  # it is too small for even one passage
        return replace(conversation, memory=self.memory, given_up=given_up)

    def take_excerpt(self, conversation: Conversation, excerpt: Excerpt, number: int) -> Conversation:
        """Keep a passage that the read started from."""
        self._unseen -= seen_in(excerpt.source.excerpt, self._unseen)
        verdict = self._verdict_of(conversation)
        if verdict is not None:
            self._keep(number, Candidate(self._helps(verdict), verdict, (excerpt.source,), ()))
        return replace(conversation, memory=self.memory)

    def _count(self, chunk: Chunk) -> None:
        if chunk.index not in self._counted:
            count_words(chunk, self._rarity)
            self._unseen -= seen_in(chunk.shown, self._unseen)
            self._counted.add(chunk.index)

    def _verdict_of(self, conversation: Conversation) -> float | None:
        """The verdict; None in training if the word that was drawn, which is what is rewarded, is not Yes."""
        is_no = self._is_drawn and conversation.completion.text.strip() != YES
        return None if is_no else conversation.verdict

    @property
    def _is_drawn(self) -> bool:
        return self._reading.purpose == "train" and self._reading.settings.temperature > 0

    def _helps(self, verdict: float) -> bool:
        return self._is_drawn or not self._reading.model.judges or verdict >= MIN_HELPS

    def _is_among_best(self, rank: tuple[bool, float]) -> bool:
        return sum(candidate.rank >= rank for candidate in self._candidates.values()) < MAX_KEPT

    def _keep(self, number: int, candidate: Candidate) -> None:
        self._candidates[number] = candidate
        order = sorted(self._candidates, key=lambda key: (self._candidates[key].rank, -key), reverse=True)
        for worst in order[MAX_KEPT:]:
            del self._candidates[worst]
        if number in self._candidates:
            self._fit(_choose([self._candidates[key] for key in order[:MAX_KEPT]]))

    def _fit(self, ranked: Sequence[Candidate]) -> None:
        """Hold the best whole, something of as many others as fit, and of these as many whole as fit."""
        chosen = dict[int, tuple[Source, ...]]()
        for rank, candidate in enumerate(ranked):
            something = candidate.sentences or candidate.whole
            for sources in (candidate.whole, something) if rank == 0 else (something,):
                if rank not in chosen and self._fits(chosen | {rank: sources}):
                    chosen[rank] = sources
        for rank, candidate in enumerate(ranked):
            if rank in chosen and self._fits(chosen | {rank: candidate.whole}):
                chosen[rank] = candidate.whole
        self._chosen = [(ranked[rank], sources) for rank, sources in chosen.items()]
        self.memory = _write(chosen.values())

    def _fits(self, chosen: Mapping[int, tuple[Source, ...]]) -> bool:
        return self._reading.fits_memory(_write(chosen.values()))


def _choose(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Those that help, and if any does, those that are nearly as good as the best of them."""
    best = ranked[0]
    return [
        candidate
        for candidate in ranked
        if candidate.helps or (best.helps and candidate.worth >= best.worth - AS_GOOD)
    ]


def _whole(chunk: Chunk, span: Span) -> tuple[Source, ...]:
    """A chunk, or what is within a span of it, as passages of one file and page each."""
    sources = []
    for part in chunk.parts:
        start, end = max(part.start, span[0]), min(part.end, span[1])
        text = chunk.text[start - chunk.start : end - chunk.start]
        if text.strip():
            start += len(text) - len(text.lstrip())
            sources.append(source_at(chunk, start, start + len(text.strip())))
    return tuple(sources)


def _write(passages: Iterable[tuple[Source, ...]]) -> str:
    return memory_of(Excerpt(source) for sources in _sort(passages) for source in sources)


def _sort(passages: Iterable[tuple[Source, ...]]) -> list[tuple[Source, ...]]:
    """In the document's order; what the read started from comes first."""
    return sorted((sources for sources in passages if sources), key=lambda sources: sources[0].at or -1)


def _join(sources: Iterable[Source]) -> str:
    return "\n".join(source.excerpt for source in sources)


@cache
def _warn_of_words(model: str) -> None:
    """Say, once for each model, that words decide."""
    _log.warning(
        "%s tells no log-probabilities: what is kept is chosen by the words of notes on all chunks", model
    )


WORKFLOW = keep_passages(select, replace(AUTO, workflow="select"), options=(Rounds, Likeliest))
