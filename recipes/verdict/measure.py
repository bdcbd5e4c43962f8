"""How well verdicts rank chunks, beside BM25: measure.py MODEL.gguf EXAMPLES.jsonl... (--rows FILE)

Of each question that the document answers, where the first chunk with its evidence stands, among all by the
model's verdict and among all by BM25; and of all questions, the best chunk's verdict, which tells whether
anything is there. A chunk has the evidence if it has the beginning or the end of a passage of it or, where no
evidence is known, an answer. Chunks come first and the questions on a document one after the other, so that a
chunk is computed once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memagent.documents.chunking import split
from memagent.documents.opening import text_document
from memagent.engines import open_engine
from memagent.prompts import AUTO
from memagent.reading.budgets import NOTED_TOKENS
from memagent.reading.ranking import best_passages
from memagent.reading.verdicts import log_odds
from memagent.reports.folder import table
from memagent.settings import EngineSettings
from memagent.tasks.files import load_examples
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import Chunk, Engine, Example, Sampling

SHOWN = 50  # characters of a passage's beginning and end
PLACES = (1, 4, 8)


def holds(chunk: Chunk, example: Example) -> bool:
    """Whether a chunk has some of what answers the question."""
    if example.evidence:
        return any(fact[:SHOWN] in chunk.text or fact[-SHOWN:] in chunk.text for fact in example.evidence)
    return any(answer.lower() in chunk.text.lower() for answer in example.answers)


async def judge(engine: Engine, document: str, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """A row for each question on a document."""
    source = text_document(document)
    count = engine.model.count_tokens
    chunks = await asyncio.to_thread(lambda: list(split(source.blocks(), NOTED_TOKENS, count)))
    prompts = AUTO.for_document(source.mark)
    verdicts: list[list[float]] = [[] for _ in examples]
    for chunk in chunks:
        for example, own in zip(examples, verdicts, strict=True):
            messages = prompts.fill("verdict", problem=example.problem, chunk=chunk.shown)
            completion = await engine.complete(messages, Sampling(1, thinking=False, verdict=True))
            odds = log_odds(completion.alternatives)
            own.append(float("-inf") if odds is None else odds)
    return [_row(example, chunks, own) for example, own in zip(examples, verdicts, strict=True)]


def _row(example: Example, chunks: Sequence[Chunk], verdicts: Sequence[float]) -> dict[str, Any]:
    absent = set(example.answers) <= set(ABSENT_ANSWERS)
    by_verdict = sorted(range(len(chunks)), key=lambda index: -verdicts[index])
    by_words = best_passages(example.problem, [chunk.text for chunk in chunks], len(chunks))
    needed = set() if absent else {index for index, chunk in enumerate(chunks) if holds(chunk, example)}

    def rank(order: Sequence[int]) -> int | None:
        return next((number for number, index in enumerate(order, 1) if index in needed), None)

    return {
        "id": example.id, "task": example.task, "problem": example.problem, "absent": absent,
        "chunks": len(chunks), "verdict": max(verdicts),
        "by_verdict": rank(by_verdict), "by_words": rank(by_words),
    }  # fmt: skip


async def main() -> None:
    """Print a table, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("examples", type=Path, nargs="+")
    parser.add_argument("--rows", type=Path, help="where the rows go")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    async with open_engine(EngineSettings(model=options.model)) as engine:
        of_document = defaultdict[str, list[Example]](list)
        for path in options.examples:
            for example in load_examples(path, engine.model.count_tokens):
                of_document[example.document].append(example)
        for document, examples in of_document.items():
            rows += await judge(engine, document, examples)
            if options.rows:
                options.rows.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task and row["by_verdict"]]
        within = [
            ", ".join(
                str(sum((row[by] or most + 1) <= most for row in own)) for by in ("by_verdict", "by_words")
            )
            for most in PLACES
        ]
        odds = sorted(row["verdict"] for row in rows if row["task"] == task)
        lines.append([task, str(len(odds)), *within, f"{odds[0]:.1f} to {odds[-1]:.1f}"])
    firsts = (f"first {most}: verdict, BM25" for most in PLACES)
    print(table(["questions", "asked", *firsts, "best verdicts"], lines))


if __name__ == "__main__":
    asyncio.run(main())
