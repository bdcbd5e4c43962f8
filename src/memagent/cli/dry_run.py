"""`memagent ask --dry-run`: what would be read and what it would cost, without asking a model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from memagent.cli.messages import say, say_json
from memagent.documents.opening import Document, Pass
from memagent.engines import open_engine
from memagent.reading.forecast import forecast
from memagent.reading.workflows import chosen_workflow
from memagent.settings import Settings
from memagent.types import ESTIMATE


async def dry_run(
    questions: Sequence[str], document: Document, settings: Settings, as_json: bool
) -> tuple[str, ...]:
    """Print the files, the chunks, and the most that all questions cost; return what was left out.

    An endpoint is asked for its window; a local model is loaded to count with. Raises `MemAgentError`.
    """
    blocks = document.blocks()
    characters = await asyncio.to_thread(_characters, blocks)
    async with open_engine(settings.engine) as engine:
        model = engine.model
        now = await forecast(max(questions, key=len), document, model, settings.read)
    many = len(questions)
    found = {
        "files": [{"name": name, "characters": count} for name, count in characters.items()],
        "model": model.name,
        "window_tokens": model.window_tokens,
        "workflow": chosen_workflow(settings.read, model.trained)[0],
        "questions": many,
        "chunks": now.chunks,
        "document_tokens": now.document_tokens,
        "calls": many * now.calls,
        "prompt_tokens": many * now.prompt_tokens,
        "completion_tokens": many * now.completion_tokens,
        "cost": None if now.cost is None else many * now.cost,
        "estimated": model.tokenizer == ESTIMATE,
    }
    if as_json:
        say_json(found)
    else:
        say("\n".join(_lines(found, settings.read.max_calls)))
    return blocks.skipped


def _characters(blocks: Pass) -> Counter[str]:
    """The characters of each file's text, as it is read."""
    found: Counter[str] = Counter()
    for source, text, *_ in blocks:
        found[source.name] += len(text)
    return found


def _lines(found: Mapping[str, Any], max_calls: int | None) -> list[str]:
    files, several = found["files"], found["questions"] > 1
    window = (
        f"{found['window_tokens']:,} tokens"
        if found["window_tokens"]
        else "unknown: the endpoint does not say"
    )
    cost = "" if found["cost"] is None else f", cost {found['cost']:.4g}"
    lines = [
        *(f"{file['name']}: {file['characters']:,} characters of text" for file in files),
        f"model: {found['model']}, window {window}",
        f"workflow: {found['workflow']}, {_chunks(found['chunks'])}, {found['document_tokens']:,} tokens",
        f"at most{' for all questions' if several else ''}: {found['calls']:,} calls, "
        f"{found['prompt_tokens']:,} tokens in, {found['completion_tokens']:,} out{cost}",
    ]
    if found["estimated"]:
        lines.append("token counts are estimates: --tokenizer names the model's own")
    if max_calls and found["calls"] > max_calls * found["questions"]:
        lines.append(f"--max-calls {max_calls} would stop it")
    return lines


def _chunks(count: int) -> str:
    return "1 chunk" if count == 1 else f"{count:,} chunks"
