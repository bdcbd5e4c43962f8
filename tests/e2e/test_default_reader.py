"""The claims of the default reader, on the real model: it finds what the bare model misses.

Takes some fifteen minutes of two cores, and is left out of the other tests: `make test-reader`, or
`make test-reader SEEDS=5` for five of the documents.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from memagent import read
from memagent.documents.opening import text_document
from memagent.engines import open_engine
from memagent.reading.read import Read
from memagent.settings import EngineSettings, ReadSettings
from memagent.tasks import TASKS, Recipe
from memagent.tasks.scoring import string_match_all
from memagent.types import Example, TokenCounter

STORY = Path(__file__).parents[2] / "examples" / "blue_carbuncle.txt"
CHUNKS, CHUNK_TOKENS = 16, 100
SEEDS = int(os.environ.get("SEEDS", "20"))
TASK = "niah_multikey_1"  # a sentence among essays, and three like it with other keys


def example(seed: int, count_tokens: TokenCounter) -> Example:
    """A document of 16 chunks."""
    length = CHUNKS * CHUNK_TOKENS + TASKS[TASK].answer_tokens
    return TASKS[TASK].make(Recipe(length_tokens=length, seed=seed, count_tokens=count_tokens), 0)


async def found(adapter: str | None) -> list[bool]:
    """Which of the needles the embedded model finds with an adapter, or with its own (None)."""
    settings = ReadSettings(
        workflow="gated", chunk_tokens=CHUNK_TOKENS, memory_tokens=48, answer_tokens=32, problem_tokens=64
    )
    outcomes = []
    async with open_engine(EngineSettings(adapter=adapter, window_tokens=1024)) as engine:
        for seed in range(SEEDS):
            it = example(seed, engine.model.count_tokens)
            reading = Read(it.problem, text_document(it.document), engine, settings)
            async for _ in reading:
                pass
            assert reading.progress.chunks >= CHUNKS
            outcomes.append(string_match_all(reading.answer, it.answers) == 1)
            answer = reading.answer.replace("\n", " ")[:60]
            _tell(f"{engine.model.name}, seed {seed}: {outcomes[-1]} {answer!r}")
    return outcomes


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@pytest.mark.reader
def test_the_trained_reader_finds_needles_that_the_bare_model_misses() -> None:
    trained, bare = asyncio.run(found(None)), asyncio.run(found("none"))
    won = sum(ours and not theirs for ours, theirs in zip(trained, bare, strict=True))
    lost = sum(theirs and not ours for ours, theirs in zip(trained, bare, strict=True))
    _tell(
        f"needles found in {CHUNKS} chunks, {SEEDS} seeds: trained {sum(trained)}, bare {sum(bare)}; "
        f"by the trained reader alone {won}, by the bare model alone {lost}"
    )
    # With 20 seeds, ten more wins than losses come by chance alone with a probability of 0.002 at most.
    assert won - lost >= SEEDS / 2


@pytest.mark.reader
def test_the_question_of_the_demo_is_answered_from_its_sentence() -> None:
    trajectory = read("What is the name of the plumber who was accused of the robbery?", STORY)
    _tell(
        f"the demo's question: {trajectory.answer!r}, from the memory {trajectory.conversations[-1].memory!r}"
    )
    assert len(trajectory.conversations) > 30
    assert "John Horner" in trajectory.answer
    assert "a plumber, was accused of having abstracted it" in trajectory.conversations[-1].memory
