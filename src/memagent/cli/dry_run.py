"""`memagent ask --dry-run`: what it would cost, without asking a model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import repeat

from memagent.cli.messages import describe, say, say_json
from memagent.documents.opening import Document
from memagent.engines import open_engine
from memagent.reading.forecast import forecast
from memagent.reading.workflows import choose_workflow
from memagent.settings import Settings
from memagent.types import ESTIMATE, Spent


async def dry_run_questions(
    questions: Sequence[str], document: Document, settings: Settings, as_json: bool
) -> tuple[str, ...]:
    """Print the files, the chunks, and the cost of all questions; return the files left out.

    An endpoint is asked for its window; a local model is loaded to count with. Raises `MemAgentError`.
    """
    blocks = document.blocks()
    characters: Counter[str] = Counter()

    def count_characters() -> None:
        for block in blocks:
            characters[block.source.name] += len(block.text)

    await asyncio.to_thread(count_characters)
    async with open_engine(settings.engine) as engine:
        model = engine.model
        workflow, _ = choose_workflow(settings.read, model.trained)
        longest = await asyncio.to_thread(lambda: max(questions, key=model.count_tokens))
        # With rag, each question has passages of its own; otherwise, the longest stands for all of them.
        asked = Counter(questions) if workflow == "rag" else {longest: len(questions)}
        most = Spent()
        for question, times in asked.items():
            read = await forecast(question, document, model, settings.read)
            most = sum(repeat(read.spent, times), most)
    estimated = model.tokenizer == ESTIMATE
    if as_json:
        say_json(
            {
                "files": [{"name": name, "characters": count} for name, count in characters.items()],
                "model": model.name,
                "window_tokens": model.window_tokens,
                "workflow": workflow,
                "questions": len(questions),
                "chunks": read.chunks,
                "document_tokens": read.document_tokens,
                **asdict(most),
                "estimated": estimated,
            }
        )
        return blocks.skipped
    for name, count in characters.items():
        say(f"{name}: {count:,} characters of text")
    window = (
        f"{model.window_tokens:,} tokens" if model.window_tokens else "unknown: the endpoint does not say"
    )
    say(f"model: {model.name}, window {window}")
    chunks = "1 chunk" if read.chunks == 1 else f"{read.chunks:,} chunks"
    say(f"workflow: {workflow}, {chunks}, {read.document_tokens:,} tokens")
    say("\n".join(describe_bound(most, " for all questions" if len(questions) > 1 else "", estimated)))
    max_calls = settings.read.max_calls
    if max_calls and most.calls > max_calls * len(questions):
        say(f"--max-calls {max_calls} may stop it")
    return blocks.skipped


def describe_bound(most: Spent, for_all: str, estimated: bool) -> Iterator[str]:
    """Describe a bound, in lines."""
    calls = "1 call" if most.calls == 1 else f"{most.calls:,} calls"
    yield f"at most{for_all}: {calls}, {describe(most)}"
    if estimated:
        yield (
            "token counts are estimates (--tokenizer names the model's own): chunks that prove too long for "
            "the window take more calls"
        )
