"""Does a reader answer questions on a paragraph, and say so if the paragraph has no answer?

    python recipes/reader/measure.py --model MODEL.gguf --adapter reader.gguf --squad squad_v2_dev.jsonl.gz

SQuAD 2.0's dev set is not trained on. Without --adapter, the model is asked in the words of the default
workflow for a document that may not hold the answer.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from memagent import EngineSettings, open_engine, text_document
from memagent.evaluation.statistics import confidence_interval
from memagent.prompts import AUTO, load_prompts
from memagent.reading.replies import is_declined
from memagent.tasks.corpora import read_rows
from memagent.tasks.scoring import f1, substring_match
from memagent.types import Engine, Sampling

HERE = Path(__file__).parent
MAX_ANSWER_TOKENS = 64


async def measure(engine: Engine, rows: list[dict[str, Any]], trained: bool) -> dict[str, list[float]]:
    """For each question, by what is counted: how far it was so."""
    counts: dict[str, list[float]] = {
        "the answer is in the reply": [], "F1": [], "declined, though the answer is there": [],
        "declined, and there is none": [],
    }  # fmt: skip
    templates = load_prompts(HERE / "prompts.toml") if trained else AUTO
    for row in rows:
        document = text_document(row["context"].strip(), is_example=True)
        prompts = templates.for_document(document.mark, asks=False)
        for asked in row["qas"]:
            messages = prompts.fill("doubt", problem=asked["question"], memory=row["context"].strip())
            reply = (await engine.complete(messages, Sampling(MAX_ANSWER_TOKENS))).text
            if asked["is_impossible"]:
                counts["declined, and there is none"].append(is_declined(reply))
                continue
            answers = tuple(answer["text"] for answer in asked["answers"])
            counts["the answer is in the reply"].append(substring_match(reply, answers))
            counts["F1"].append(max(f1(reply, (answer,)) for answer in answers))
            counts["declined, though the answer is there"].append(is_declined(reply))
    return counts


async def main() -> None:
    """Measure, and print shares with their 95% intervals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter")
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--paragraphs", type=int, default=40, help="evenly spaced ones (40)")
    asked = parser.parse_args()
    rows = [row for _, row in read_rows(asked.squad)]
    rows = rows[:: len(rows) // asked.paragraphs][: asked.paragraphs]
    async with open_engine(EngineSettings(model=asked.model, adapter=asked.adapter)) as engine:
        for name, values in (await measure(engine, rows, bool(asked.adapter))).items():
            mean = 100 * sum(values) / len(values)
            low, high = confidence_interval([float(value) for value in values])
            print(f"{name}: {mean:.0f} of {len(values)} [{100 * low:.0f}, {100 * high:.0f}]")


if __name__ == "__main__":
    asyncio.run(main())
