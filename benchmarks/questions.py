"""What several questions about one document compute, compared with one question.

    python benchmarks/questions.py [--questions 16] [--words 1500] [--chunk-tokens 1500]
    python benchmarks/questions.py --base-url http://localhost:8000/v1 --reset ../reset_prefix_cache

Prints, for one question and for all of them, the prompt tokens that were computed: those counted by the
engine, less those in its cache. The model is the embedded reader, or the one behind `--base-url`. A server
still caches what it computed for one question, so `--reset` names the page that empties its cache. vLLM has
`../reset_prefix_cache` (started with VLLM_SERVER_DEV_MODE=1, and with --enable-prompt-tokens-details, to tell
what was cached), SGLang has `../flush_cache`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from memagent import EngineSettings, Read, ReadSettings, Usage, open_engine, text_document
from memagent.engines.openai import OpenAIEngine
from memagent.reading.together import Seat, Together
from memagent.types import Engine

ROOT = Path(__file__).parents[1]
NAMES = (
    *("Holmes", "Watson", "Peterson", "Ryder", "Horner", "Baker", "Cusack", "the Countess", "Breckinridge"),
    *("Windigate", "Bradstreet", "Maggie", "Mrs. Oakshott", "Maudsley", "the hotel", "the goose"),
)
MODEL = ("base_url", "model", "tokenizer", "window_tokens")
READING = ("templates", "problem_tokens", "chunk_tokens", "memory_tokens", "answer_tokens")


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


async def main(args: argparse.Namespace) -> None:
    """Measure, and print the results."""
    words = (ROOT / "examples" / "blue_carbuncle.txt").read_text("utf-8").split()[: args.words]
    settings = ReadSettings(**{name: getattr(args, name) for name in READING})
    found: list[dict[str, Any]] = []
    async with open_engine(EngineSettings(**{name: getattr(args, name) for name in MODEL})) as engine:
        for questions in (1, args.questions):
            if args.reset and isinstance(engine, OpenAIEngine):
                said = await engine.post(args.reset, {})
                if "false" in said:  # vLLM, while other calls are running
                    sys.exit(f"the endpoint did not empty its cache: {said}")
            found.append(await computed(engine, " ".join(words), questions, settings))
            print(json.dumps(found[-1]), flush=True)
    one, all_of_them = (it["computed_tokens"] for it in found)
    print(f"{args.questions} questions compute {all_of_them / one:.2f} times what one does")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--reset", metavar="PAGE", help="of the endpoint, which empties its cache")
    for kind, names in ((EngineSettings, MODEL), (ReadSettings, READING)):
        for name in names:
            number, help_text = name.endswith("_tokens"), kind.model_fields[name].description
            parser.add_argument(f"--{name.replace('_', '-')}", type=int if number else str, help=help_text)
    asyncio.run(main(parser.parse_args()))
