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
from memagent.reading.progress import Progress
from memagent.reading.workflows import chosen_workflow
from memagent.settings import Settings
from memagent.types import ESTIMATE


async def dry_run(
    questions: Sequence[str], document: Document, settings: Settings, as_json: bool
) -> tuple[str, ...]:
    """Print the files, the chunks, and what all questions cost; return what was left out.

    An endpoint is asked for its window; a local model is loaded to count with. Raises `MemAgentError`.
    """
    blocks = document.blocks()
    characters = await asyncio.to_thread(_characters, blocks)
    async with open_engine(settings.engine) as engine:
        model = engine.model
        most, usual = await forecast(max(questions, key=len), document, model, settings.read)
    many = len(questions)
    plan = {
        "files": [{"name": name, "characters": count} for name, count in characters.items()],
        "model": model.name,
        "window_tokens": model.window_tokens,
        "workflow": chosen_workflow(settings.read, model.trained)[0],
        "questions": many,
        "chunks": most.chunks,
        "document_tokens": most.document_tokens,
        **_cost(most, many),
        "usual": _cost(usual, many),
        "estimated": model.tokenizer == ESTIMATE,
    }
    if as_json:
        say_json(plan)
    else:
        say("\n".join(_lines(plan, settings.read.max_calls)))
    return blocks.skipped


def _cost(progress: Progress, many: int) -> dict[str, Any]:
    """What so many reads come to."""
    return {
        "calls": many * progress.calls,
        "prompt_tokens": many * progress.prompt_tokens,
        "completion_tokens": many * progress.completion_tokens,
        "cost": None if progress.cost is None else many * progress.cost,
    }


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
    lines = [
        *(f"{file['name']}: {file['characters']:,} characters of text" for file in files),
        f"model: {found['model']}, window {window}",
        f"workflow: {found['workflow']}, {_chunks(found['chunks'])}, {found['document_tokens']:,} tokens",
    ]
    for_all = " for all questions" if several else ""
    if found["usual"]["calls"] < found["calls"]:
        lines.append(f"as a rule, at most{for_all}: {_told(found['usual'])}")
        lines.append(f"at the very most, with a question about each reply: {_told(found)}")
    else:
        lines.append(f"at most{for_all}: {_told(found)}")
    if found["estimated"]:
        lines.append(
            "token counts are estimates (--tokenizer names the model's own): what proves too long for the "
            "window takes more calls"
        )
    if max_calls and found["usual"]["calls"] > max_calls * found["questions"]:
        lines.append(f"--max-calls {max_calls} would stop it")
    return lines


def _told(cost: Mapping[str, Any]) -> str:
    price = "" if cost["cost"] is None else f", cost {cost['cost']:.4g}"
    calls = "1 call" if cost["calls"] == 1 else f"{cost['calls']:,} calls"
    return f"{calls}, {cost['prompt_tokens']:,} tokens in, {cost['completion_tokens']:,} out{price}"


def _chunks(count: int) -> str:
    return "1 chunk" if count == 1 else f"{count:,} chunks"
