"""The parts of memagent's work on a chunk, each measured on its own, without a server."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

from contestants import PROBLEM
from zero_server import REPLY

from memagent import open_document
from memagent.documents.chunking import split
from memagent.documents.tokens import estimate_tokens
from memagent.prompts import OVERWRITE
from memagent.reading.journal import Journal
from memagent.reading.lines import Answer
from memagent.reading.replies import read_overwrite
from memagent.types import Chunk, Completion, Conversation, Message, Model, Sampling, Usage

_CHUNK_TOKENS = 5000


class _Instant:
    """An engine that costs nothing."""

    model = Model("instant", estimate_tokens)
    completion = Completion(REPLY, usage=Usage(_CHUNK_TOKENS, 80))

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:  # noqa: ARG002
        return self.completion

    async def aclose(self) -> None:
        """Nothing to close."""


def measure(document: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time per chunk of each part: the median of interleaved rounds."""
    chunks = _cut(document)
    prompts = [_prompt(chunk) for chunk in chunks]
    numbers = count()
    parts: dict[str, Callable[[], object]] = {
        "chunking (file, decoding, token estimate)": lambda: _cut(document),
        "prompt building": lambda: [_prompt(chunk) for chunk in chunks],
        "journal": lambda: asyncio.run(_record(folder / f"{next(numbers)}.jsonl", prompts)),
        "reading the reply": lambda: [read_overwrite(REPLY, "", OVERWRITE) for _ in chunks],
    }
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, part in parts.items():
            started = time.process_time()
            part()
            seconds[name].append(time.process_time() - started)
    return {name: 1000 * median(taken) / len(chunks) for name, taken in seconds.items()}


def _cut(document: Path) -> list[Chunk]:
    return list(split(open_document(document).blocks(), _CHUNK_TOKENS, estimate_tokens))


def _prompt(chunk: Chunk) -> tuple[Message, ...]:
    return OVERWRITE.fill("update", problem=PROBLEM, chunk=chunk.text, memory=REPLY)


async def _record(path: Path, prompts: list[tuple[Message, ...]]) -> None:
    journal = Journal.open(path, _Instant())
    journal.begin({})
    for index, prompt in enumerate(prompts):
        completion = await journal.complete(prompt, Sampling(1024))
        await journal.append(Conversation("update", index, prompt, completion, REPLY, (0, 1), "text"))
    await journal.finish(Answer("done"))
    journal.close()
