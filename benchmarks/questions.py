"""What several questions about one document compute, compared with one question, with the embedded reader.

    python benchmarks/questions.py [--questions 16] [--words 1500] [--chunk-tokens 1500]

Prints, for one question and for all of them, the prompt tokens that were computed: those counted by the
engine, less those in its cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from memagent import EngineSettings, Read, ReadSettings, Usage, open_engine, text_document
from memagent.reading.together import Seat, Together
from memagent.types import Engine

ROOT = Path(__file__).parents[1]
NAMES = (
    *("Holmes", "Watson", "Peterson", "Ryder", "Horner", "Baker", "Cusack", "the Countess", "Breckinridge"),
    *("Windigate", "Bradstreet", "Maggie", "Mrs. Oakshott", "Maudsley", "the hotel", "the goose"),
)


async def computed(engine: Engine, text: str, questions: int, settings: ReadSettings) -> dict[str, Any]:
    """The cost of `questions` questions about a text, all asked together."""
    document, started = text_document(text), time.perf_counter()

    async def ended(question: str, seat: Seat) -> Usage:
        read = Read(question, document, seat, settings)
        seat.progress = partial(getattr, read, "progress")
        try:
            async for _ in read:
                pass
        finally:
            seat.leave()
        now = read.progress
        return Usage(now.prompt_tokens, now.completion_tokens, now.cached_tokens)

    seats = Together(engine, questions).seats
    asked = [f"What is said of {NAMES[number % len(NAMES)]}?" for number in range(questions)]
    usages = await asyncio.gather(*map(ended, asked, seats))
    prompt, cached = sum(it.prompt_tokens for it in usages), sum(it.cached_tokens for it in usages)
    return {
        "questions": questions,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached,
        "seconds": round(time.perf_counter() - started, 1),
    }


async def main(questions: int, words: int, chunk_tokens: int | None) -> None:
    """Measure, and print the results."""
    text = " ".join((ROOT / "examples" / "blue_carbuncle.txt").read_text("utf-8").split()[:words])
    settings = ReadSettings(chunk_tokens=chunk_tokens)
    async with open_engine(EngineSettings()) as engine:
        one = await computed(engine, text, 1, settings)
        print(json.dumps(one), flush=True)
        all_of_them = await computed(engine, text, questions, settings)
        print(json.dumps(all_of_them))
    times = all_of_them["computed_tokens"] / one["computed_tokens"]
    print(f"{questions} questions compute {times:.2f} times what one does")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--chunk-tokens", type=int)
    given = parser.parse_args()
    asyncio.run(main(given.questions, given.words, given.chunk_tokens))
