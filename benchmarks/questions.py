"""What several questions about one document compute, compared with one question.

    python benchmarks/questions.py [--questions 16] [--words 1500] [--chunk-tokens 1500]
    python benchmarks/questions.py --model FILE.gguf
    python benchmarks/questions.py --base-url http://localhost:8000/v1 --reset ../reset_prefix_cache

Prints, for one question and for all of them, the prompt tokens that were computed: those counted by the
engine, less those in its cache. The model is the default one, a GGUF, or the one behind `--base-url`. For
a model in this process it also prints seconds of processor time, which a busy machine hardly changes, and how
fast the document is read, beside how fast llama.cpp reads the same text as one bare prompt. A server
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
from typing import Any

import measure

from memagent import EngineSettings, Read, ReadSettings, Usage, open_engine, text_document
from memagent.engines.llamacpp.engine import LlamaCppEngine
from memagent.engines.openai import OpenAIEngine
from memagent.reading.lockstep import Seat, Together
from memagent.types import Engine

NAMES = (
    *("Holmes", "Watson", "Peterson", "Ryder", "Horner", "Baker", "Cusack", "the Countess", "Breckinridge"),
    *("Windigate", "Bradstreet", "Maggie", "Mrs. Oakshott", "Maudsley", "the hotel", "the goose"),
)
MODEL = ("base_url", "model", "tokenizer", "window_tokens")
READING = ("templates", "problem_tokens", "chunk_tokens", "memory_tokens", "answer_tokens")


async def computed(engine: Engine, text: str, questions: int, settings: ReadSettings) -> dict[str, Any]:
    """The cost of `questions` questions about a text, all asked together."""
    document, tokens = text_document(text), engine.model.count_tokens(text)
    started, busy = time.perf_counter(), time.process_time()

    async def ended(question: str, seat: Seat) -> Usage:
        read = Read(question, document, seat, settings)
        try:
            async for _ in read:
                pass
        finally:
            seat.leave()
        return read.progress.spent.usage

    seats = Together(engine, questions).seats
    asked = [f"What is said of {NAMES[number % len(NAMES)]}?" for number in range(questions)]
    usages = await asyncio.gather(*map(ended, asked, seats))
    prompt = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    busy = time.process_time() - busy
    return {
        "questions": questions,
        "document_tokens": tokens,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached,
        "completion_tokens": sum(usage.completion_tokens for usage in usages),
        "seconds": round(time.perf_counter() - started, 1),
    } | _of_this_process(engine, tokens, busy)


def _of_this_process(engine: Engine, tokens: int, busy: float) -> dict[str, float]:
    if not isinstance(engine, LlamaCppEngine):
        return {}
    return {"processor_seconds": round(busy, 1), "tokens_per_processor_second": round(tokens / busy, 1)}


async def bare(engine: LlamaCppEngine, text: str) -> dict[str, Any]:
    """How llama.cpp reads the text as one prompt, by its server's own timings."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "cache_prompt": False}
    busy = time.process_time()
    async with engine.forward(body) as reply:
        timings = json.loads(b"".join([piece async for piece in reply.pieces]))["timings"]
    measured = _of_this_process(engine, timings["prompt_n"], time.process_time() - busy)
    return {
        "bare_prompt_tokens": timings["prompt_n"],
        "seconds": round(timings["prompt_ms"] / 1000, 1),
    } | measured


async def main(args: argparse.Namespace) -> None:
    """Measure, and print the results."""
    words = measure.STORY.read_text("utf-8").split()[: args.words]
    text, settings = " ".join(words), ReadSettings(**{name: getattr(args, name) for name in READING})
    measured: list[dict[str, Any]] = []
    for questions in (0, 1, args.questions):  # an engine each, so that none finds what another has cached
        async with open_engine(EngineSettings(**{name: getattr(args, name) for name in MODEL})) as engine:
            if args.reset and isinstance(engine, OpenAIEngine):
                reply = await engine.post(args.reset, {})
                if "false" in reply:  # vLLM, while other calls are running
                    sys.exit(f"the endpoint did not empty its cache: {reply}")
            if questions:
                measured.append(await computed(engine, text, questions, settings))
            elif isinstance(engine, LlamaCppEngine):
                measured.append(await bare(engine, text))
            else:
                continue
            print(json.dumps(measured[-1]), flush=True)
    for name in ("computed_tokens", "processor_seconds"):
        if name in measured[-1]:
            times = measured[-1][name] / measured[-2][name]
            print(f"{args.questions} questions, {name}: {times:.2f} times one's")
    measure.write_json(args.json, measure.provenance() | {"rows": measured})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--words", type=int, default=1500)
    measure.add_json_flag(parser)
    parser.add_argument("--reset", metavar="PAGE", help="of the endpoint, which empties its cache")
    for kind, names in ((EngineSettings, MODEL), (ReadSettings, READING)):
        for name in names:
            number, help_text = name.endswith("_tokens"), kind.model_fields[name].description
            parser.add_argument(f"--{name.replace('_', '-')}", type=int if number else str, help=help_text)
    asyncio.run(main(parser.parse_args()))
